"""A gain with its uncertainty: the same questions, answered before and after.

Both scores come from the same questions, so their difference is far more certain than either score: the bootstrap draws
questions, and takes both outcomes of each. Not in the paper, which compares means over three seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Gain(NamedTuple):
    """Mean difference `after - before` and the ends of its interval."""

    mean: float
    low: float
    high: float


def paired_gain(
    before: Sequence[float], after: Sequence[float], level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Gain:
    """Percentile bootstrap of the mean of `after - before`.

    Raises:
        ValueError: if the two do not hold the same, non-zero number of questions.
    """
    if len(before) != len(after) or not len(before):
        raise ValueError(
            f"A paired comparison needs the same questions on both sides; there are {len(before)} before and "
            f"{len(after)} after."
        )
    difference = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    picks = np.random.default_rng(seed).integers(len(difference), size=(draws, len(difference)))
    low, high = np.quantile(difference[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Gain(float(difference.mean()), float(low), float(high))
