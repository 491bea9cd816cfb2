"""The embedded data: enough rows, all different, validation never seen in training, right answers right."""

import re

from bitune_pl.data import synthetic
from bitune_pl.data.synthetic import KINDS, WORDINGS


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-zA-Z]+", text))


def test_kinds_and_wordings():
    everything = [word for both in KINDS.values() for part in both for word in part.split()]
    assert len(KINDS) >= 12 and len(WORDINGS) >= 8
    assert len(everything) == len(set(everything)), "a word of two kinds has no one answer"


def test_categories():
    train, validation = synthetic.categories("train"), synthetic.categories("validation")
    assert len(train) >= 1500 and len(validation) >= 400
    questions = [row["question"] for row in train + validation]
    assert len(set(questions)) == len(questions)
    kind_of = {word: kind for kind, both in KINDS.items() for part in both for word in part.split()}
    for row in train + validation:
        assert len(row["choices"]) == 4 and set(row["choices"]) <= words(row["question"])
        asked = kind_of[row["choices"][row["answer"]]]
        assert asked in row["question"]
        assert [kind_of[choice] for choice in row["choices"]].count(asked) == 1


def test_validation_words_are_never_seen_in_training():
    held_out = {word for _, part in KINDS.values() for word in part.split()}
    assert not any(
        held_out & words(row["question"] + " ".join(row["choices"])) for row in synthetic.categories("train")
    )
    assert all(set(row["choices"]) <= held_out for row in synthetic.categories("validation"))


def test_no_position_is_favoured():
    positions = [row["answer"] for row in synthetic.categories("validation")[:200]]
    assert all(45 <= positions.count(i) <= 55 for i in range(4))


def test_sums():
    train, validation = synthetic.sums("train"), synthetic.sums("validation")
    assert len(train) >= 1500 and len(validation) >= 400
    questions = [row["question"] for row in train + validation]
    assert len(set(questions)) == len(questions)
    for row in train + validation:
        steps = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", row["answer"])
        assert len(steps) == 2 and row["answer"].endswith(f"\n#### {steps[-1][3]}")
        assert all(eval(a + sign + b) == int(result) for a, sign, b, result in steps)


def test_the_same_rows_every_time():
    assert synthetic.categories("train") == synthetic.categories("train")
    assert synthetic.sums("validation") == synthetic.sums("validation")
