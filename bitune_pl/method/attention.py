"""Attention in every block: the paper's three phases (section 3.1, equations 3-5), for each sample of the row.

Registered with transformers under the name `bitune`, as attention function and as mask function, once and for all decoders.
While a row is read (`layout.py`) no mask is ever passed and attention does the three phases; outside of one (decoding from
a cache, an ordinary forward) transformers makes its own masks and attention is ordinary.

Sliding windows apply to the causal pass and to the answer as in the pretrained decoder, while the second pass sees the whole
prompt. Soft-capped scores and attention sinks have no fused kernel here and are computed in the open.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from .layout import Layout, Reading, current
from .mixing import mix
from .variants import Pattern

NAME = "bitune"

WIDE_ON_CPU = 512
"""Up to so many keys the CPU's kernel is faster in float32 than in half precision, backward pass included (and rounds less)."""

UNSUPPORTED = ("position_bias", "indices", "block_indices", "sinks", "head_mask")
"""Keywords by which some decoders change what attention means: a value other than None is refused."""


watcher: ContextVar[Callable | None] = ContextVar("bitune_watcher", default=None)
"""Called in each block, where there is one, with what attention is computed from: see `recorder.py`."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """softmax(scaling * Q K^T) V for one sample, with whatever else the decoder asks of it.

    Args:
        scaling: factor on the scores; None for 1 / sqrt(head_dim).
        window: how many positions back a causal query sees, itself included; None for all.
        dropout: on the attention weights, in training.
        softcap: scores become softcap * tanh(scores / softcap) (Gemma 2).
        sinks: one more logit a head that takes weight away from all keys (GPT-OSS).
    """

    scaling: float | None = None
    window: int | None = None
    dropout: float = 0.0
    softcap: float | None = None
    sinks: Float[Tensor, "heads"] | None = None

    def prompt(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern
    ) -> Float[Tensor, "1 prompt heads head_dim"]:
        """One reading of one prompt: as many keys as queries, both `(1, heads, prompt, head_dim)`."""
        if pattern == "anti_causal":  # causal with the order reversed
            flipped = (x.flip(2) for x in (query, key, value))
            return self(*flipped, causal=True).flip(1)
        length, causal = query.shape[2], pattern == "causal"
        if causal and self.window is not None and self.window < length:
            ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
            return self(query, key, value, mask=ones.tril() & ones.triu(1 - self.window))
        return self(query, key, value, causal=causal)

    def __call__(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        value: Float[Tensor, "batch kv_heads keys value_dim"],
        mask: Bool[Tensor, "*#batch queries keys"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "batch queries heads value_dim"]:
        if self.softcap is not None or self.sinks is not None:
            return self._in_the_open(query, key, value, mask, causal)
        if query.is_cpu and query.dtype.itemsize == 2 and 1 < query.shape[2] and key.shape[2] <= WIDE_ON_CPU:
            return self(query.float(), key.float(), value.float(), mask, causal).to(query.dtype)
        grouped = query.shape[1] != key.shape[1]
        if grouped and mask is not None and query.is_cuda:  # masked and grouped together have no fused kernel there
            key, value, grouped = *_repeat(query, key, value), False
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self.dropout, scale=self.scaling,
            is_causal=causal and query.shape[2] > 1, enable_gqa=grouped,
        )  # fmt: skip
        return out.transpose(1, 2)

    def _in_the_open(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        key, value = _repeat(query, key, value)
        scores = query @ key.transpose(-1, -2) * (self.scaling or query.shape[-1] ** -0.5)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        if self.sinks is not None:
            sinks = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
        weights = F.dropout(weights[..., : key.shape[2]], self.dropout)
        return (weights @ value).transpose(1, 2)


def _repeat(query: Tensor, *grouped: Tensor) -> list[Tensor]:
    """Keys and values of grouped-query attention, one a query head."""
    return [x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in grouped]


def three_phases(
    query: Float[Tensor, "1 heads row head_dim"],
    key: Float[Tensor, "1 kv_heads row head_dim"],
    value: Float[Tensor, "1 kv_heads row value_dim"],
    module: nn.Module,
    reading: Reading,
    kernel: Kernel,
) -> Float[Tensor, "1 row heads value_dim"]:
    """Read the prompts causally, read them again, mix, and let the answers attend to the mix."""
    layout = reading.layout
    (q_causal, q_answer, q_second), (k_causal, k_answer, k_second), (v_causal, v_answer, v_second) = (
        x.split(layout.regions, dim=2) for x in (query, key, value)
    )
    # 1. causal pass over the prompts (equation 4)
    causal = _read(q_causal, k_causal, v_causal, layout.first, "causal", kernel)
    # 2. second pass over the prompts (equation 5)
    second = _read(q_second, k_second, v_second, layout.second, layout.method.second_pass, kernel)
    # 3. mix both readings (equations 6-8), and model the answers causally over the mix (equation 3)
    if layout.method.mixing:
        k_prompt = mix(k_causal, k_second, reading.alpha_k[module.layer_idx])
        v_prompt = mix(v_causal, v_second, reading.alpha_v[module.layer_idx])
    else:
        k_prompt, v_prompt = (k_second, v_second) if layout.second else (k_causal, v_causal)
    if reading.record is not None:
        reading.record(module, key, value, k_prompt, v_prompt)
    if (watch := watcher.get()) is not None:
        watch(module, query, key, k_prompt, layout, kernel)
    answers = _answer(q_answer, k_answer, v_answer, k_prompt, v_prompt, layout, kernel)
    return torch.cat([*causal, *answers, *second], dim=1)


def _read(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[int], pattern: Pattern | None, kernel: Kernel
) -> list[Tensor]:
    """One reading of all prompts, each within itself."""
    pieces = zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True) if lengths else ()
    return [kernel.prompt(q, k, v, pattern) for q, k, v in pieces if q.shape[2]]


def _answer(
    query: Tensor, key: Tensor, value: Tensor, k_prompt: Tensor, v_prompt: Tensor, layout: Layout, kernel: Kernel
) -> list[Tensor]:
    """Each sample's answers over `[mixed keys of its prompt | own keys]`, causally, every answer on its own way."""
    out, own_ends, prompt_ends = [], accumulate(layout.places), accumulate(layout.prompts)
    for i, (own_end, prompt_end) in enumerate(zip(own_ends, prompt_ends, strict=True)):
        own = slice(own_end - layout.places[i], own_end)
        prompt = slice(prompt_end - layout.prompts[i], prompt_end)
        if own.start == own.stop:
            continue
        k = torch.cat([k_prompt[:, :, prompt], key[:, :, own]], dim=2)
        v = torch.cat([v_prompt[:, :, prompt], value[:, :, own]], dim=2)
        out.append(kernel(query[:, :, own], k, v, mask=layout.answer_mask(i, kernel.window)))
    return out


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **other,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every block; returns `(1, row, heads, head_dim)`, contiguous.

    Raises:
        ValueError: if the decoder asks for something that would change what attention means here.
    """
    strange = [name for name in UNSUPPORTED if other.get(name) is not None]
    if strange or is_causal is False:
        asked = ", ".join(strange) or "is_causal=False"
        raise ValueError(
            f"{type(module).__name__} asks its attention for {asked}, which Bitune's attention does not know, "
            "so this decoder cannot be served."
        )
    now = current()
    if isinstance(now, Reading):
        kernel = Kernel(scaling, sliding_window, dropout, softcap, s_aux)
        return three_phases(query, key, value, module, now, kernel), None
    kernel = Kernel(scaling, None, dropout, softcap, s_aux)  # the mask knows the window
    return kernel(query, key, value, mask=attention_mask).contiguous(), None


def mask(*args, **kwargs) -> Tensor | None:
    """The mask function that transformers calls once a forward: none while a row is read, else its own for SDPA."""
    if isinstance(current(), Reading):
        return None
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
