"""Seconds of prefill and of decoding (paper, Table 4: 2000 tokens each, one A100).

What is timed does not depend on what the weights are, so nothing is trained: fresh adapters on the base, random tokens
as the prompt. `decode` is the time of a whole generation less that of the prefill. One prompt at a time.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bitune_pl.method.backbone import load_decoder, usual_device
from bitune_pl.method.model import Bitune
from bitune_pl.reproduction.runner.readings import device_name


def measure(model: dict[str, Any], prompt_tokens: int, new_tokens: int, repeats: int, seed: int) -> dict[str, Any]:
    """Medians over `repeats`, after one generation that is not counted."""
    device = usual_device()
    decoder = load_decoder(model["base"], torch.bfloat16, device)
    settings = {name: said for name, said in model.items() if name not in ("base", "lr")}
    bitune = Bitune.build(decoder, **settings).eval()
    draw = torch.Generator().manual_seed(seed)
    prompt = torch.randint(2, decoder.config.get_text_config().vocab_size, (prompt_tokens,), generator=draw)
    whole = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
    prefill, generate = lambda: bitune.prefill([prompt]), lambda: bitune.generate([prompt], **whole)
    with torch.no_grad():
        generate()
        prefills, generations = ([_seconds(what, device) for _ in range(repeats)] for what in (prefill, generate))
    first, both = statistics.median(prefills), statistics.median(generations)
    return {
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "repeats": repeats,
        "prefill_seconds": first,
        "decode_seconds": both - first,
        "device": device_name(),
    }


def _seconds(what: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    what()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start
