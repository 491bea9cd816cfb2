"""Choosing by log-likelihood, and scoring by generated numbers."""

import pytest
import torch

from bitune_pl.data.example import Example
from bitune_pl.data.sources import load
from bitune_pl.evaluation.choices import pick, score_choices
from bitune_pl.evaluation.evaluate import Score, evaluate
from bitune_pl.evaluation.run import open_base, open_either
from bitune_pl.sample import Sample


def test_pick_is_the_highest_sum_or_the_highest_per_length():
    choices = [torch.tensor([-1.0]), torch.tensor([-0.4, -0.4, -0.4]), torch.tensor([-0.5, -0.6])]
    assert pick(choices) == 0
    assert pick(choices, [1, 6, 2]) == 1


@pytest.fixture(scope="module")
def opened(tiny_base):
    return open_base(tiny_base)


def test_outcomes_are_those_of_each_choice_read_alone(opened):
    """More questions than a batch, of different lengths; outcomes come back in the rows' own order."""
    rows = load("categories", "validation", limit=20).examples
    rows = [Example("Hm. " * (i % 7) + row.prompt, row.answers, row.gold, row.where) for i, row in enumerate(rows)]
    outcomes = score_choices(opened.model, opened.encoder, rows)
    for row, outcome in zip(rows, outcomes, strict=True):
        sample = opened.encoder.choices(row)
        with torch.no_grad():
            alone = [opened.model.log_likelihood([Sample(sample.prompt, [answer])])[0][0] for answer in sample.answers]
        assert outcome.right == (pick(alone) == row.gold)
        assert outcome.right_per_character == (pick(alone, [len(a.strip()) for a in row.answers]) == row.gold)


def test_the_order_of_the_choices_changes_nothing(opened):
    """C03: ABCD and DCBA."""
    (row,) = load("categories", "validation", limit=1).examples
    there = opened.encoder.choices(row)
    back = Sample(there.prompt, there.answers[::-1])
    with torch.no_grad():
        one, other = opened.model.log_likelihood([there])[0], opened.model.log_likelihood([back])[0][::-1]
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)  # the base is in bfloat16


def test_a_row_without_a_right_choice_is_refused(opened):
    with pytest.raises(ValueError, match="row 3: this row does not say which choice is right, so it cannot be scored"):
        score_choices(opened.model, opened.encoder, [Example("Q", (" a", " b"), None, "row 3")])


class Parrot:
    """Answers each prompt with what it was told."""

    def __init__(self, encoder, said):
        self.encoder, self.said = encoder, said

    def generate(self, prompts, **options):
        texts = [self.encoder.decode(ids) for ids in prompts]
        return [self.encoder.prompt(self.said[text])[1:] for text in texts]


def test_generated_numbers_are_compared_and_silence_is_counted(opened):
    right = {"2 + 1?": " 2 + 1 = 3. #### 3\nQuestion: 9?", "4 + 4?": " That is $8.00."}
    said = right | {"1 + 1?": " #### 3", "5?": " no idea"}
    rows = [Example(q, (f" so #### {n}",), 0, q) for q, n in zip(said, (3, 8, 2, 5), strict=True)]
    score = evaluate(Parrot(opened.encoder, said), opened.encoder, "sums", rows)
    assert (score.n, score.accuracy, score.without_answer, score.per_character) == (4, 0.5, 1, None)


def test_the_standard_error_is_that_of_the_sample():
    assert Score("x", 5, 0.4, None, None, 0.0).standard_error == pytest.approx(0.5477 / 5**0.5, abs=1e-4)


def test_either_a_run_or_a_base_is_opened():
    with pytest.raises(ValueError, match="either --run FOLDER"):
        open_either("a", "b")
