"""Attention weights as the recorder keeps them are those of transformers' own attention, and nothing else changes."""

import pytest
import torch
from decoders import FAMILIES, MORE, build, draw
from test_known_answers import close
from torch.utils._python_dispatch import TorchDispatchMode

from bitune_pl import VARIANTS, Sample
from bitune_pl.method import three_pass
from bitune_pl.method.layout import Weights, reading
from bitune_pl.method.recorder import attention_maps
from bitune_pl.method.routing import active

SOFTCAP_WINDOW_SINKS = ["gemma2", "gemma3", "gpt_oss", "starcoder2"]


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in MORE if name not in SOFTCAP_WINDOW_SINKS]


@pytest.fixture(params=[*FAMILIES, *SOFTCAP_WINDOW_SINKS, *OTHERS])
def family(request) -> str:
    return request.param


def recorded(model, samples, **settings):
    with attention_maps(model, **settings) as maps, torch.no_grad():
        logits = model.answer_logits(samples)
    return maps, logits


def eager(model, weights: str, ids, **call) -> torch.Tensor:
    """Attention weights of transformers' eager attention, `(layers, heads, queries, keys)`."""
    with three_pass.stock_attention(model, "eager"), active(model.decoder, weights), reading(Weights(weights)):
        with torch.no_grad():
            return torch.cat(model.decoder(ids[None], output_attentions=True, **call).attentions)


def test_the_causal_pass_is_that_of_eager_attention(family):
    model, samples = build(family), draw()
    maps, _ = recorded(model, samples)
    assert len(maps) == len(samples)
    for found, sample in zip(maps, samples[:2], strict=False):
        close(found.causal, eager(model, "causal", sample.prompt[:-1]))


def test_the_second_pass_is_that_of_eager_attention_with_a_mask_that_hides_nothing(family):
    model, samples = build(family), draw()
    maps, _ = recorded(model, samples)
    for found, sample in zip(maps, samples[:2], strict=False):
        read = sample.prompt[:-1]
        nothing = torch.zeros(1, 1, len(read), len(read))
        positions = torch.arange(len(read))[None]
        close(found.second, eager(model, "bidirectional", read, attention_mask=nothing, position_ids=positions))


def test_answers_are_those_of_eager_attention_over_the_mixed_cache(family):
    model, samples = build(family), draw()
    maps, _ = recorded(model, samples)
    for found, sample in zip(maps, samples, strict=True):
        assert len(found.answers) == len(sample.answers)
        for weights, answer in zip(found.answers, sample.answers, strict=True):
            with three_pass.stock_attention(model, "eager"), torch.no_grad():
                cache = three_pass._mixed_cache(model, sample.prompt[:-1])
            ids, start = torch.cat([sample.prompt[-1:], answer[:-1]]), len(sample.prompt) - 1
            positions = torch.arange(start, start + len(ids))[None]
            close(weights, eager(model, "causal", ids, position_ids=positions, cache=cache, use_cache=True))


def test_a_softmax_by_hand():
    """Of the queries and keys that a hook sees: no mask in the second pass, a lower triangle in the causal one."""
    model, [sample], seen = build("gpt2", adapter="none"), draw([(9, (3,))]), []  # GPT-2 does not rotate its queries
    block = model.decoder.transformer.h[1].attn
    hook = block.c_attn.register_forward_hook(lambda module, given, out: seen.append(out[0].detach()))
    maps, _ = recorded(model, [sample])
    hook.remove()
    [row] = seen
    query, key, _ = (part.view(len(row), 4, 8).transpose(0, 1) for part in row.split(32, dim=1))
    second = slice(8 + 3, None)
    by_hand = torch.softmax(query[:, second] @ key[:, second].transpose(1, 2) / 8**0.5, dim=-1)
    close(maps[0].second[1], by_hand)
    scores = query[:, :8] @ key[:, :8].transpose(1, 2) / 8**0.5
    close(maps[0].causal[1], torch.softmax(scores + torch.full((8, 8), -torch.inf).triu(1), dim=-1))


