"""What went wrong in other people's projects and must not here, by the number of the report.

Reports that other files test: C03 and C05 in `test_generation.py`, the rest of C06 in `test_known_answers.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from decoders import build, draw, randomise, tiny
from keep64 import Keep64
from test_known_answers import close, gradients, same

from bitune_pl import Bitune, Sample
from bitune_pl.method import three_pass
from bitune_pl.method.layout import Weights, reading

ROOT = Path(__file__).parents[2]


def keys(model: Bitune, samples: list[Sample]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each block: keys of every sample's first token in the causal pass and in the second pass."""
    seen = []
    with torch.no_grad():
        layout, *_ = model.read(samples, lambda module, key, *rest: seen.append(key[0]))
    first, answers, _ = layout.regions
    starts = torch.tensor([0, *layout.prompts[:-1]]).cumsum(0)
    return [(key[:, starts], key[:, first + answers + starts]) for key in seen]


@pytest.mark.parametrize("lengths", [(9,), (9, 9), (9, 4)], ids=["one", "equal", "unequal"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_c01_the_second_pass_is_bidirectional_whatever_the_batch(family, implementation, lengths):
    torch.manual_seed(0)
    decoder = tiny(family)
    if implementation == "sdpa" and not decoder.get_decoder()._supports_sdpa:
        pytest.skip("this family has no sdpa")
    decoder.set_attn_implementation(implementation)
    model = randomise(Bitune.build(decoder).eval())
    one, other = (draw([(length, (1,)) for length in lengths]) for _ in range(2))
    for sample in other:
        sample.prompt[-2] = (sample.prompt[-2] + 1) % 97
    blocks = list(zip(keys(model, one), keys(model, other), strict=True))
    for block, ((causal, second), (same_causal, other_second)) in enumerate(blocks):
        torch.testing.assert_close(causal, same_causal, rtol=0, atol=1e-6)
        moved = (second - other_second).abs().amax(dim=(0, 2))
        assert (moved > 1e-5).all() if block else (moved < 1e-6).all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_c01_another_attention_set_afterwards_is_refused(implementation):
    model = build("llama")
    model.decoder.set_attn_implementation(implementation)
    with pytest.raises(ValueError, match=f"attention is set to {implementation!r}.*set_attn_implementation.'bitune'"):
        model.loss(draw())
    model.decoder.set_attn_implementation("bitune")
    assert model.loss(draw()).isfinite()


LAYERS = {
    "gemma3": dict(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]),
    "mistral": dict(num_hidden_layers=2),
}


@pytest.mark.parametrize("family", LAYERS)
@pytest.mark.parametrize("variant", ["plain", "naive_bidir"])
def test_c02_windows_are_those_of_a_reference_without_a_cache(family, variant):
    """One forward, its mask written out: the second pass sees the whole prompt, everything else a window back."""
    torch.manual_seed(0)
    model = randomise(Bitune.build(tiny(family, sliding_window=4, **LAYERS[family]), variant).eval())
    [sample] = draw([(12, (3,))])
    ids, prefix = torch.cat([sample.prompt, sample.answers[0]])[None, :-1], 11
    back = torch.arange(14)[:, None] - torch.arange(14)
    full, sliding = back >= 0, (back >= 0) & (back < 4)
    if variant == "naive_bidir":
        full[:prefix, :prefix] = sliding[:prefix, :prefix] = True
    additive = {"full_attention": full, "sliding_attention": sliding}
    additive = {
        kind: torch.zeros(1, 1, 14, 14).masked_fill(~seen, torch.finfo(torch.float32).min)
        for kind, seen in additive.items()
    }
    mask = additive if family == "gemma3" else additive["sliding_attention"]
    with three_pass.stock_attention(model), reading(Weights("causal")), torch.no_grad():
        expected = model.decoder(ids, attention_mask=mask).logits[0, prefix:]
    close(model.answer_logits([sample])[0][0], expected)


@pytest.mark.parametrize("family", LAYERS)
def test_c02_every_layer_keeps_the_whole_prompt(family):
    torch.manual_seed(0)
    model = randomise(Bitune.build(tiny(family, sliding_window=4, **LAYERS[family])).eval())
    cache, _ = model.prefill([draw([(12, ())])[0].prompt])
    assert [layer.keys.shape[2] for layer in cache.layers] == [11, 11]


def test_c06_nothing_depends_on_who_shares_the_batch(family):
    """Loss, logits, gradients, and mixed keys and values; in the cache shorter prompts stand to the right."""
    lengths = [(3, (5,)), (9, (1,))]
    model, samples = (
        build(family, dtype=torch.float64),
        draw(lengths),
    )  # gradients of theta in float32 are half rounding
    with Keep64():
        pieces = sum(model.loss([sample], denominator=2) for sample in samples)
        same(gradients(model, pieces), gradients(model, model.loss(samples)))
    model = build(family)
    together, alone = model.answer_logits(samples), [model.answer_logits([sample])[0] for sample in samples]
    close(together, alone)
    torch.testing.assert_close(model.loss(samples), sum(model.loss([sample], denominator=2) for sample in samples))
    cache, mask = model.prefill([sample.prompt for sample in samples])
    for row, sample in enumerate(samples):
        single, _ = model.prefill([sample.prompt])
        for layer, own in zip(cache.layers, single.layers, strict=True):
            close(layer.keys[row][:, mask[row].bool()], own.keys[0])
            close(layer.values[row][:, mask[row].bool()], own.values[0])


@pytest.mark.parametrize("family", ["llama", "gemma", "gemma2", "gemma3", "phi", "mistral", "qwen3"])
def test_c09_nothing_of_the_pretrained_decoder_is_lost(family):
    """Untouched adapters and theta 0: soft-caps, norms of queries and keys, scales."""
    torch.manual_seed(0)
    decoder, [sample] = tiny(family), draw([(13, (5,))])
    ids = torch.cat([sample.prompt, sample.answers[0]])[None, :-1]
    expected = decoder(ids).logits[0, 12:].detach()
    model = Bitune.build(decoder).eval()
    with torch.no_grad():
        model.theta_k.zero_(), model.theta_v.zero_()
    close(model.answer_logits([sample])[0][0], expected)


def test_d07_checkpointing_on_a_frozen_base_trains_every_layer():
    torch.manual_seed(0)
    model = Bitune.build(tiny("llama")).train()
    model.checkpoint_activations()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for seed in range(3):
        model.loss(draw(seed=seed)).backward()
        optimizer.step()
        optimizer.zero_grad()
    ups = {n: p for n, p in model.named_parameters() if "lora_B" in n and p.requires_grad}
    assert {name for name, p in ups.items() if not p.any()} == set()
    for weights, layers in (("causal", 3), ("bidirectional", 3)):
        assert len({n.split(".layers.")[1][0] for n in ups if f".{weights}." in n}) == layers


@pytest.mark.parametrize("settings", [None, {"use_reentrant": True}, {"use_reentrant": False}])
def test_d07_checkpointing_turned_on_elsewhere_is_refused(settings):
    model = build("llama").train()
    model.decoder.gradient_checkpointing_enable(settings)
    with pytest.raises(
        ValueError, match="would train silently wrong here: turn it on with Bitune.checkpoint_activations"
    ):
        model.loss(draw())


UNDROPPABLE = ("ernie4_5",)  # takes the setting and has no dropout


def test_d07_dropout_is_replayed_as_it_fell(family):
    """In training, attention on a soft-cap's or a sink's path too; the mode decides, and evaluation has none."""
    name = {"gpt2": "attn_pdrop", "gptj": "attn_pdrop"}.get(family, "attention_dropout")
    torch.manual_seed(0)
    model = randomise(Bitune.build(tiny(family, **{name: 0.5})).eval())
    still = model.loss(draw()).item()
    assert still == pytest.approx(build(family).loss(draw()).item(), rel=1e-6)
    model.train()
    torch.manual_seed(5)
    kept = gradients(model, loss := model.loss(draw()))
    assert family in UNDROPPABLE or abs(loss.item() - still) > 1e-4
    model.checkpoint_activations()
    torch.manual_seed(5)
    again = gradients(model, model.loss(draw()))
    for key in kept:
        assert torch.equal(kept[key], again[key]), key


def test_e03_a_bfloat16_decoder_has_its_loss_in_float32():
    torch.manual_seed(0)
    model, samples = Bitune.build(tiny("llama").bfloat16()).eval(), draw([(9, (6,)), (4, (3,))])
    logits = model.answer_logits(samples)
    expected = [F.cross_entropy(rows[0].float(), s.answers[0]) for rows, s in zip(logits, samples, strict=True)]
    loss = model.loss(samples)
    assert logits[0][0].dtype == torch.bfloat16 and loss.dtype == torch.float32
    torch.testing.assert_close(loss, torch.stack(expected).mean())


MEMORY = """
import resource, sys, torch
from bitune_pl import Bitune, Sample
from decoders import from_settings
torch.manual_seed(0)
decoder = from_settings("llama", vocab_size=256000, tie_word_embeddings=True, num_hidden_layers=2)
model = Bitune.build(decoder.bfloat16()).train()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
ids = lambda n: torch.randint(0, 256000, (n,))
model.loss([Sample(ids(9), [ids(3)])]).backward()
before = peak()
model.loss([Sample(ids(int(sys.argv[1])), [ids(20)]) for _ in range(2)]).backward()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_e03_no_logits_for_the_prompt():
    """Over two readings of two prompts of 2000 tokens they would take 4 GiB in bfloat16, 8 in float32."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/method")]),
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run([sys.executable, "-c", MEMORY, "2000"], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.splitlines()[-1]) < 400, "MiB more at the peak than a short sample needs"
