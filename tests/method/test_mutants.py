"""The known answers fail on every wrong method of DESIGN section 5: a suite that cannot fail proves nothing."""

from unittest import mock

import pytest
import torch
from decoders import build, draw, tiny
from test_known_answers import flat

from bitune_pl import Bitune
from bitune_pl.method import attention, layout, routing, three_pass

ORIGINAL = {
    "parts": routing.Routed._parts,
    "read": attention._read,
    "mix": attention.mix,
    "build": layout.Layout.build.__func__,
}


def swapped_routes(self, x):
    (causal, left), *second = ORIGINAL["parts"](self, x)
    return [("bidirectional", left), ("causal", second[0][1])] if second else [(causal, left)]


def causal_second_reading(query, key, value, lengths, pattern, kernel):
    return ORIGINAL["read"](query, key, value, lengths, "causal", kernel)


def no_mixing(causal, bidirectional, alpha):
    return causal


def exchanged_sides(causal, bidirectional, alpha):
    return ORIGINAL["mix"](bidirectional, causal, alpha)


def positions_off_by_one(cls, samples, method, device=None):
    made = ORIGINAL["build"](cls, samples, method, device)
    first, answers, _ = made.regions
    made.position_ids[:, first : first + answers] += 1
    return made


def leaking_prompts(query, key, value, lengths, pattern, kernel):
    """All prompts of the batch as if they were one."""
    return ORIGINAL["read"](query, key, value, [sum(lengths)] if lengths else [], pattern, kernel)


def leaking_answers(self):
    """Several answers of a prompt as if they were one."""
    return torch.ones(len(self.ids), len(self.ids), dtype=torch.bool).tril()


MUTANTS = {
    "routes swapped": (routing.Routed, "_parts", swapped_routes),
    "second reading causal": (attention, "_read", causal_second_reading),
    "mixing dropped": (attention, "mix", no_mixing),
    "mixing with the two sides exchanged": (attention, "mix", exchanged_sides),
    "positions off by one": (layout.Layout, "build", classmethod(positions_off_by_one)),
    "prompts leaking into each other": (attention, "_read", leaking_prompts),
    "answers leaking into each other": (layout.Tree, "_on_the_way", leaking_answers),
}


def off() -> float:
    """How far one pass is from three, relative to the largest logit."""
    model, samples = build("llama"), draw([(13, (4, 2)), (7, (6,)), (1, (3,))])
    expected = flat(three_pass.answer_logits(model, samples))
    return ((flat(model.answer_logits(samples)) - expected).abs().max() / expected.abs().max()).item()


def test_the_method_itself_is_right():
    assert off() < 1e-5


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_method_is_found(mutant):
    with mock.patch("bitune_pl.method.probes._follows_the_pattern"):
        with mock.patch("bitune_pl.method.probes._keeps_samples_apart"), mock.patch.object(*MUTANTS[mutant]):
            assert off() > 1e-3


@pytest.mark.parametrize("mutant", ["second reading causal", "prompts leaking into each other"])
def test_load_refuses_a_decoder_that_ignores_the_pattern(mutant):
    torch.manual_seed(0)
    with mock.patch.object(*MUTANTS[mutant]), pytest.raises(ValueError, match="cannot be served"):
        Bitune.build(tiny("llama"))
