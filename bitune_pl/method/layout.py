"""A batch of samples as one row of tokens, read in one forward pass (paper, Algorithm 2, without its three passes).

    [ prompt 1 | prompt 2 | ... || answer 1 | answer 2a | answer 2b | ... || prompt 1 again | prompt 2 again | ... ]
      '------------------------ causal weights ------------------------'     '------- bidirectional weights -------'
        first region: causal pass    second region: answers                    third region: second pass

Nothing is padded. Positions restart with every prompt; each answer goes on where its prompt ends; the second reading
counts from 0 again. A prompt's last token, the start token, belongs to its answers: every answer is laid out as the start
token and all its tokens but the last, so that place t predicts answer token t. Answers to one prompt that begin alike share
their first places, the start token at least: they are a tree, in which a place sees those on its way from the root.
Without mixing only one reading of the prompt exists, so only one is laid out: the first region stays empty where the
method reads the prompt a second time.

Regions rather than samples lie side by side, so that mixing is one operation a block for the whole batch, and a linear
layer routes by a single number, the split. Which keys a token attends to is decided in `attention.py`; what runs on either
side of the split in `adapters.py`. Both find the current `Reading` in a context variable, since some decoders drop unknown
keyword arguments on their way down.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..sample import Sample
from .variants import Method


@dataclass(frozen=True, eq=False)
class Tree:
    """The answers to one prompt, from the start token on: beginnings that several of them have lie in the row once.

        start --- " the" --- " dog"          " the dog bit" and " the dog ran" end in the same place, which predicts both
           '----- " a"                       " cat" needs no place but the start token's

    Args:
        ids: token ids of the places, each after the place before it on its way, shape `(places,)`.
        depths: how far each place is from the start token, shape `(places,)`.
        before: the place before each one on its way, -1 for the start token; None where there is one way only.
        ways: for each answer the places that predict its tokens, shapes `(answer,)`.
    """

    ids: Int[Tensor, "places"]
    depths: Int[Tensor, "places"]
    before: list[int] | None
    ways: list[Int[Tensor, "_"]]

    @classmethod
    def build(cls, start: Int[Tensor, "1"], answers: Sequence[Int[Tensor, "_"]]) -> "Tree":
        laid = [torch.cat([start, answer])[:-1] for answer in answers]
        if len(laid) == 1:  # nothing to share, and nothing to look at
            order = torch.arange(len(laid[0]))
            return cls(laid[0], order, None, [order])
        places: dict[tuple[int, int], int] = {}  # (the place before, the token) -> the place
        depths, ways = [], []
        for ids in laid:
            at, way = -1, []
            for depth, token in enumerate(ids.tolist()):
                at = places.setdefault((at, token), len(places))
                depths += [depth] * (at == len(depths))
                way.append(at)
            ways.append(torch.tensor(way, dtype=torch.long))
        ids = torch.tensor([token for _, token in places], dtype=torch.long, device=start.device)
        return cls(ids, torch.tensor(depths, dtype=torch.long), [before for before, _ in places], ways)

    def mask(self, prompt: int, window: int | None) -> Bool[Tensor, "places keys"]:
        """Which of `[prompt | places]` each place may attend to; with a `window`, only so many positions back."""
        position = self.depths + prompt
        back = position[:, None] - torch.cat([torch.arange(prompt), position])
        seen = torch.ones_like(back, dtype=torch.bool)
        seen[:, prompt:] = self._on_the_way()
        return seen & (back < (window or prompt + len(position)))

    def _on_the_way(self) -> Bool[Tensor, "places places"]:
        """Whether the second place is on the way to the first, or is the first."""
        if self.before is None:
            return torch.ones(len(self.ids), len(self.ids), dtype=torch.bool).tril()
        seen = torch.eye(len(self.ids), dtype=torch.bool)
        for place, before in enumerate(self.before):
            if before >= 0:
                seen[place] |= seen[before]
        return seen


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the tokens of a batch lie in the row.

    Args:
        method: how prompts are read.
        input_ids: token ids, shape `(1, row)`.
        position_ids: position of each token within its own sample, shape `(1, row)`.
        prompts: lengths of the prompts as they are read, without the start token.
        trees: the answers to each prompt.
    """

    method: Method
    input_ids: Int[Tensor, "1 row"]
    position_ids: Int[Tensor, "1 row"]
    prompts: list[int]
    trees: list[Tree]
    _masks: dict = field(default_factory=dict, repr=False)

    @classmethod
    def build(cls, samples: Sequence[Sample], method: Method, device: torch.device | str | None = None) -> "Layout":
        """Lay out samples as one row. Work done here is linear in the number of tokens and done on the CPU."""
        prompts = [sample.prompt.repeat(method.prompt_copies) for sample in samples]
        reads = [prompt[:-1] for prompt in prompts]
        trees = [Tree.build(p[-1:], s.answers) for p, s in zip(prompts, samples, strict=True)]
        read_positions = [torch.arange(len(read)) for read in reads]
        answer_positions = [tree.depths + len(read) for read, tree in zip(reads, trees, strict=True)]
        first, second = _readings(method)
        ids = [*reads * first, *(tree.ids for tree in trees), *reads * second]
        positions = [*read_positions * first, *answer_positions, *read_positions * second]
        return cls(method, _row(ids, device), _row(positions, device), [len(read) for read in reads], trees)

    @property
    def rows(self) -> int:
        return self.input_ids.shape[1]

    @property
    def longest(self) -> int:
        """Positions that the longest prompt reaches together with the longest of its answers."""
        pairs = zip(self.prompts, self.trees, strict=True)
        return max((prompt + max(map(len, tree.ways), default=0) for prompt, tree in pairs), default=0)

    @property
    def places(self) -> list[int]:
        """Numbers of places that each sample's answers take in the row."""
        return [len(tree.ids) for tree in self.trees]

    @property
    def first(self) -> list[int]:
        """Lengths of the prompts in the first region: all of them, or none."""
        return self.prompts * _readings(self.method)[0]

    @property
    def second(self) -> list[int]:
        """Lengths of the prompts in the third region: all of them, or none."""
        return self.prompts * _readings(self.method)[1]

    @property
    def regions(self) -> tuple[int, int, int]:
        """Numbers of tokens of the causal pass, the answers, and the second pass."""
        first, second = sum(self.first), sum(self.second)
        return first, self.rows - first - second, second

    @property
    def split(self) -> int:
        """Tokens left of it use the causal weights, those right of it the bidirectional weights."""
        first, answers, _ = self.regions
        return first + answers if self.method.separate_weights else self.rows

    def answer_mask(self, sample: int, window: int | None) -> Bool[Tensor, "places keys"] | None:
        """Which of `[prompt | its answers' places]` each place of a sample may attend to; None if everything is visible.

        Kept for the other blocks of the same forward pass.
        """
        if (sample, window) not in self._masks:
            mask = self.trees[sample].mask(self.prompts[sample], window)
            self._masks[sample, window] = None if mask.all() else mask.to(self.input_ids.device)
        return self._masks[sample, window]

    def predicting(self) -> Int[Tensor, "answer"]:
        """For each token of each answer, the place (among those of all answers) that predicts it."""
        starts = accumulate(self.places, initial=0)
        ways = [way + start for tree, start in zip(self.trees, starts, strict=False) for way in tree.ways]
        return torch.cat(ways).to(self.input_ids.device) if ways else self.input_ids[0, :0]

    def spread(self, computed: Float[Tensor, "places ..."]) -> Float[Tensor, "answer ..."]:
        """What was computed for each place, for each token of each answer."""
        shared = any(tree.before is not None for tree in self.trees)
        return computed[self.predicting()] if shared else computed


