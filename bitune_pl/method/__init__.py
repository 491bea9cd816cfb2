"""The paper: mixing, layout, attention, adapters. torch, transformers and peft; no Lightning, no datasets, no lm-eval."""
