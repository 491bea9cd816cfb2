"""What is known in advance, over every family of decoders (DESIGN 5.1-5.7, 5.9)."""

import copy
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from decoders import WINDOW, build, draw, tiny
from keep64 import Keep64
from transformers import DynamicCache

from bitune_pl import VARIANTS, Bitune, Sample
from bitune_pl.method import likelihood, three_pass
from bitune_pl.method.adapters import owned
from bitune_pl.method.layout import Weights, reading

MIXING = [name for name, method in VARIANTS.items() if method.mixing]


def flat(nested) -> torch.Tensor:
    return torch.cat([answer for sample in nested for answer in sample])


def close(actual, expected, tolerance: float = 1e-5) -> None:
    """Within a tolerance relative to the largest value compared."""
    actual, expected = (x if isinstance(x, torch.Tensor) else flat(x) for x in (actual, expected))
    assert actual.shape == expected.shape
    off = (actual - expected).abs().max() / expected.abs().max()
    assert off <= tolerance, f"off by {off:.1e}"


def set_theta(model: Bitune, value: float) -> Bitune:
    with torch.no_grad():
        model.theta_k.fill_(value)
        model.theta_v.fill_(value)
    return model


def share_weights(model: Bitune, other: Bitune) -> Bitune:
    """Give a model the other's causal weights, and its bidirectional ones where both have them."""
    with torch.no_grad():
        theirs = dict(other.named_parameters())
        for name, parameter in model.named_parameters():
            if name in theirs:
                parameter.copy_(theirs[name])
    return model


def twins(model: Bitune) -> Bitune:
    """Make the bidirectional weights equal to the causal ones."""
    with torch.no_grad():
        pairs = zip(
            owned(model.decoder, "causal").values(), owned(model.decoder, "bidirectional").values(), strict=True
        )
        for causal, bidirectional in pairs:
            bidirectional.copy_(causal)
    return model


def test_plain_equals_one_ordinary_forward(family):
    model = build(family, "plain")
    [sample] = draw([(13, (5,))])
    [[logits]] = model.answer_logits([sample])
    ids = torch.cat([sample.prompt, sample.answers[0]])[None, :-1]
    with three_pass.stock_attention(model, "eager"), reading(Weights("causal")):
        expected = model.decoder(ids).logits[0, 12:]
    close(logits, expected)


@pytest.mark.parametrize("variant", MIXING)
def test_theta_zero_equals_plain(family, variant):
    model = set_theta(build(family, variant), 0.0)
    close(model.answer_logits(draw()), share_weights(build(family, "plain"), model).answer_logits(draw()))


def test_theta_infinite_equals_no_mixing(family):
    model = set_theta(build(family), 1e30)
    close(model.answer_logits(draw()), share_weights(build(family, "no_mixing"), model).answer_logits(draw()))


def test_only_causal_with_equal_weights_equals_plain(family):
    model = twins(build(family, "only_causal"))
    plain = share_weights(build(family, "plain"), model)
    for theta in (-0.3, 1e-3, 5.0):
        close(set_theta(model, theta).answer_logits(draw()), plain.answer_logits(draw()))


def test_naive_bidir_equals_a_prefix_language_model(family):
    """One ordinary forward whose mask lets the prefix, which ends before the start token, see itself whole."""
    model = build(family, "naive_bidir")
    [sample] = draw([(13, (5,))])
    [[logits]] = model.answer_logits([sample])
    ids, prefix = torch.cat([sample.prompt, sample.answers[0]])[None, :-1], 12
    first, rest = torch.arange(ids.shape[1])[None].split([prefix, 5], dim=1)
    with reading(Weights("causal")):
        cache = DynamicCache()
        with three_pass.stock_attention(model, "eager"):
            whole = torch.zeros(1, 1, prefix, prefix)
            model.decoder(ids[:, :prefix], attention_mask=whole, position_ids=first, cache=cache, use_cache=True)
            expected = model.decoder(ids[:, prefix:], position_ids=rest, cache=cache, use_cache=True).logits[0]
    close(logits, expected)


