"""Answers to one prompt that begin alike share places: a hand-drawn tree, and the logits of each answer alone."""

import pytest
import torch
from decoders import build

from bitune_pl import Sample
from bitune_pl.method.layout import Layout, Tree
from bitune_pl.method.variants import VARIANTS

ANSWERS = [[5, 6, 7], [5, 6, 8], [9], [4, 6, 7], [5, 6, 7], [5]]  # a repeated one, and 6 after two different beginnings


def ids(*tokens: int) -> torch.LongTensor:
    return torch.tensor(tokens, dtype=torch.long)


def test_a_tree_by_hand():
    """Start 1; then 5 or 4; then 6 after either: five places where the answers one by one take 14."""
    tree = Tree.build(ids(1), [ids(*answer) for answer in ANSWERS])
    assert tree.ids.tolist() == [1, 5, 6, 4, 6] and tree.depths.tolist() == [0, 1, 2, 1, 2]
    assert [way.tolist() for way in tree.ways] == [[0, 1, 2], [0, 1, 2], [0], [0, 3, 4], [0, 1, 2], [0]]
    on_the_way = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]
    assert tree.mask(2, None).int().tolist() == [[1, 1, *row] for row in on_the_way]
    windowed = [
        [0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]
    assert tree.mask(2, 2).int().tolist() == windowed


def test_one_answer_and_none():
    (one,) = (Tree.build(ids(1), [ids(5, 6)]),)
    assert one.ids.tolist() == [1, 5] and one.mask(1, None).int().tolist() == [[1, 1, 0], [1, 1, 1]]
    none, empty = Tree.build(ids(1), []), Tree.build(ids(1), [ids(), ids()])
    assert len(none.ids) == len(empty.ids) == 0 and [len(way) for way in empty.ways] == [0, 0]


def test_the_row_holds_what_is_shared_once():
    samples = [Sample(ids(2, 3, 1), [ids(*answer) for answer in ANSWERS]), Sample(ids(2, 1), [ids(7, 7)])]
    layout = Layout.build(samples, VARIANTS["plain"])
    assert layout.input_ids.tolist() == [[2, 3, 2, 1, 5, 6, 4, 6, 1, 7]]
    assert layout.position_ids.tolist() == [[0, 1, 0, 2, 3, 4, 3, 4, 1, 2]]
    assert layout.places == [5, 2] and layout.longest == 5
    assert layout.predicting().tolist() == [0, 1, 2, 0, 1, 2, 0, 0, 3, 4, 0, 1, 2, 0, 5, 6]


@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_answers_that_share_places_are_those_one_by_one(kind, method):
    """In logits and in gradients; with a window (gemma2) shorter than the prompt."""
    model, prompt = build(kind, method), torch.arange(3, 24)
    answers = [ids(*answer) for answer in ANSWERS]
    together = model.log_likelihood([Sample(prompt, answers)])[0]
    alone = [model.log_likelihood([Sample(prompt, [answer])])[0][0] for answer in answers]
    weights = [p for p in model.parameters() if p.requires_grad]
    slopes = []
    for scores in (together, alone):
        total = sum((i + 1) * tokens.sum() for i, tokens in enumerate(scores))
        slopes.append(torch.autograd.grad(total, weights, allow_unused=True))
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    for one, other in zip(*slopes, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
