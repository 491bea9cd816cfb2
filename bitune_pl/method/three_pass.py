"""The paper's Algorithms 1 and 2 written out: three forward passes, one sample at a time.

This is the specification that the one-pass engine is compared with, in tests and in `bitune verify`; it is never on a hot
path. It uses transformers' own forward, masks and attention, a plain cache between the passes, and none of the layout.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import LongTensor, Tensor
from transformers import DynamicCache

from ..sample import Sample
from .attention import NAME
from .layout import Weights, reading
from .mixing import alpha
from .model import Bitune
from .routing import active
from .variants import Pattern


@contextmanager
def stock_attention(model: Bitune, implementation: str | None = None) -> Iterator[None]:
    """Transformers' own attention in place of Bitune's: `sdpa` where the decoder has it, else `eager`."""
    if implementation is None:
        implementation = "sdpa" if model.decoder.get_decoder()._supports_sdpa else "eager"
    model.decoder.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.decoder.set_attn_implementation(NAME)


def answer_logits(
    model: Bitune, samples: Sequence[Sample], implementation: str | None = None
) -> list[list[Float[Tensor, "_ vocab"]]]:
    """As `Bitune.answer_logits`, by three passes for every single answer."""
    with stock_attention(model, implementation):
        return [[_answer(model, sample.prompt, answer) for answer in sample.answers] for sample in samples]


def loss(model: Bitune, samples: Sequence[Sample], implementation: str | None = None) -> Float[Tensor, ""]:
    """As `Bitune.loss`, weighted by sample."""
    logits = answer_logits(model, samples, implementation)
    pairs = [
        (row, answer.to(row.device))
        for rows, sample in zip(logits, samples, strict=True)
        for row, answer in zip(rows, sample.answers, strict=True)
    ]
    return torch.stack([F.cross_entropy(logit, answer) for logit, answer in pairs]).mean()


def greedy(model: Bitune, prompt: LongTensor, steps: int, implementation: str | None = None) -> LongTensor:
    """Algorithm 1 with the most likely token at each step, for a fixed number of steps."""
    with stock_attention(model, implementation), torch.no_grad():
        prompt = prompt.repeat(model.method.prompt_copies).to(model.decoder.device)
        cache, token, answer = _mixed_cache(model, prompt[:-1]), prompt[-1:], []
        for step in range(steps):
            logits = _causal(model, token, cache, start=len(prompt) - 1 + step)
            token = logits[-1:].argmax(-1)
            answer.append(token)
        return torch.cat(answer)


def _answer(model: Bitune, prompt: LongTensor, answer: LongTensor) -> Float[Tensor, "answer vocab"]:
    """Algorithm 2 up to its logits: two passes over the prompt, then the answer over the mixed cache."""
    prompt, answer = prompt.repeat(model.method.prompt_copies).to(model.decoder.device), answer.to(model.decoder.device)
    cache = _mixed_cache(model, prompt[:-1])
    return _causal(model, torch.cat([prompt[-1:], answer[:-1]]), cache, start=len(prompt) - 1)


def _causal(model: Bitune, ids: LongTensor, cache: DynamicCache | None, start: int) -> Float[Tensor, "tokens vocab"]:
    positions = torch.arange(start, start + len(ids), device=ids.device)
    with _weights(model, "causal"):
        return model.decoder(input_ids=ids[None], position_ids=positions[None], cache=cache, use_cache=True).logits[0]


def _mixed_cache(model: Bitune, read: LongTensor) -> DynamicCache:
    """Both passes over the prompt, and the mix of their keys and values (equations 4-8)."""
    method = model.method
    if not len(read):
        return DynamicCache()
    if method.second_pass is None:
        return _pass(model, read, "causal", "causal")
    second = _pass(model, read, method.second_pass, "bidirectional" if method.separate_weights else "causal")
    if not method.mixing:
        return second
    mixed, causal = DynamicCache(), _pass(model, read, "causal", "causal")
    for i, (c, b) in enumerate(zip(causal.layers, second.layers, strict=True)):
        a_k, a_v = alpha(model.theta_k[i], model.theta_init), alpha(model.theta_v[i], model.theta_init)
        keys = c.keys * (1 - a_k) + b.keys * a_k
        values = c.values * (1 - a_v) + b.values * a_v
        mixed.update(keys.to(c.keys.dtype), values.to(c.values.dtype), i)
    return mixed


def _pass(model: Bitune, read: LongTensor, pattern: Pattern, weights: str) -> DynamicCache:
    """One reading of the prompt; returns its keys and values."""
    cache = DynamicCache()
    mask = None if pattern == "causal" else _mask(pattern, len(read), model.decoder.dtype, read.device)
    with _weights(model, weights):
        model.decoder(
            input_ids=read[None],
            attention_mask=mask,
            position_ids=torch.arange(len(read), device=read.device)[None],
            cache=cache,
            use_cache=True,
        )
    return cache


def _mask(
    pattern: Pattern, length: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "1 1 prompt prompt"]:
    """Added to the scores: nothing for all keys (bidirectional), or minus infinity for those before a query (anti-causal)."""
    hidden = torch.full((length, length), torch.finfo(dtype).min, dtype=dtype, device=device).tril(-1)
    return (hidden if pattern == "anti_causal" else torch.zeros_like(hidden))[None, None]


@contextmanager
def _weights(model: Bitune, name: str) -> Iterator[None]:
    with active(model.decoder, name), reading(Weights(name)):
        yield
