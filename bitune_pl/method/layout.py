"""A batch of samples as one row of tokens, read in one forward pass (paper, Algorithm 2, without its three passes).

    [ prompt 1 | prompt 2 | ... || answer 1 | answer 2a | answer 2b | ... || prompt 1 again | prompt 2 again | ... ]
      '------------------------ causal weights ------------------------'     '------- bidirectional weights -------'
        first region: causal pass    second region: answers                    third region: second pass

Nothing is padded. Positions restart with every prompt; each answer goes on where its prompt ends; the second reading
counts from 0 again. A prompt's last token, the start token, belongs to its answers: every answer is laid out as the start
token and all its tokens but the last, so that place t predicts answer token t. Without mixing only one reading of the
prompt exists, so only one is laid out: the first region stays empty where the method reads the prompt a second time.

Regions rather than samples lie side by side, so that mixing is one operation a block for the whole batch, and a linear
layer routes by a single number, the split. Which keys a token attends to is decided in `attention.py`; what runs on either
side of the split in `adapters.py`. Both find the current `Reading` in a context variable, since some decoders drop unknown
keyword arguments on their way down.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..sample import Sample
from .variants import Method


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the tokens of a batch lie in the row.

    Args:
        method: how prompts are read.
        input_ids: token ids, shape `(1, row)`.
        position_ids: position of each token within its own sample, shape `(1, row)`.
        prompts: lengths of the prompts as they are read, without the start token.
        answers: lengths of the answers of each prompt.
    """

    method: Method
    input_ids: Int[Tensor, "1 row"]
    position_ids: Int[Tensor, "1 row"]
    prompts: list[int]
    answers: list[list[int]]
    _masks: dict = field(default_factory=dict, repr=False)

    @classmethod
    def build(cls, samples: Sequence[Sample], method: Method, device: torch.device | str | None = None) -> "Layout":
        """Lay out samples as one row. Work done here is linear in the number of tokens and done on the CPU."""
        prompts = [sample.prompt.repeat(method.prompt_copies) for sample in samples]
        reads = [prompt[:-1] for prompt in prompts]
        answers = [torch.cat([p[-1:], a])[:-1] for p, s in zip(prompts, samples, strict=True) for a in s.answers]
        starts = [len(read) for read, sample in zip(reads, samples, strict=True) for _ in sample.answers]
        read_positions = [torch.arange(len(read)) for read in reads]
        answer_positions = [torch.arange(start, start + len(a)) for start, a in zip(starts, answers, strict=True)]
        first, second = _readings(method)
        ids = [*reads * first, *answers, *reads * second]
        positions = [*read_positions * first, *answer_positions, *read_positions * second]
        return cls(
            method,
            _row(ids, device),
            _row(positions, device),
            [len(read) for read in reads],
            [[len(answer) for answer in sample.answers] for sample in samples],
        )

    @property
    def rows(self) -> int:
        return self.input_ids.shape[1]

    @property
    def longest(self) -> int:
        """Positions that the longest prompt reaches together with the longest of its answers."""
        pairs = zip(self.prompts, self.answers, strict=True)
        return max((prompt + max(answers, default=0) for prompt, answers in pairs), default=0)

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

    def answer_mask(self, sample: int, window: int | None) -> Bool[Tensor, "answer keys"] | None:
        """Which of `[prompt | all its answers]` each place of a sample's answers may attend to.

        Causal, every answer on its own; with a `window`, only so many positions back. None if everything is visible.
        Kept for the other blocks of the same forward pass.
        """
        if (sample, window) not in self._masks:
            mask = answer_mask(self.prompts[sample], self.answers[sample], window)
            self._masks[sample, window] = None if mask.all() else mask.to(self.input_ids.device)
        return self._masks[sample, window]


def answer_mask(prompt: int, answers: list[int], window: int | None) -> Bool[Tensor, "answer keys"]:
    """See `Layout.answer_mask`."""
    position = torch.cat([torch.arange(prompt, prompt + length) for length in answers])
    answer = torch.repeat_interleave(torch.arange(len(answers)), torch.tensor(answers))
    key_position = torch.cat([torch.arange(prompt), position])
    back = position[:, None] - key_position
    own = answer[:, None] == torch.cat([torch.full((prompt,), -1), answer])
    own[:, :prompt] = True
    return own & (back >= 0) & (back < (window or prompt + len(position)))


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
    """Cut what was computed for all answer places, `(answer, ...)`, into one tensor per answer of each sample."""
    pieces = iter(flat.split(list(chain.from_iterable(layout.answers))))
    return [[next(pieces) for _ in lengths] for lengths in layout.answers]
