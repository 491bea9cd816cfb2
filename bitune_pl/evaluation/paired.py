"""A gain with its uncertainty: the same questions, answered before and after.

Both scores come from the same questions, so their difference is far more certain than either score: the bootstrap draws
questions, and takes both outcomes of each. McNemar's test asks whether the questions that only one side answers right
fall on one side more often than a coin would. Not in the paper, which compares means over three seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Gain(NamedTuple):
    """Mean difference `after - before` and the ends of its interval."""

    mean: float
    low: float
    high: float


class McNemar(NamedTuple):
    """Questions that only one side answers right, and the two-sided probability of a split as uneven by chance."""

    only_before: int
    only_after: int
    p: float


def paired_gain(
    before: Sequence[float], after: Sequence[float], level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Gain:
    """Percentile bootstrap of the mean of `after - before`.

    Raises:
        ValueError: if the two do not hold the same, non-zero number of questions.
    """
    return mean_gain([(before, after)], level, draws, seed)


def mean_gain(
    tasks: Sequence[tuple[Sequence[float], Sequence[float]]], level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Gain:
    """The same for the mean over tasks, each of which weighs the same; questions are drawn within their task.

    Args:
        tasks: `(before, after)` of each task.

    Raises:
        ValueError: as `paired_gain`.
    """
    generator = np.random.default_rng(seed)
    differences = [_difference(before, after) for before, after in tasks]
    means = np.mean([_resampled(difference, draws, generator) for difference in differences], axis=0)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Gain(float(np.mean([difference.mean() for difference in differences])), float(low), float(high))


def mcnemar(before: Sequence[float], after: Sequence[float]) -> McNemar:
    """McNemar's exact test: the discordant pairs as tosses of a coin. 1 where there are none.

    Raises:
        ValueError: as `paired_gain`.
    """
    difference = _difference(before, after)
    only_before, only_after = int((difference < 0).sum()), int((difference > 0).sum())
    tosses = only_before + only_after
    return McNemar(only_before, only_after, min(1.0, 2 * _tail(tosses, min(only_before, only_after)) / 2**tosses))


def _tail(tosses: int, most: int) -> int:
    """How many series of tosses have at most so many heads: a sum of binomial coefficients, each from the one before."""
    series = total = 1
    for heads in range(most):
        series = series * (tosses - heads) // (heads + 1)
        total += series
    return total


def _difference(before: Sequence[float], after: Sequence[float]) -> np.ndarray:
    if len(before) != len(after) or not len(before):
        raise ValueError(
            f"A paired comparison needs the same questions on both sides; there are {len(before)} before and "
            f"{len(after)} after."
        )
    return np.asarray(after, dtype=float) - np.asarray(before, dtype=float)


def _resampled(difference: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Means of samples drawn with replacement, shape (draws,).

    Drawing how often each value occurs is the same as drawing questions. Where outcomes are 0 or 1, a difference has three
    values, and no array of draws x questions is made.
    """
    values, counts = np.unique(difference, return_counts=True)
    return generator.multinomial(len(difference), counts / len(difference), size=draws) @ values / len(difference)
