"""Multiple choice: the choice with the highest log-likelihood is the answer (paper, A.3; lm-eval's `acc`, `acc_norm`).

All choices hang off one reading of their prompt. Which rows are scored, and how they read, is the business of `data`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example
from bitune_pl.method.model import Bitune

BATCH = 16  # questions in one forward pass


class Outcome(NamedTuple):
    """Whether the right choice of a question came out on top: by its sum over tokens, and by that sum per character."""

    right: bool
    right_per_character: bool


def pick(choices: Sequence[Tensor], lengths: Sequence[int] | None = None) -> int:
    """The chosen position, from the log-likelihood of each token of each choice; per length where lengths are given."""
    sums = [float(tokens.sum()) for tokens in choices]
    return max(range(len(sums)), key=lambda i: sums[i] / (lengths[i] if lengths else 1))


@torch.no_grad()
def score_choices(model: Bitune, encoder: Encoder, examples: Sequence[Example]) -> list[Outcome]:
    """Outcomes in the order of the examples, which are read in batches of similar length.

    Raises:
        ValueError: if an example does not say which choice is right.
    """
    by_length = sorted(range(len(examples)), key=lambda i: len(examples[i].prompt))
    outcomes = {}
    for start in range(0, len(examples), BATCH):
        batch = by_length[start : start + BATCH]
        rows = [examples[i] for i in batch]
        outcomes |= dict(zip(batch, _score(model, encoder, rows), strict=True))
    return [outcomes[i] for i in range(len(examples))]


def _score(model: Bitune, encoder: Encoder, rows: Sequence[Example]) -> Iterator[Outcome]:
    likelihoods = model.log_likelihood([encoder.choices(row) for row in rows])
    for row, choices in zip(rows, likelihoods, strict=True):
        if row.gold is None:
            raise ValueError(f"{row.where}: this row does not say which choice is right, so it cannot be scored.")
        lengths = [max(1, len(answer.strip())) for answer in row.answers]
        yield Outcome(pick(choices) == row.gold, pick(choices, lengths) == row.gold)
