from decimal import Decimal

import pytest

from bitune_pl.data.sources import load
from bitune_pl.evaluation.exact_match import extract_number, strict_number


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
        ("the total - 5 of them", 5),
        ("#### - 5", -5),
        ("#### \u22125", -5),
        ("so 1,000 \u2212 5 = 995", 995),
        ("#### 18\n\nConfidence: 95%", 18),
        ("#### 9 * 2 = 18", 18),
        ("it is $\\boxed{1{,}072}$.", 1072),
        ("3 of 4, which is 3/4", Decimal("0.75")),
        ("#### .5", Decimal("0.5")),
        ("20 apples at 30% off", 30),
    ],
)
def test_the_stated_number_is_found(text, gold):
    assert extract_number(text) == gold


@pytest.mark.parametrize("text", ["", "no idea,", "####", ",", "-"])
def test_no_number_is_none(text):
    assert extract_number(text) is None


TEXTS = [
    "#### 9,500", "#### 9,500.", "#### -5", "#### 29.00", "#### $29", "####29", "#### ,", "#### .", "#### 5 #### 6",
    "a ####\n#### 7 apples", "It is 8", "", "#### 1.2.3", "#### \u22125", "#### 3/4", "#### 5\n\nQuestion: #### 6",
]  # fmt: skip


@pytest.mark.parametrize("gold", ["so #### 9,500", "#### -5", "#### 29", "#### 7", "#### 5"])
def test_strict_matches_are_those_of_the_harness(gold):
    """H07: its own filter and metric on the same texts, with the settings of its GSM8K task."""
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    found = RegexFilter(regex_pattern=r"#### (\-?[0-9\.\,]+)").apply([[text] for text in TEXTS], [{}] * len(TEXTS))
    ignored = [",", "\\$", "(?s).*#### ", "\\.$"]
    for text, (theirs,) in zip(TEXTS, found, strict=True):
        right = exact_match_hf_evaluate([theirs], [gold], regexes_to_ignore=ignored, ignore_case=True)["exact_match"]
        assert (strict_number(text) == strict_number(gold)) == bool(right), text


@pytest.mark.parametrize("text", ["", "It is 8", "#### $29", "#### ,", "####29", "#### five"])
def test_no_strict_number(text):
    assert strict_number(text) is None


def test_each_gold_answer_is_found_both_ways(shared):
    rows = load("gsm8k", "test", shared / "data").examples
    assert len(rows) == 1319
    for row in rows:
        strict = strict_number(row.answer)
        assert strict == row.answer.rpartition("#### ")[2].replace(",", "") and extract_number(row.answer) == Decimal(
            strict
        )
