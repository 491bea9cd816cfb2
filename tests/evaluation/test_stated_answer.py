"""Final answers of worked answers: letters, numbers and texts of choices, and what must not be taken for one."""

import pytest

from bitune_pl.data.chain_of_thought import final_answer
from bitune_pl.evaluation.stated_answer import stated_answer

ANIMALS = ("a cat", "dog", "guide dog", "the icy sea")


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("Answer: B", "B"),
        ("Answer: B.", "B"),
        ("Answer: (b)", "B"),
        ("answer: b", "B"),
        ("Answer: [B] dog", "B"),
        ("Answer: **B**", "B"),
        ("**Answer:** B: dog", "B"),
        ("**Answer**: B", "B"),
        ("Answer:\n\nB", "B"),
        ("Answer: option B", "B"),
        ("Answer: B because it barks", "B"),
        ("Answer: B\n\nSo it barks.", "B"),
        ("The answer is B.", "B"),
        ("The correct answer is (B), a dog.", "B"),
        ("The answer is: B", "B"),
        ("<answer>\nB\n</answer>", "B"),
        ("So it is $\\boxed{B}$.", "B"),
        ("So it is \\boxed{\\text{B}}", "B"),
        ("Answer: A\nAnswer: B", "B"),
        ("Answer: B\n\nAnswer:", "B"),
        ("Answer: B. The answer is a thing that barks.", "B"),
        ("The answer is near. It is a dog.\nAnswer: B", "B"),
        ("Answer: A", "A"),
        ("Answer: A because it purrs", "A"),
        ("Answer: A, because it purrs", "A"),
        ("Answer: B, I think", "B"),
    ],
)
@pytest.mark.parametrize("choices", [(), ANIMALS])
def test_a_letter(answer, final, choices):
    assert stated_answer(answer, choices) == final


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Answer:",
        "Answer: none",
        "It is B",
        "B",
        "Answer: A dog's life",
        "Answer: I think so",
        "Answer: a beast",
        "Answer: A or B",
        "Answer: (A) and (B)",
        "Answer: A, B",
        "Answer: A/B",
        "The answers B and C are wrong.",
        "The answer is not B.",
    ],
)
def test_no_letter(answer):
    assert stated_answer(answer) is None


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("Answer: dog", "B"),
        ("Answer: A dog", "B"),
        ("The answer is a Dog.", "B"),
        ("Answer: the dog, because it barks", "B"),
        ("Answer: guide dog", "C"),
        ("Answer: Icy sea", "D"),
        ("Answer: A cat", "A"),
        ("Answer: dogs", None),
        ("Answer: E", None),
        ("Answer: 2", None),
        ("Answer: I have 2", None),
    ],
)
def test_the_text_of_a_choice_stands_for_its_letter(answer, final):
    assert stated_answer(answer, ANIMALS) == final


def test_a_text_that_two_choices_have_stands_for_none():
    assert stated_answer("Answer: x", ("x", "x")) is None
    assert stated_answer("Answer: 3", ("5", "3")) == "B"


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("Answer: 1,072.", "1072"),
        ("Answer: $18 a day, for 3 days", "18"),
        ("Answer: 50%", "50"),
        ("Answer: -5", "-5"),
        ("Answer: \u22125", "-5"),
        ("Answer: 0.50", "0.5"),
        ("Answer: 29.00", "29"),
        ("Answer: There are 72 clips.", "72"),
        ("Answer: I have 5 clips", "5"),
        ("Answer: x = 72", "72"),
        ("Answer: X = 72", "72"),
        ("Answer: 48 / 2 = 24", "24"),
        ("Answer: 1/2", "0.5"),
        ("So \\boxed{1{,}072}.", "1072"),
        ("#### 72", "72"),
        ("He sold 5. The answer is 72.", "72"),
        ("Answer: 3\n\nSo no.\n\nAnswer: 4", "4"),
        ("Answer: many\n5", None),
    ],
)
def test_a_number(answer, final):
    assert stated_answer(answer) == final


@pytest.mark.parametrize(
    "answer", ["Answer: B", " So.\n\nAnswer: C", "Answer: 1072", "Answer: $1,072.00", "Answer: -5"]
)
def test_what_is_in_the_trained_form_is_read_alike(answer):
    assert stated_answer(answer) == final_answer(answer)
