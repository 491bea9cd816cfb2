"""Means, deviations and intervals against values known beforehand; coverage against a simulated truth."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitune_pl.evaluation.paired import paired_gain as gain_of_one_seed
from bitune_pl.reproduction.tables.statistics import bootstrap, paired_gain, prediction_half_width, summarise


def test_three_seeds_have_a_sample_deviation():
    """Field report H10: 0.173 +- 0.110, where the population's formula gives 0.090."""
    said = summarise([0.10, 0.12, 0.30])
    assert said.mean == pytest.approx(0.17333, abs=1e-5)
    assert said.deviation == pytest.approx(0.11015, abs=1e-5)
    assert said.n == 3


def test_one_seed_has_no_deviation_and_none_no_mean():
    assert summarise([0.5]) == (0.5, None, 1)
    assert summarise([]) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="leave out what failed"):
        summarise([0.1, bad])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9), st.floats(-1, 1))
def test_deviation_does_not_depend_on_order_or_shift(values, shift):
    one, other = summarise(values), summarise([value + shift for value in reversed(values)])
    assert other.deviation == pytest.approx(one.deviation, abs=1e-9)
    assert min(values) - 1e-9 <= one.mean <= max(values) + 1e-9


def test_interval_of_questions_is_the_exact_binomial_one():
    """One seed, 30 of 100 right: the bootstrap's distribution is binomial(100, 0.3) / 100, known exactly."""
    from scipy.stats import binom

    right = np.array([[1] * 30 + [0] * 70])
    said = bootstrap({"a": right}, draws=40_000)
    assert said.mean == pytest.approx(0.3)
    assert (said.low, said.high) == pytest.approx([binom.ppf(q, 100, 0.3) / 100 for q in (0.025, 0.975)], abs=0.0101)
    assert (said.seeds, said.questions) == (1, 100)


def test_interval_over_seeds_alone_is_the_enumerated_one():
    """Every question comes out alike within a seed: only the draw of three seeds out of 0, 0.5 and 1 counts."""
    right = np.repeat([[0.0], [0.5], [1.0]], 40, axis=1)
    means = [np.mean(draw) for draw in itertools.product([0, 0.5, 1], repeat=3)]
    said = bootstrap({"a": right}, draws=40_000, level=0.9)
    assert (said.low, said.high) == pytest.approx(np.quantile(means, [0.05, 0.95]), abs=1e-9)


def test_questions_are_drawn_once_for_all_seeds():
    """The same outcomes in three seeds are no more certain than in one; independent draws would say they are."""
    right = np.random.default_rng(0).integers(0, 2, (1, 200))
    one, three = (bootstrap({"a": np.repeat(right, n, axis=0)}) for n in (1, 3))
    assert three.high - three.low == pytest.approx(one.high - one.low, abs=0.006)


def test_one_draw_of_seeds_serves_all_tasks():
    """Seeds that are good in every task: the average over tasks is as uncertain as each of them."""
    right = np.repeat([[0.2], [0.8]], 50, axis=1)
    alone, average = bootstrap({"a": right}), bootstrap({"a": right, "b": right, "c": right})
    assert (average.low, average.high) == pytest.approx((alone.low, alone.high))


def test_gain_of_one_seed_is_that_of_the_evaluation():
    rng = np.random.default_rng(1)
    before, after = rng.integers(0, 2, (2, 1, 300))
    ours, theirs = paired_gain({"a": before}, {"a": after}), gain_of_one_seed(before[0], after[0])
    assert ours.mean == pytest.approx(theirs.mean)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.0101)


def test_pairing_removes_what_the_methods_share():
    """The second method answers as the first, and five questions more: certain, however hard the questions are."""
    before = np.zeros((2, 100), int)
    before[:, :50] = 1
    after = before.copy()
    after[:, 50:55] = 1
    said = paired_gain({"a": before}, {"a": after})
    assert said.mean == pytest.approx(0.05) and said.clear and said.high < 0.11
    assert not paired_gain({"a": before}, {"a": before}).clear


@given(st.integers(1, 3), st.integers(1, 30), st.integers(0, 10**6))
def test_gain_turns_its_sign_with_the_sides(seeds, questions, seed):
    before, after = np.random.default_rng(seed).integers(0, 2, (2, seeds, questions))
    there, back = (paired_gain({"a": x}, {"a": y}, draws=200) for x, y in ((before, after), (after, before)))
    assert there.mean == pytest.approx(-back.mean)
    assert there.low <= there.mean + 1e-9 and there.mean - 1e-9 <= there.high


def test_other_questions_are_refused():
    with pytest.raises(ValueError, match="same tasks, seeds and questions"):
        paired_gain({"a": np.zeros((1, 3))}, {"a": np.zeros((1, 4))})
    with pytest.raises(ValueError, match="same seeds in every task"):
        bootstrap({"a": np.zeros((1, 3)), "b": np.zeros((2, 3))})


def _simulated(rng, seeds: int, questions: int, seed_deviation: float) -> np.ndarray:
    """Differences of two methods on questions of all difficulties; the true gain is that of the logistic model below."""
    hard, gain = rng.normal(0, 2, questions), rng.normal(0.3, 0.5, questions)
    luck = rng.normal(0, seed_deviation, (2, seeds, 1))
    odds = np.stack([hard + luck[0], hard + gain + luck[1]])
    right = rng.random((2, seeds, questions)) < 1 / (1 + np.exp(-odds))
    return right[1].astype(float) - right[0]


def test_intervals_hold_the_truth():
    """95 % intervals, 3 seeds with deviations of some 1.3 points, 300 questions: rather too wide than too narrow."""
    rng = np.random.default_rng(0)
    truth = _simulated(rng, 1000, 1000, 0.1).mean()
    said = [bootstrap({"a": _simulated(rng, 3, 300, 0.1)}, draws=300) for _ in range(200)]
    assert np.mean([interval.low <= truth <= interval.high for interval in said]) >= 0.93


def test_prediction_interval_holds_new_means():
    """Normal draws: a new mean of n lies within with 95 %; two deviations would hold 87 % and 77 %."""
    rng = np.random.default_rng(0)
    known = rng.normal(size=(40_000, 3))
    deviation = known.std(axis=1, ddof=1)
    for n, rule_of_thumb in ((3, 0.866), (1, 0.775)):
        away = abs(rng.normal(size=(40_000, n)).mean(axis=1) - known.mean(axis=1))
        factor = prediction_half_width(1.0, 3, n)
        assert np.mean(away <= factor * deviation) == pytest.approx(0.95, abs=0.005)
        assert np.mean(away <= 2 * deviation) == pytest.approx(rule_of_thumb, abs=0.01)
