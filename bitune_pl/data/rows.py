"""Rows: the encoded examples of a part, packed.

All ids stand in one array, so that a large set takes four bytes a token and is shared with loader workers. A row's
tensors are made when it is asked for.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import LongTensor

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped, Example
from bitune_pl.sample import Sample


class EncodedRow(NamedTuple):
    """A row as the loss sees it (right answer, with its end), and its choices (without end) where it has several."""

    sample: Sample
    choices: Sample | None
    gold: int | None


@dataclass(frozen=True)
class Rows:
    """A sequence of encoded rows.

    Args:
        ids: of all prompts and answers, one after the other, shape `(tokens,)`.
        ends: where each prompt or answer ends in `ids`, after a leading 0.
        first: for each row the number of its first entry in `ends`, and their total at the end. A row's entries are its
            prompt, its right answer with the end token, and its choices, if they are kept.
        golds: for each row the position of the right choice, -1 if its choices are not kept.
    """

    ids: np.ndarray
    ends: np.ndarray
    first: np.ndarray
    golds: np.ndarray

    def __len__(self) -> int:
        return len(self.golds)

    def __getitem__(self, row: int) -> EncodedRow:
        prompt, answer, *choices = (self._entry(i) for i in range(self.first[row], self.first[row + 1]))
        sample = Sample(prompt, [answer])
        return EncodedRow(
            sample, Sample(prompt, choices) if choices else None, int(self.golds[row]) if choices else None
        )

    @property
    def answer_tokens(self) -> np.ndarray:
        """How many tokens each row has to learn."""
        answers = self.first[:-1] + 1
        return self.ends[answers + 1] - self.ends[answers]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, prompt and right answer with its end."""
        first = self.first[:-1]
        return self.ends[first + 2] - self.ends[first]

    @cached_property
    def digest(self) -> str:
        """A hash of all ids in their order, prompts, answers and choices told apart."""
        found = hashlib.blake2b(digest_size=8)
        for column in (self.ids, self.ends, self.first, self.golds):
            found.update(np.ascontiguousarray(column).data)
        return found.hexdigest()

    def _entry(self, i: int) -> LongTensor:
        return torch.from_numpy(self.ids[self.ends[i] : self.ends[i + 1]].astype(np.int64))


def encode(encoder: Encoder, examples: Sequence[Example], with_choices: bool) -> tuple[Rows, list[Dropped]]:
    """All rows that fit, and those that were left out; the choices of questions too, if they are to be scored."""
    ids, ends, first, golds, dropped = array("i"), array("q", [0]), array("q", [0]), array("i"), []
    choices = encoder.choice_ids(examples) if with_choices else ((None, []) for _ in examples)
    for example, trained, (_, scored) in zip(examples, encoder.training_ids(examples), choices, strict=True):
        if isinstance(trained, Dropped):
            dropped.append(trained)
            continue
        prompt, answers = trained
        kept = scored if len(scored) > 1 else []
        for entry in (prompt, *answers, *kept):
            ids.extend(entry)
            ends.append(len(ids))
        first.append(len(ends) - 1)
        golds.append(example.gold if kept else -1)
    return Rows(*(np.array(column) for column in (ids, ends, first, golds))), dropped
