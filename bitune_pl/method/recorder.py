"""Attention weights of every block, kept while a row is read: what the paper draws in appendix A.12 (Table 26).

    with attention_maps(model) as maps:
        model.log_likelihood([sample])
    maps[0].causal.mean((0, 1))                  # (prompt, prompt): the first sample, averaged over blocks and heads

The weights are those that the decoder's own attention gives in float32: they are read off `attention.Kernel` itself, by
giving it the identity in place of the values, so that windows, soft-caps and sinks are in them. Off, it costs one look
at a context variable a block. Prompts are read without their last token, the start token, which is an answer's first
query. Decoding from a cache is not recorded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .attention import Kernel, watcher
from .layout import Layout
from .model import Bitune
from .variants import Pattern

Keep = Callable[[Float[Tensor, "1 queries heads keys"]], Tensor]


@dataclass(frozen=True, eq=False)
class Maps:
    """Attention weights of one sample; without the axis `heads` where heads are averaged.

    Args:
        causal: of the causal pass over the prompt; None where the method does not make it.
        second: of the second pass over the prompt; None where there is none.
        answers: of each answer, whose first query is the start token, over the prompt's keys (mixed, where the method
            mixes) and its own.
    """

    causal: Float[Tensor, "layers *heads prompt prompt"] | None
    second: Float[Tensor, "layers *heads prompt prompt"] | None
    answers: list[Float[Tensor, "layers *heads answer prompt+answer"]]


@contextmanager
def attention_maps(model: Bitune, mean_heads: bool = False) -> Iterator[Sequence[Maps]]:
    """Keep the attention weights of all samples that a model reads inside the context.

    Args:
        mean_heads: keep the mean over heads only, which takes so many times less memory.

    Returns:
        a sequence of one `Maps` for each sample read so far, in order. Weights with sinks add up to less than one.
        Dropout on them is left out. Blocks that are computed again (activation checkpointing) are kept once.
    """
    recorder = _Recorder(set(model.decoder.modules()), mean_heads)
    token = watcher.set(recorder)
    try:
        yield recorder
    finally:
        watcher.reset(token)


class _Recorder(Sequence):
    """Takes what each block computes attention from; gives what was kept, by sample."""

    def __init__(self, modules: set[nn.Module], mean_heads: bool) -> None:
        self.modules, self.mean_heads = modules, mean_heads
        self.rows: dict[Layout, dict[nn.Module, list[Maps]]] = {}  # of each row, what each block gave

    @torch.no_grad()
    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, k_prompt: Tensor, layout: Layout, kernel: Kernel
    ) -> None:
        blocks = self.rows.setdefault(layout, {}) if module in self.modules else {module: []}
        if module not in blocks:
            blocks[module] = _block(query, key, k_prompt, layout, replace(kernel, dropout=0.0), self._keep)

    def _keep(self, weights: Float[Tensor, "1 queries heads keys"]) -> Tensor:
        weights = weights[0].transpose(0, 1)
        return (weights.mean(0) if self.mean_heads else weights).clone()

    def __len__(self) -> int:
        return sum(len(layout.prompts) for layout in self.rows)

    def __getitem__(self, index: int) -> Maps:
        places = [(blocks, i) for layout, blocks in self.rows.items() for i in range(len(layout.prompts))]
        blocks, place = places[index]
        return _stacked([block[place] for block in blocks.values()])


def _stacked(blocks: list[Maps]) -> Maps:
    """One sample's maps of single blocks as one, with the axis `layers` in front."""
    causal, second = ([getattr(block, name) for block in blocks] for name in ("causal", "second"))
    answers = zip(*(block.answers for block in blocks), strict=True)
    causal, second = (None if maps[0] is None else torch.stack(maps) for maps in (causal, second))
    return Maps(causal, second, [torch.stack(answer) for answer in answers])


def _block(query: Tensor, key: Tensor, k_prompt: Tensor, layout: Layout, kernel: Kernel, keep: Keep) -> list[Maps]:
    """What one block attends to, in each sample of the row."""
    wide = torch.promote_types(query.dtype, torch.float32)
    (q_causal, q_answer, q_second), (k_causal, k_answer, k_second) = (
        x.to(wide).split(layout.regions, dim=2) for x in (query, key)
    )
    causal = _read(q_causal, k_causal, layout.first, "causal", kernel, keep)
    second = _read(q_second, k_second, layout.second, layout.method.second_pass, kernel, keep)
    answers = _answers(q_answer, k_answer, k_prompt.to(wide), layout, kernel, keep)
    parts = zip_longest(causal, second, answers)  # None for a reading that is not made
    return [Maps(*part) for part in parts]


def _read(
    query: Tensor, key: Tensor, lengths: list[int], pattern: Pattern | None, kernel: Kernel, keep: Keep
) -> Iterator[Tensor]:
    """One reading of each prompt; nothing at all of a reading that is not made."""
    for q, k in zip(query.split(lengths, dim=2), key.split(lengths, dim=2), strict=True) if lengths else ():
        yield keep(kernel.prompt(q, k, _identity(k), pattern) if q.shape[2] else q.new_zeros(1, 0, q.shape[1], 0))


def _answers(
    query: Tensor, key: Tensor, k_prompt: Tensor, layout: Layout, kernel: Kernel, keep: Keep
) -> Iterator[list[Tensor]]:
    """The answers of each sample, whose keys are the prompt's and those on its own way through the answers' places."""
    places = layout.places
    pieces = zip(
        query.split(places, dim=2), key.split(places, dim=2), k_prompt.split(layout.prompts, dim=2), strict=True
    )
    for i, (q, own, prompt) in enumerate(pieces):
        if not places[i]:
            yield []
            continue
        keys, read = torch.cat([prompt, own], dim=2), prompt.shape[2]
        weights = kernel(q, keys, _identity(keys), mask=layout.answer_mask(i, kernel.window))
        ways = [way.to(weights.device) for way in layout.trees[i].ways]
        yield [keep(torch.cat([weights[:, way, :, :read], weights[:, way][..., read + way]], -1)) for way in ways]


def _identity(key: Tensor) -> Float[Tensor, "1 kv_heads keys keys"]:
    """Values that make attention return its weights."""
    return torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:3], key.shape[2])