def test_echo_equals_an_ordinary_forward_over_the_prompt_twice(family):
    model = build(family, "echo")
    [sample] = draw([(13, (5,))])
    plain = share_weights(build(family, "plain"), model)
    close(model.answer_logits([sample]), plain.answer_logits([Sample(sample.prompt.repeat(2), sample.answers)]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_equals_its_rows(family, variant):
    model = build(family, variant)
    together = model.answer_logits(draw())
    alone = [model.answer_logits([Sample(s.prompt, [a])])[0] for s in draw() for a in s.answers]
    close(together, alone)


def gradients(model: Bitune, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("weighting", ["sample", "token"])
def test_a_batch_equals_accumulated_singles(family, weighting):
    """In loss and in gradient, given the denominator of the whole update."""
    model, samples = build(family, dtype=torch.float64), draw([(13, (4, 1)), (7, (9,)), (4, (2,))])
    count = 4 if weighting == "sample" else 16
    singles = [Sample(s.prompt, [a]) for s in samples for a in s.answers]
    with Keep64():
        whole = model.loss(samples, weighting)
        pieces = sum(model.loss([single], weighting, denominator=count) for single in singles)
        same(gradients(model, pieces), gradients(model, whole))
    assert pieces.item() == pytest.approx(whole.item(), rel=1e-9)


def same(ours: dict, theirs: dict, tolerance: float = 1e-9) -> None:
    """Gradients within a tolerance relative to the largest entry of each."""
    for name, gradient in ours.items():
        off = (gradient - theirs[name]).abs().max() / theirs[name].abs().max().clamp_min(1e-6)
        assert off <= tolerance, f"{name} is off by {off:.1e}"


@pytest.mark.parametrize("chunk", [1, 97 * 4, 2**25], ids=["place by place", "in chunks", "whole"])
def test_the_loss_is_the_cross_entropy_of_the_logits(family, chunk):
    """In value and gradient, however many logits are made at a time."""
    model, samples = build(family, dtype=torch.float64), draw()
    answers = [answer for sample in samples for answer in sample.answers]
    with Keep64(), mock.patch.object(likelihood, "CHUNK", chunk):
        logits = [logit for row in model.answer_logits(samples) for logit in row]
        each = [F.cross_entropy(logit, answer) for logit, answer in zip(logits, answers, strict=True)]
        theirs = gradients(model, torch.stack(each).mean())
        loss = model.loss(samples)
        ours = gradients(model, loss)
        tokens = model.loss(samples, "token")
    assert loss.item() == pytest.approx(torch.stack(each).mean().item(), rel=1e-9)
    assert tokens.item() == pytest.approx(F.cross_entropy(torch.cat(logits), torch.cat(answers)).item(), rel=1e-9)
    same(ours, theirs)


def test_one_pass_equals_three_passes_in_float32(family):
    """With the products of experts that decoders use by default, which have no float64."""
    model, samples = build(family), draw([(13, (4,)), (7, (6,)), (2, (3,))])
    close(model.answer_logits(samples), three_pass.answer_logits(model, samples))
    theirs = gradients(model, three_pass.loss(model, samples))
    same(gradients(model, model.loss(samples)), theirs, 1e-4)


def test_two_checkpointed_forwards_before_one_backward(family):
    """Each replayed block finds the layout of its own forward."""
    model = build(family).train()
    batches = [draw([(13, (4,))]), draw([(5, (7,)), (9, (2, 2))], seed=2)]
    kept = gradients(model, sum(model.loss(batch) for batch in batches))
    model.checkpoint_activations()
    replayed = gradients(model, sum(model.loss(batch) for batch in batches))
    for name in kept:
        assert torch.equal(kept[name], replayed[name]), name


def reached_by_three_passes(model: Bitune) -> set[str]:
    """Weights that the specification gives a gradient, when every one of them asks for it."""
    model = copy.deepcopy(model)
    for name in model.method.weight_sets:
        for weight in owned(model.decoder, name).values():
            weight.requires_grad_(True)
    model.zero_grad()
    three_pass.loss(model, draw()).backward()
    return {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}


def test_which_weights_are_trained(family):
    """Exactly those that three passes reach: all but the bidirectional ones after the last block's keys and values."""
    model = build(family)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == reached_by_three_passes(model)
    frozen = set().union(*(owned(model.decoder, name) for name in model.method.weight_sets))
    frozen -= {name.removeprefix("decoder.") for name in trained}
    assert frozen and all("bidirectional" in n and ".0." not in n and ".1." not in n for n in frozen)
    found = gradients(model, model.loss(draw()))
    assert all(gradient.any() for gradient in found.values()), [n for n, g in found.items() if not g.any()]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "olmoe", "qwen3_moe"])
def test_experts_and_their_router_are_adapted(family):
    """Though they are parameters of three axes and no linear layers."""
    model = build(family)
    for weights in ("causal", "bidirectional"):
        for part in ("gate.lora_A", "experts.lora_A", "experts.base_layer.lora_A"):
            assert model.get_parameter(f"decoder.model.layers.0.mlp.{part}.{weights}.weight").requires_grad


def test_which_weights_are_frozen_by_name():
    last = "model.layers.2.{}.lora_{}.bidirectional.weight"
    modules = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    model = build("llama")
    frozen = {n for n, p in owned(model.decoder, "bidirectional").items() if not p.requires_grad}
    assert frozen == {last.format(module, matrix) for module in modules for matrix in "AB"}


def test_the_last_prefilled_token_reaches_the_first_in_the_second_pass_only(family):
    """The leak test: keys of the first token, from the second block on."""
    model = build(family)
    assert WINDOW < 12
    [sample] = draw([(13, (1,))])
    other = copy.deepcopy(sample)
    other.prompt[-2] = (other.prompt[-2] + 1) % 97
    one, two = (probe(model, s) for s in (sample, other))
    for block, (a, b) in enumerate(zip(one, two, strict=True)):
        assert torch.equal(a[:, :, 0], b[:, :, 0])
        assert block == 0 or not torch.equal(a[:, :, 13], b[:, :, 13])


def probe(model: Bitune, sample: Sample) -> list[torch.Tensor]:
    keys = []
    with torch.no_grad():
        layout, *_ = model.read([sample], lambda module, key, *rest: keys.append(key))
    assert layout.regions == (12, 1, 12)
    return keys


@pytest.mark.parametrize("base", [False, True], ids=["head", "whole"])
def test_untouched_adapters_with_theta_zero_equal_the_pretrained_decoder(family, base):
    """Soft-caps, scales and whatever else a family does stay as they are."""
    decoder, [sample] = tiny(family), draw([(13, (5,))])
    ids = torch.cat([sample.prompt, sample.answers[0]])[None, :-1]
    expected = decoder(ids).logits[0, 12:].detach()
    model = Bitune.build(decoder, "plain" if base else "bitune", "none" if base else "lora").eval()
    if not base:
        set_theta(model, 0.0)
    close(model.answer_logits([sample])[0][0], expected)
    scores = expected.log_softmax(-1).gather(1, sample.answers[0][:, None])[:, 0]
    close(model.log_likelihood([sample])[0][0], scores)
