"""`bitune verify` passes what is right and fails what is wrong, on a base that is a configuration and nothing else."""

import subprocess
import sys
from contextlib import ExitStack
from unittest import mock

import pytest
import torch
from decoders import ALL, COMMON, DORA_ON_EXPERTS
from test_mutants import MUTANTS
from transformers import AutoConfig

from bitune_pl import VARIANTS, Bitune
from bitune_pl.cli import main
from bitune_pl.method import adapter_files
from bitune_pl.method.small_copy import ENOUGH, LAYERS, Shrunk, parameters, random_copy
from bitune_pl.method.subject import Subject


@pytest.fixture
def verify(tmp_path, capsys):
    """Runs the command on a configuration; returns its exit status and what it printed."""

    def run(settings: dict, *argv: str) -> tuple[int, str]:
        AutoConfig.for_model(**settings).save_pretrained(tmp_path)
        status = main(["verify", "--base", str(tmp_path), *argv])
        return status, "".join(capsys.readouterr())

    return run


def of(family: str, **changes) -> dict:
    return {**COMMON, **ALL[family], **changes}


def failed(text: str) -> set[str]:
    """Names of the rungs that failed."""
    return {line[:50].strip() for line in text.splitlines() if "  FAIL" in line}


def test_a_good_decoder_passes(family, verify):
    status, text = verify(of(family))
    assert status == 0 and not failed(text), text
    assert text.count("  PASS") == 13 and "13 of 13 passed" in text
    assert "in float32" in text and "trained tensors, their gradients in float64" in text


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_passes(variant, verify):
    status, text = verify(of("mistral"), "--method", variant)
    assert status == 0, text


@pytest.mark.parametrize("adapter", ["dora", "ia3", "full", "none"])
def test_every_adapter_passes(family, adapter, verify):
    if (family, adapter) in DORA_ON_EXPERTS:
        status, text = verify(of(family), "--adapter", adapter)
        assert status == 2 and "PEFT cannot put this adapter" in text
        return
    status, text = verify(of(family), "--adapter", adapter)
    assert status == 0, text


def test_without_trained_weights_nothing_is_said_about_gradients(verify):
    status, text = verify(of("llama"), "--method", "plain", "--adapter", "none")
    assert status == 0 and "0 trained tensors" in text and "gradient" not in text


