"""A base in 4 bits: trained over with LoRA, DoRA and IA3, never written to; what does not go together is refused (D06)."""

import importlib.util
from unittest import mock

import pytest
import torch
from decoders import draw, randomise, tiny
from test_known_answers import close, flat, gradients

from bitune_pl import VARIANTS, Bitune, load_decoder
from bitune_pl.method import three_pass
from bitune_pl.method.fingerprint import fingerprint

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
ADAPTERS, TYPES = ["lora", "dora", "ia3"], [torch.float32, torch.bfloat16]
WIDE = dict(hidden_size=64, intermediate_size=128)  # a scale of 4-bit weights goes with 64 of them


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    tiny("llama", **WIDE).save_pretrained(path)
    return str(path)


def packed(folder: str, dtype=torch.float32, variant="bitune", adapter="lora", **settings) -> Bitune:
    torch.manual_seed(0)
    decoder = load_decoder(folder, dtype, quantization="4bit")
    return randomise(Bitune.build(decoder, variant, adapter, **settings).eval())


def packed_bytes(model: Bitune) -> dict[str, torch.Tensor]:
    """Everything of the base: packed weights and their scales, embeddings, norms."""
    state = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    scales = {n: p.quant_state.absmax.clone() for n, p in model.named_parameters() if hasattr(p, "quant_state")}
    return state | {f"{name} scales": scale for name, scale in scales.items()}


@needs_bitsandbytes
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_one_pass_equals_three_passes(folder, adapter, variant):
    """Logits, loss and gradients in float32, with activation checkpointing too."""
    model, samples = packed(folder, variant=variant, adapter=adapter), draw([(13, (4,)), (7, (6,)), (2, (3,))])
    close(model.answer_logits(samples), three_pass.answer_logits(model, samples))
    theirs = gradients(model, three_pass.loss(model, samples))
    for _ in ("kept", "checkpointed"):
        ours = gradients(model, model.loss(samples))
        for name, gradient in ours.items():
            limit = 1e-4 * max(theirs[name].abs().max().item(), 1e-3)
            torch.testing.assert_close(gradient, theirs[name], rtol=0, atol=limit, msg=name)
        model.checkpoint_activations()
        model.train()


@needs_bitsandbytes
def test_a_base_stored_in_bfloat16_is_the_same_packed_from_either_type(tmp_path):
    tiny("llama", **WIDE).bfloat16().save_pretrained(tmp_path / "base")
    packed(str(tmp_path / "base"), torch.bfloat16).save_pretrained(tmp_path / "model")
    assert Bitune.from_pretrained(tmp_path / "model", dtype=torch.float32).decoder.dtype == torch.float32


@needs_bitsandbytes
@pytest.mark.parametrize("dtype", TYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_it_trains_and_comes_back_and_the_base_is_never_written_to(folder, adapter, dtype, tmp_path):
    """Scored between steps: bitsandbytes would then pack the weights anew, with coarser scales."""
    model = packed(folder, dtype, adapter=adapter, start_token="<sep>")
    end = torch.tensor([model.start_token_id])
    samples = [type(s)(torch.cat([s.prompt, end]), s.answers) for s in draw()]
    before, trained = packed_bytes(model), {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert any(name.endswith("scales") for name in before) and any(t.dtype == torch.uint8 for t in before.values())
    start, optimizer = {n: p.clone() for n, p in trained.items()}, torch.optim.AdamW(trained.values(), lr=0.05)
    losses = []
    for _ in range(6):
        loss = model.train().loss(samples)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        with torch.no_grad():
            model.eval().answer_logits(samples)
    assert losses[-1] < losses[0] and all(not torch.equal(p, start[n]) for n, p in trained.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in packed_bytes(model).items())
    assert fingerprint(model.decoder) == model.base_fingerprint
    model.save_pretrained(tmp_path / "model")
    again = Bitune.from_pretrained(tmp_path / "model")
    assert again.decoder.is_loaded_in_4bit and again.decoder.dtype == dtype
    assert torch.equal(flat(again.answer_logits(samples)), flat(model.answer_logits(samples)))
    other = torch.float32 if dtype == torch.bfloat16 else torch.bfloat16
    with pytest.raises(ValueError, match="packed in 4bit from .* it has other weights: leave the dtype out"):
        Bitune.from_pretrained(tmp_path / "model", dtype=other)
    assert [len(new) for new in again.generate([s.prompt for s in samples], max_new_tokens=3, eos_token_id=None)] == [
        3
    ] * 3


@needs_bitsandbytes
def test_the_type_of_the_base_is_that_of_what_it_computes(folder):
    for dtype in TYPES:
        for adapter in [*ADAPTERS, "none"]:
            model = packed(folder, dtype, adapter=adapter)
            assert model.answer_logits(draw())[0][0].dtype == dtype


@needs_bitsandbytes
def test_an_unpacked_base_is_another_base(folder, tmp_path):
    packed(folder).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="this decoder has other weights"):
        Bitune.from_pretrained(tmp_path / "model", load_decoder(folder, torch.float32))


@needs_bitsandbytes
def test_full_copies_of_packed_weights_are_refused(folder):
    with pytest.raises(ValueError, match="weights of a quantised base cannot be trained: choose lora, dora or ia3"):
        packed(folder, adapter="full")


def test_8_bits_are_refused_wherever_the_decoder_comes_from():
    decoder = tiny("llama")
    decoder.is_loaded_in_8bit = True
    with pytest.raises(ValueError, match="quantization 8bit is not offered: one forward pass differed from three"):
        Bitune.build(decoder)


@pytest.mark.parametrize(
    ("quantization", "base", "why"),
    [
        ("8bit", "nowhere", "8bit is not offered"),
        ("4", "nowhere", "quantization is null or '4bit', not '4'"),
        ("4bit", "nowhere.gguf", "quantised already and is unpacked"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(quantization, base, why):
    with pytest.raises(ValueError, match=why):
        load_decoder(base, quantization=quantization)


def test_a_missing_package_is_named():
    with mock.patch("importlib.util.find_spec", return_value=None):
        with pytest.raises(ModuleNotFoundError, match="needs the package bitsandbytes: pip install"):
            load_decoder("nowhere", quantization="4bit")
