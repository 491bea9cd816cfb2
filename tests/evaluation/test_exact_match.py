from decimal import Decimal

import pytest

from bitune_pl.evaluation.exact_match import before_stop, extract_number


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("$29.00.", 29),
        ("#### 9,500", 9500),
        ("The total is 72 clips, altogether.", 72),
        ("#### -5", -5),
        ("Q: 2 + 5? #### 7\nQ: 1 + 2? 1 + 2 = 3 #### 3", 3),
        ("#### $1,234,567.50 in all, of 12", Decimal("1234567.50")),
        ("We get 10-5", 5),
        ("4, 5, and 6,", 6),
        ("#### five, so 5", 5),
        ("it is 12 ####", 12),
        ("x = (3)-2", 2),
        ("-$5", -5),
    ],
)
def test_the_stated_number_is_found(text, gold):
    assert extract_number(text) == gold


@pytest.mark.parametrize("text", ["", "no idea,", "####", ",", "-"])
def test_no_number_is_none(text):
    assert extract_number(text) is None


def test_text_after_a_stop_string_is_dropped():
    assert before_stop("#### 5\n\nQuestion: next") == "#### 5\n"
    assert before_stop("Let me restate the Question: ... #### 5") == "Let me restate the Question: ... #### 5"