FAILS = {
    "routes swapped": "one pass = three passes: logits",
    "second reading causal": "second pass: the first token sees the last",
    "mixing dropped": "one pass = three passes: every gradient",
    "mixing with the two sides exchanged": "generation from the cache = three passes",
    "positions off by one": "one pass = three passes: logits",
    "prompts leaking into each other": "a batch = its samples one by one: logits",
    "answers leaking into each other": "answers to one prompt = one by one: logits",
}
"""The rung that each wrong method must fail, among others."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_method_fails(mutant, verify):
    """Also where the probes at load, which refuse some of them, see nothing."""
    probes = ("_follows_the_pattern", "_keeps_samples_apart")
    with ExitStack() as stack:
        for probe in probes:
            stack.enter_context(mock.patch(f"bitune_pl.method.probes.{probe}"))
        stack.enter_context(mock.patch.object(*MUTANTS[mutant]))
        status, text = verify(of("llama"))
    assert status == 1 and FAILS[mutant] in failed(text), text
    assert "passed in" in text


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "rung"),
    [
        (adapter_files, "load", lambda *_: None, "saved and loaded: logits"),
        (Bitune, "_freeze_unreachable", lambda model: None, "trained weights without a gradient"),
        (Bitune, "checkpoint_activations", lambda model: 1 / 0, "activations recomputed = kept: gradients"),
        (
            Bitune,
            "generate",
            lambda model, prompts, **_: [torch.full((6,), 5)] * len(prompts),
            "generation from the cache = three passes",
        ),
    ],
    ids=["not loaded", "nothing frozen", "no checkpointing", "other tokens"],
)
def test_each_further_rung_can_fail(owner, name, wrong, rung, verify):
    with mock.patch.object(owner, name, wrong):
        status, text = verify(of("llama"))
    assert status == 1 and rung in failed(text), text


def test_what_cannot_be_served_is_refused_in_a_sentence(verify):
    status, text = verify(dict(model_type="bloom", n_head=4, n_layer=3, hidden_size=32, vocab_size=97))
    assert status == 2 and "bitune: This decoder (bloom) cannot be served: " in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--base", "./nowhere"], "There is no folder ./nowhere"),
        (["--base", "."], "holds no config.json"),
        (["--method", "biune"], "There is no variant 'biune'"),
        (["--adapter", "lorra"], "lorra"),
        (["--bas", "x"], "--bas"),
    ],
)
def test_a_mistake_is_one_sentence(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *argv]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("bitune: ") and message in line


PUBLISHED: dict[str, dict] = {
    "gemma-2b": dict(
        model_type="gemma", vocab_size=256000, hidden_size=2048, intermediate_size=16384, num_hidden_layers=18,
        num_attention_heads=8, num_key_value_heads=1, head_dim=256, max_position_embeddings=8192,
    ),
    "llama3-8b": dict(
        model_type="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, bos_token_id=128000,
        eos_token_id=[128001, 128009], rope_parameters=dict(rope_type="default", rope_theta=500000.0),
    ),
    "phi-2": dict(
        model_type="phi", vocab_size=51200, hidden_size=2560, intermediate_size=10240, num_hidden_layers=32,
        num_attention_heads=32, partial_rotary_factor=0.4, max_position_embeddings=2048, resid_pdrop=0.1,
    ),
    "gemma3-270m": dict(
        model_type="gemma3_text", vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18,
        num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=512,
    ),
    "qwen3-30b-a3b": dict(
        model_type="qwen3_moe", vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, moe_intermediate_size=768, num_experts=128,
        num_experts_per_tok=8,
    ),
    "gpt2": dict(model_type="gpt2"),
    "gpt-j-6b": dict(model_type="gptj"),
    "opt-350m": dict(
        model_type="opt", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096,
        word_embed_proj_dim=512, do_layer_norm_before=False,
    ),
    "gpt-neox-20b": dict(model_type="gpt_neox"),
    "mistral-7b": dict(model_type="mistral", sliding_window=4096),
    "gpt-oss-20b": dict(model_type="gpt_oss"),
}  # fmt: skip
"""Configurations in the sizes that were published (`transformers` has those of the last ones as its defaults)."""

QUICK = ("gemma-2b", "llama3-8b", "phi-2")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PUBLISHED]
)
def test_large_decoders_are_made_small(name, verify):
    config = AutoConfig.for_model(**PUBLISHED[name])
    small = Shrunk(config)
    assert parameters(small.config) <= ENOUGH and small.text.num_hidden_layers == LAYERS
    if not getattr(config.get_text_config(), "head_dim", None):
        before, after = (c.hidden_size / c.num_attention_heads for c in (config.get_text_config(), small.text))
        assert before == after
    status, text = verify(PUBLISHED[name])
    assert status == 0, text


@pytest.mark.slow
def test_a_decoder_inside_a_model_of_pictures(verify):
    status, text = verify(dict(model_type="gemma3"), "--adapter", "none")
    assert status == 0 and "num_hidden_layers 2 in place of 26" in text, text


def test_two_different_layers_are_kept_and_changes_are_told(verify):
    layers = ["sliding_attention"] * 5 + ["full_attention"]
    settings = of("gemma3", num_hidden_layers=6, layer_types=layers, sliding_window=512, vocab_size=1000)
    small = Shrunk(AutoConfig.for_model(**settings))
    assert small.text.layer_types == ["sliding_attention", "full_attention"]
    status, text = verify(settings)
    assert status == 0, text
    for change in (
        "num_hidden_layers 2 in place of 6",
        "sliding_window 5 in place of 512",
        "vocab_size 512 in place of",
    ):
        assert change in text


def test_weights_are_of_either_sign_and_nothing_is_as_fresh():
    subject = Subject(random_copy(Shrunk(AutoConfig.for_model(**of("llama"))).config), "bitune", "lora")
    for theta in (subject.model.theta_k, subject.model.theta_v):
        assert theta.min() < 0 < theta.max()
    assert all(weight.min() < 0 < weight.max() for weight in subject.owned.values())


def test_help_needs_no_torch():
    code = "import sys; from bitune_pl.method.verify import _parser; _parser(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_what_a_config_says_is_proven(verify, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text(
        'model: {base: elsewhere, adapter: dora, adapter_settings: {r: 4}, start_token: "<sep>", lr: 1.0}\n'
    )
    status, text = verify(of("llama"), "--config", str(config), "--method", "only_causal")
    assert status == 0 and "method only_causal, adapter dora" in text, text


@pytest.mark.parametrize("text, why", [("[", "is not YAML"), ("- a", "is no config"), (None, "There is no config")])
def test_a_config_that_is_none(verify, tmp_path, text, why):
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    status, said = verify(of("llama"), "--config", str(tmp_path / "mine.yaml"))
    assert status == 2 and why in said
