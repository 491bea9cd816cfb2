"""What a generated answer states: numbers (H07) and letters."""

import pytest

from bitune_pl.evaluation.answers import number, stated, worked

H07 = [
    ("29", "So she pays $29.00."),
    ("9500", "5000 + 4500 = 9500. #### 9,500"),
    ("72", "The total is 72 clips, altogether."),
    ("-5", "It falls. #### -5"),
    ("3", "Question: 2 + 5? #### 7\n\nQuestion: 1 + 2? 1 + 2 = 3. #### 3"),
]


@pytest.mark.parametrize(("gold", "text"), H07)
def test_H07_a_right_number_counts_however_it_is_written(gold, text):
    scores = number({"answer": f" so #### {gold}"}, [text])
    assert scores["exact_match_flexible"] == 1 and scores["without_answer"] == 0


@pytest.mark.parametrize(("gold", "text"), H07)
def test_H07_a_wrong_number_does_not(gold, text):
    assert number({"answer": f" so #### {int(gold) + 1}"}, [text])["exact_match_flexible"] == 0


@pytest.mark.parametrize("text", ["", "no idea,", ",", "####"])
def test_H07_no_number_is_wrong_and_counted(text):
    scores = {"exact_match_strict": 0, "exact_match_flexible": 0, "without_answer": 1}
    assert number({"answer": " #### 0"}, [text]) == scores


@pytest.mark.parametrize(
    ("text", "gold", "strict", "flexible"),
    [
        ("so #### 9,500", "9500", 1, 1),
        ("#### -5.", "-5", 1, 1),
        ("#### 5.0 eggs", "5", 0, 1),
        ("5", "5", 0, 1),
        ("#### $5", "5", 0, 1),
        ("#### ,", "5", 0, 0),
        ("#### 5\n\n#### 6", "5", 1, 0),
    ],
)
def test_H07_strict_is_as_the_harness_has_it_and_flexible_by_value(text, gold, strict, flexible):
    scores = number({"answer": f" so #### {gold}"}, [text])
    assert (scores["exact_match_strict"], scores["exact_match_flexible"]) == (strict, flexible)


def test_silence_is_never_right():
    assert number({"answer": " none"}, ["no idea"]) == worked({"answer": " none"}, ["no idea"])
    assert number({"answer": " none"}, ["no idea"])["exact_match_strict"] == 0


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (" Dogs eat meat.\n\nAnswer: B", 1, 1),
        (" Dogs eat meat.\n\nAnswer: (B).", 0, 1),
        (" Answer: A\n\nNo.\n\nAnswer: B", 1, 1),
        (" Dogs eat meat, so the answer is (B).", 0, 1),
        (" Not (A), so (B)", 0, 1),
        (" A dog eats meat.", 0, 0),
        (" The answer is C", 0, 0),
        ("", 0, 0),
    ],
)
def test_letters(text, strict, flexible):
    scores = worked({"answer": " Answer: B"}, [text])
    assert (scores["exact_match_strict"], scores["exact_match_flexible"]) == (strict, flexible)


@pytest.mark.parametrize(
    ("text", "flexible"),
    [
        (" It barks, so the answer is a dog.", 1),
        (" Answer: the dog", 1),
        (" Answer: a cat", 0),
        (" Answer: C", 0),
        (" It has 4 legs.", 0),
        (" Not (A), so (B)", 1),
    ],
)
def test_the_text_of_a_listed_choice_stands_for_its_letter(text, flexible):
    scores = worked({"answer": " Answer: B", "choices": ["cat", "dog"]}, [text])
    assert (scores["exact_match_strict"], scores["exact_match_flexible"]) == (0, flexible)
    assert scores["without_answer"] == float(text in (" Answer: C", " It has 4 legs."))


def test_numbers_of_worked_answers():
    assert worked({"answer": " Answer: 1072"}, [" 1000 + 72\n\nAnswer: $1,072.00"])["exact_match_strict"] == 1
    assert worked({"answer": " Answer: 1072"}, [" that makes 1,072 eggs"])["exact_match_flexible"] == 1
    assert stated("nothing", 0) is None


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("18", " Janet (J) has 16 eggs. 9 * 2 = 18 dollars."),
        ("18", " Answer: X: 18"),
        ("15", " Answer: 15 = 3 + 12"),
        ("15", " #### 15 = 3 * 5"),
    ],
)
def test_where_the_answer_is_a_number_no_letter_is_taken_for_it(gold, text):
    assert worked({"answer": f" Answer: {gold}", "choices": None}, [text])["exact_match_flexible"] == 1


def test_a_letter_that_stands_for_no_choice_is_none():
    scores = worked({"answer": " Answer: B", "choices": ["cat", "dog"]}, [" Dogs (B) bark, says (C)"])
    assert scores["exact_match_flexible"] == 1
    assert worked({"answer": " Answer: B", "choices": ["cat", "dog"]}, [" says (C)"])["without_answer"] == 1
