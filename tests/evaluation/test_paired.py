import pytest

from bitune_pl.evaluation.paired import paired_gain


def test_the_gain_is_the_mean_difference_inside_its_interval():
    before, after = [0, 0, 1, 1] * 50, [1, 0, 1, 1] * 50
    gain = paired_gain(before, after)
    assert gain.mean == pytest.approx(0.25)
    # a proportion of 0.25 over 200 questions: standard error 0.0306
    assert gain.low == pytest.approx(0.19, abs=0.01) and gain.high == pytest.approx(0.31, abs=0.01)


def test_equal_outcomes_have_no_gain():
    assert paired_gain([1, 0, 1], [1, 0, 1]) == (0, 0, 0)


def test_other_questions_are_refused():
    with pytest.raises(ValueError, match="same questions on both sides; there are 2 before and 3 after"):
        paired_gain([1, 0], [1, 0, 1])