def test_an_anti_causal_second_pass_is_that_of_eager_attention_with_its_mask():
    model, [sample] = build("llama", "anti_causal"), draw([(9, (3,))])
    read = sample.prompt[:-1]
    mask = three_pass._mask("anti_causal", len(read), torch.float32, read.device)
    expected = eager(model, "bidirectional", read, attention_mask=mask, position_ids=torch.arange(len(read))[None])
    close(recorded(model, [sample])[0][0].second, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_the_readings_that_it_makes(variant):
    method, [sample] = VARIANTS[variant], draw([(6, (3, 2))])
    maps, _ = recorded(build("llama", variant), [sample])
    read = 6 * method.prompt_copies - 1
    once, twice = method.second_pass is None or method.mixing, method.second_pass is not None
    assert (maps[0].causal is not None, maps[0].second is not None) == (once, twice)
    for weights in (maps[0].causal, maps[0].second):
        if weights is not None:
            assert weights.shape == (3, 4, read, read)
            close(weights.sum(-1), torch.ones(3, 4, read))
    assert [weights.shape for weights in maps[0].answers] == [(3, 4, 3, read + 3), (3, 4, 2, read + 2)]
    if method.second_pass == "anti_causal":
        assert not maps[0].second.tril(-1).any() and (maps[0].second.triu() > 0).any()


def test_logits_do_not_change(family):
    model, samples = build(family), draw()
    with torch.no_grad():
        before = model.answer_logits(samples)
    _, during = recorded(model, samples)
    for ours, theirs in zip(before, during, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class Count(TorchDispatchMode):
    """Counts what is computed."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


def test_off_means_no_work():
    """As many operations before as after, and more in between."""
    model, samples, counted = build("llama"), draw(), []
    for on in (False, True, False):
        with Count() as count, torch.no_grad():
            if on:
                recorded(model, samples)
            else:
                model.answer_logits(samples)
        counted.append(count.number)
    assert counted[0] == counted[2] < counted[1]


def test_heads_are_averaged_on_request_and_blocks_by_the_reader():
    model, samples = build("llama"), draw()
    whole, mean = recorded(model, samples)[0][0], recorded(model, samples, mean_heads=True)[0][0]
    assert mean.causal.shape == (3, 12, 12)
    close(mean.causal, whole.causal.mean(1))
    close(mean.second, whole.second.mean(1))
    close(mean.answers[0], whole.answers[0].mean(1))


def test_half_precision_is_recorded_in_float32():
    model, samples = build("llama"), draw()
    exact = recorded(model, samples)[0][0]
    half = recorded(model.bfloat16(), samples)[0][0]
    assert half.causal.dtype == torch.float32
    close(half.causal.sum(-1), torch.ones(3, 4, 12))
    close(half.causal[0], exact.causal[0], 0.1)


def test_dropout_is_left_out_and_training_goes_on():
    model, samples = build("llama"), draw()
    quiet = recorded(model, samples)[0][0]
    for block in model.decoder.model.layers:
        block.self_attn.attention_dropout = 0.5
    model.decoder.train()
    with attention_maps(model) as maps:
        model.loss(samples).backward()
    close(maps[0].causal[0], quiet.causal[0])
    assert model.theta_k.grad is not None and not maps[0].causal.requires_grad


def test_blocks_that_are_computed_again_are_recorded_once():
    model, samples = build("llama"), draw()
    kept = recorded(model, samples)[0]
    model.checkpoint_activations()
    model.decoder.train()
    with attention_maps(model) as maps:
        model.loss(samples).backward()
    assert len(maps) == len(samples)
    close(maps[0].causal, kept[0].causal)


def test_several_calls_follow_each_other_and_another_model_is_left_alone():
    model, other = build("llama"), build("llama", seed=1)
    first, second, third = draw()
    with attention_maps(model) as maps, torch.no_grad():
        model.answer_logits([first])
        other.answer_logits([second])
        model.answer_logits([second, third])
        model.prefill([first.prompt])
    assert len(maps) == 4 and [len(found.answers) for found in maps] == [1, 2, 1, 0]
    close(maps[3].second, maps[0].second)
    assert maps[2].causal.shape == (3, 4, 0, 0)  # a prompt that is a start token alone is not read
    with torch.no_grad():
        model.answer_logits([first])
    assert len(maps) == 4
    with pytest.raises(IndexError):
        maps[4]


def test_answers_that_begin_alike_are_recorded_each_on_its_own_way():
    """They share places in the row."""
    model, prompt = build("gemma2"), draw()[0].prompt
    answers = [torch.tensor(ids) for ids in ([7, 8, 9, 4], [7, 8, 5], [3, 8])]
    [together] = recorded(model, [Sample(prompt, answers)])[0]
    for found, answer in zip(together.answers, answers, strict=True):
        [alone] = recorded(model, [Sample(prompt, [answer])])[0]
        close(found, alone.answers[0])
