"""Drawings of the method: the row, who attends to whom, and equation 8."""

import numpy as np
import pytest
import torch
from drawn import curves
from matplotlib.colors import to_hex

from bitune_pl import VARIANTS, Bitune, Sample, load_decoder
from bitune_pl.method.layout import Layout
from bitune_pl.method.recorder import attention_maps
from bitune_pl.reproduction.figures.drawings import REGIONS, attended, draw_attended, draw_layout, draw_mixing

SAMPLES = [
    Sample(torch.arange(6), [torch.tensor([7, 8, 9]), torch.tensor([7, 3, 4, 5])]),  # they begin alike
    Sample(torch.arange(3), [torch.arange(1)]),
]


@pytest.fixture
def model(tiny_base):
    return lambda variant: Bitune.build(load_decoder(tiny_base, torch.float32), variant).eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_who_attends_to_whom_is_what_attention_does(variant, model):
    """Against the recorded weights: seen is where they are above zero."""
    model, layout = model(variant), Layout.build(SAMPLES, VARIANTS[variant])
    with attention_maps(model, mean_heads=True) as maps, torch.no_grad():
        model.answer_logits(SAMPLES)
    seen, first, answer = attended(layout), 0, layout.regions[0]
    second = sum(layout.regions[:2])
    expected = torch.zeros_like(seen)
    for sample, length, tree in zip(maps, layout.prompts, layout.trees, strict=True):
        if sample.causal is not None:
            expected[first : first + length, first : first + length] = (sample.causal.sum(0) > 0) * 1
        if sample.second is not None:
            expected[second : second + length, second : second + length] = (sample.second.sum(0) > 0) * 2
        for weights, way in zip(sample.answers, tree.ways, strict=True):
            own = answer + way
            expected[own[:, None], own] = (weights.sum(0)[:, length:] > 0) * 4
            for start in [first] * (sample.causal is not None) + [second] * (sample.second is not None):
                expected[own, start : start + length] = (weights.sum(0)[:, :length] > 0) * 3
        answer += len(tree.ids)
        first, second = first + length, second + length
    assert torch.equal(seen, expected)


def test_what_is_drawn_of_it_is_that():
    layout = Layout.build(SAMPLES, VARIANTS["bitune"])
    [image] = draw_attended(layout).axes[0].images
    assert np.array_equal(image.get_array(), attended(layout).numpy())


def test_the_row_has_every_token_with_its_position_in_the_colour_of_its_region():
    layout = Layout.build(SAMPLES, VARIANTS["bitune"])
    [axis] = draw_layout(layout, [f"t{i}" for i in range(layout.rows)]).axes
    written = [text.get_text() for text in axis.texts if text.get_text() not in REGIONS]
    assert written[::2] == [f"t{i}" for i in range(layout.rows)]
    assert written[1::2] == [str(p) for p in layout.position_ids[0].tolist()]
    colours = [to_hex(patch.get_facecolor()) for patch in axis.patches]
    named = list(REGIONS.values())
    assert [named.index(colour) for colour in colours] == [0] * 7 + [1] * 6 + [2] * 7
    bars = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axis.get_lines()}
    places = [(patch.get_x(), patch.get_y() - 0.1) for patch in axis.patches]
    assert [i for i, place in enumerate(places) if place in bars] == [0, 5, 7, 10, 12, 13, 18]  # 10: " 3" after " 7"
    edges = [patch.get_x() + patch.get_width() for patch in axis.patches]
    assert max(edges) <= axis.get_xlim()[1]
    with pytest.raises(ValueError, match="The row has 20 tokens, and texts are given for 1"):
        draw_layout(layout, ["t"])


def test_a_long_row_is_wrapped():
    layout = Layout.build([Sample(torch.arange(90))], VARIANTS["plain"])
    [axis] = draw_layout(layout, ["word"] * 89).axes
    assert len({patch.get_y() for patch in axis.patches}) > 3


def test_the_mixing_curve_is_equation_8():
    [axis] = draw_mixing((0.1, 0.01)).axes
    for theta_init, (theta, alpha) in zip((0.1, 0.01), curves(axis).values(), strict=True):
        assert alpha == pytest.approx([abs(t) / (theta_init + abs(t)) for t in theta], abs=1e-6)
    dots = [line.get_data() for line in axis.get_lines() if line.get_marker() == "o"]
    assert dots == [([0.1], [0.5]), ([0.01], [0.5])]
