import itertools

import numpy as np
import pytest

from bitune_pl.evaluation.paired import mcnemar, mean_gain, paired_gain


def test_the_gain_is_the_mean_difference_inside_its_interval():
    before, after = [0, 0, 1, 1] * 50, [1, 0, 1, 1] * 50
    gain = paired_gain(before, after)
    assert gain.mean == pytest.approx(0.25)
    # a proportion of 0.25 over 200 questions: standard error 0.0306
    assert gain.low == pytest.approx(0.19, abs=0.01) and gain.high == pytest.approx(0.31, abs=0.01)


def test_the_interval_is_that_of_all_samples_with_replacement():
    """Three questions have 27 samples, which can be listed."""
    before, after = [0, 1, 0], [1, 0, 0]
    means = np.repeat([np.mean(sample) for sample in itertools.product([1, -1, 0], repeat=3)], 1000)
    for level in (0.5, 0.8, 0.95):
        gain = paired_gain(before, after, level=level, draws=50_000)
        assert gain[1:] == pytest.approx(np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))


def test_scipy_finds_the_same_interval():
    from scipy.stats import bootstrap

    draw = np.random.default_rng(3)
    before, after = draw.integers(0, 2, 300), draw.integers(0, 2, 300)
    theirs = bootstrap(
        (before, after), lambda b, a, axis: (a - b).mean(axis=axis), paired=True, method="percentile",
        confidence_level=0.95, n_resamples=10_000, rng=np.random.default_rng(4),
    )  # fmt: skip
    ours = paired_gain(before, after)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.005)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.005)


def test_the_size_of_a_task_does_not_weigh_in_the_mean_of_tasks():
    """Gains of 1/2 on four questions and of 0 on forty: 1/4 between them, where all questions together gain 1/22."""
    small, large = ([0, 0, 1, 1], [1, 1, 1, 1]), ([1] * 40, [1] * 40)
    gain = mean_gain([small, large])
    assert gain.mean == pytest.approx(0.25)
    alone = paired_gain(*small)
    assert (gain.low, gain.high) == pytest.approx((alone.low / 2, alone.high / 2), abs=0.07)


def test_many_questions_take_little_memory():
    """A picture of draws x questions would take 11 GB."""
    gain = paired_gain([0, 1] * 70_000, [1, 1] * 70_000)
    assert gain.mean == 0.5 and gain.high - gain.low == pytest.approx(2 * 1.96 * 0.5 / 140_000**0.5, rel=0.05)


def test_equal_outcomes_have_no_gain():
    assert paired_gain([1, 0, 1], [1, 0, 1]) == (0, 0, 0)


def test_other_questions_are_refused():
    with pytest.raises(ValueError, match="same questions on both sides; there are 2 before and 3 after"):
        paired_gain([1, 0], [1, 0, 1])


@pytest.mark.parametrize(
    ("only_before", "only_after", "p"),
    [
        (0, 0, 1.0),
        (1, 1, 1.0),  # 2 (1 + 2) / 4, cut at 1
        (0, 5, 0.0625),  # 2 / 32
        (1, 5, 0.21875),  # 2 (1 + 6) / 64
        (8, 2, 0.109375),  # 2 (1 + 10 + 45) / 1024
    ],
)
def test_mcnemar_by_hand(only_before, only_after, p):
    before = [1] * only_before + [0] * only_after + [1, 0]
    after = [0] * only_before + [1] * only_after + [1, 0]
    assert mcnemar(before, after) == (only_before, only_after, p)


@pytest.mark.parametrize(("only_before", "only_after"), [(3, 9), (40, 61), (2900, 3100)])
def test_mcnemar_is_the_binomial_test(only_before, only_after):
    from scipy.stats import binomtest

    found = mcnemar([1] * only_before + [0] * only_after, [0] * only_before + [1] * only_after)
    assert found.p == pytest.approx(binomtest(only_before, only_before + only_after).pvalue, rel=1e-9)
