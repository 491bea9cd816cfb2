"""Verdicts on single cells."""

import pytest

from bitune_pl.reproduction.tables.published import Published
from bitune_pl.reproduction.tables.statistics import Summary
from bitune_pl.reproduction.tables.verdict import difference, verdict

SAME = ("Gemma-2B", "paper", (3000, 3000), (1838, 1838))


@pytest.mark.parametrize(
    ("mean", "n", "word"),
    [
        (50.0, 3, "within the published spread"),
        (53.5, 3, "within the published spread"),  # t(0.975, 2) = 4.303; times sqrt(2/3): 3.513 deviations
        (53.6, 3, "outside"),
        (46.4, 3, "outside"),
        (54.9, 1, "within the published spread"),  # times sqrt(4/3): 4.968
        (55.0, 1, "outside"),
    ],
)
def test_the_spread_of_three_published_seeds(mean, n, word):
    said = verdict(Summary(mean, 1.0, n), Published(50.0, 1.0), None)
    assert said.word == str(said) == word
    assert f"{said.low:.2f} to {said.high:.2f}" in said.why


@pytest.mark.parametrize(
    ("deviation", "n", "word"),
    [
        (6.27, 3, "within the published spread"),  # F(0.975, 2, 2) = 39 = 6.245 squared; half a unit of 1.00 is added
        (6.28, 3, "outside"),
        (0.16, 3, "within the published spread"),
        (0.15, 3, "outside"),
        (28.67, 2, "outside"),
        (28.67, 1, "within the published spread"),  # of one seed there is none
    ],
)
def test_the_deviation_is_held_against_the_published_one(deviation, n, word):
    said = verdict(Summary(50.0, deviation, n), Published(50.0, 1.0), None)
    assert said.word == word and ("the deviation" in said.why) == (n > 1)


def test_no_verdict_on_what_cannot_be_compared():
    ours = Summary(10.0, 1.0, 3)
    assert str(verdict(ours, Published(50.0, 1.0), "other model")) == "not comparable: other model"
    assert str(verdict(ours, None, "other model")) == "not in the paper"
    said = verdict(ours, Published(50.0, None), None)
    assert said.word == "no published spread" and "-40.00" in said.why


def test_what_keeps_from_comparing():
    assert difference(*SAME) is None
    assert difference("Gemma-2B", "published", (None, 3000), (1838, 1838)) is None
    assert difference(None, *SAME[1:]) == "other model"
    assert difference("Gemma-2B", "cpu", *SAME[2:]) == "other settings (profile cpu)"
    assert difference(*SAME[:2], (40, 3000), (1838, 1838)) == "other settings (40 updates, paper 3000)"
    assert difference(*SAME[:2], (1611, 1605), (1838, 1838)) is None, "the paper's own steps are that uncertain"
    assert difference(*SAME[:3], (200, 1838)) == "other questions (200 of 1838)"
