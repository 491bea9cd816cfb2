"""The paper: mixing, layout, attention, adapters. torch, transformers and peft; no Lightning, no datasets, no lm-eval."""

import logging

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # where installed, it warns when PEFT imports it
