"""Table 26: what is drawn is what the recorder saw, under labels that can be read."""

import numpy as np
import pytest
import torch

from bitune_pl import Sample
from bitune_pl.data.sources import load
from bitune_pl.evaluation.run import open_run
from bitune_pl.method.recorder import attention_maps
from bitune_pl.reproduction.figures.attention import draw_attention, read_question, read_questions, visible


@pytest.fixture(scope="module")
def opened(runs):
    return open_run(runs["usual"])


def test_maps_are_means_over_blocks_and_heads(opened):
    prompt = load("sums", "test", limit=1).examples[0].prompt
    question = read_question(opened.model, opened.encoder, prompt)
    with attention_maps(opened.model) as maps, torch.no_grad():
        opened.model.answer_logits([Sample(opened.encoder.prompt(prompt))])
    assert list(question.maps) == ["causal pass", "bidirectional second pass"]
    for found, expected in zip(question.maps.values(), (maps[0].causal, maps[0].second), strict=True):
        assert np.allclose(found, expected.mean((0, 1)).numpy(), atol=1e-6)
        assert np.allclose(found.sum(1), 1, atol=1e-5)
    assert not np.triu(question.maps["causal pass"], 1).any()
    assert (question.maps["bidirectional second pass"] > 0).all()


def test_what_is_drawn_is_what_was_read_and_tokens_are_labels(opened):
    questions = [read_question(opened.model, opened.encoder, text) for text in ("Question: a $5?\n\nAnswer:", "b c d")]
    figure = draw_attention(questions)
    maps = [axis for axis in figure.axes if axis.images and axis.get_label() != "<colorbar>"]
    expected = [weights for question in questions for weights in question.maps.values()]
    assert len(maps) == 4
    for axis, weights in zip(maps, expected, strict=True):
        drawn = axis.images[0].get_array()
        assert np.array_equal(drawn.filled(0), weights) and np.array_equal(drawn.mask, weights == 0)
    labels = [text.get_text() for text in maps[0].get_yticklabels()]
    ids = opened.encoder.prompt("Question: a $5?\n\nAnswer:")[:-1].tolist()
    assert labels == [visible(opened.encoder.tokenizer.decode([i])) for i in ids]
    assert {"$", "↵"} <= set("".join(labels))


def test_labels_do_not_overlap(opened):
    """At the figure's own size, of 60 tokens."""
    prompt = load("sums", "test", limit=1).examples[0].prompt
    figure = draw_attention([read_question(opened.model, opened.encoder, prompt)])
    figure.draw_without_rendering()
    axis = figure.axes[0]
    boxes = [text.get_window_extent() for text in axis.get_yticklabels()]
    assert len(boxes) > 40
    assert all(low.y0 >= high.y1 or high.y0 >= low.y1 for low, high in zip(boxes, boxes[1:], strict=False))
    assert axis.get_yticklabels()[0].get_fontsize() >= 5
    columns = [text.get_window_extent() for text in axis.get_xticklabels()]
    assert all(a.x1 <= b.x0 for a, b in zip(columns, columns[1:], strict=False))


def test_a_run_without_a_second_pass_has_one_map(runs):
    opened = open_run(runs["plain"])
    assert list(read_question(opened.model, opened.encoder, "a b").maps) == ["causal pass"]


@pytest.mark.parametrize("prompts", [["a " * 2000], ["a b"] * 600])
def test_more_tokens_than_can_be_drawn_are_refused_before_the_model_is_asked(opened, monkeypatch, prompts):
    monkeypatch.setattr(type(opened.model), "read", None)
    with pytest.raises(ValueError, match="has room for 512 tokens, and these questions have"):
        read_questions(opened.model, opened.encoder, prompts)


@pytest.mark.parametrize(("token", "shown"), [(" the", "the"), ("\n\n", "↵↵"), (" ", "␣"), ("$", "$"), ("", "␣")])
def test_every_token_shows(token, shown):
    assert visible(token) == shown