def _readings(method: Method) -> tuple[int, int]:
    """How often the prompts are laid out for the causal pass and for the second pass."""
    return int(method.second_pass is None or method.mixing), int(method.second_pass is not None)


def _row(pieces: list[Tensor], device: torch.device | str | None) -> Int[Tensor, "1 row"]:
    row = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.long)  # wherever the samples are, on a GPU too
    return row.unsqueeze(0).to(device)


Recorder = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor], None]
"""Takes a block's attention module, the keys and values of the whole row, and those of the prompts that answers attend to
(mixed, where the method mixes), the prompts one after the other; all of shape `(1, kv_heads, tokens, head_dim)`."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What every block needs to know while a row is being read.

    Args:
        layout: where the tokens lie.
        alpha_k, alpha_v: share of the second reading in the mixed keys and values of each block; None without mixing.
        record: called in each block with what attention saw there; costs nothing when absent.
    """

    layout: Layout
    alpha_k: Float[Tensor, "layers"] | None = None
    alpha_v: Float[Tensor, "layers"] | None = None
    record: Recorder | None = None


@dataclass(frozen=True)
class Weights:
    """An ordinary forward pass of the decoder, outside any layout, with one set of weights chosen by name."""

    name: str


_current: ContextVar[Reading | Weights | None] = ContextVar("bitune_reading", default=None)


def current() -> Reading | Weights | None:
    """The reading in whose forward pass (or replayed block) the caller runs."""
    return _current.get()


@contextmanager
def reading(what: Reading | Weights | None) -> Iterator[None]:
    """Run the decoder's blocks as part of this reading."""
    token = _current.set(what)
    try:
        yield
    finally:
        _current.reset(token)


def per_answer(flat: Tensor, layout: Layout) -> list[list[Tensor]]:
    """Cut what was computed for all answer tokens, `(answer, ...)`, into one tensor per answer of each sample."""
    pieces = iter(flat.split([len(way) for tree in layout.trees for way in tree.ways]))
    return [[next(pieces) for _ in tree.ways] for tree in layout.trees]
