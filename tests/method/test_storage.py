"""A folder holds everything but the base, in formats others read; a part that is missing is an error (D03)."""

import json
import shutil

import pytest
import torch
from decoders import ALL, build, draw, tiny
from peft import LoraConfig, PeftConfig, PeftModel
from safetensors.torch import load_file, save_file
from test_known_answers import close, flat
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from bitune_pl import Bitune
from bitune_pl.method import fingerprint, three_pass
from bitune_pl.method.backbone import lasting_name
from bitune_pl.method.variants import Method


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(0)
    tiny("llama").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def fresh(base):
    from bitune_pl import load_decoder

    return load_decoder(str(base), torch.float32)


def test_full_copies_of_some_layers_come_back(tmp_path):
    model = build("llama", "bitune", "full", adapter_settings={"target_modules": ["q_proj", "mlp.down_proj"]})
    model.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    again = Bitune.from_pretrained(tmp_path / "model", tiny("llama"))
    assert torch.equal(flat(again.answer_logits(draw())), flat(model.answer_logits(draw())))


def test_a_decoder_as_pretrained_comes_back(tmp_path):
    model = build("llama", "plain", "none")
    model.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    again = Bitune.from_pretrained(tmp_path / "model", tiny("llama"))
    assert torch.equal(flat(again.answer_logits(draw())), flat(model.answer_logits(draw())))


@pytest.mark.parametrize("given", [None, torch.bfloat16])
def test_a_bfloat16_base_comes_back_with_its_float32_rotary_frequencies(base, tmp_path, given):
    from bitune_pl import load_decoder

    model = Bitune.build(load_decoder(str(base), torch.bfloat16)).eval()
    model.save_pretrained(tmp_path / "model")
    again = Bitune.from_pretrained(tmp_path / "model", dtype=given)
    expected, found = dict(model.named_buffers()), dict(again.named_buffers())
    assert expected.keys() == found.keys()
    assert all(
        found[name].dtype == buffer.dtype and torch.equal(found[name], buffer) for name, buffer in expected.items()
    )
    assert torch.equal(flat(again.answer_logits(draw())), flat(model.answer_logits(draw())))


def test_the_folder_names_its_base(base, tmp_path):
    model = Bitune.build(fresh(base))
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(
        flat(Bitune.from_pretrained(tmp_path / "model", dtype=torch.float32).answer_logits(draw())),
        flat(model.eval().answer_logits(draw())),
    )
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "bidirectional",
        "bitune.json",
        "causal",
        "theta.safetensors",
    ]


@pytest.mark.parametrize("load", [None, AutoModelForCausalLM.from_pretrained])
def test_a_base_named_by_a_relative_path_is_found_from_elsewhere(base, tmp_path, monkeypatch, load):
    monkeypatch.chdir(tmp_path)
    model = Bitune.build((load or fresh)("base"))
    model.save_pretrained("model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = Bitune.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert torch.equal(flat(again.answer_logits(draw())), flat(model.eval().answer_logits(draw())))
    assert PeftConfig.from_pretrained(tmp_path / "model" / "causal").base_model_name_or_path == str(tmp_path / "base")


def test_names_that_are_no_paths_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert [lasting_name(name) for name in ("", "smollm2", "google/gemma-2b")] == ["", "smollm2", "google/gemma-2b"]


def test_causal_weights_open_in_plain_peft(base, tmp_path):
    torch.manual_seed(1)
    model = Bitune.build(fresh(base), "plain").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    [sample] = draw([(13, (5,))])
    model.save_pretrained(tmp_path / "model")
    theirs = PeftModel.from_pretrained(fresh(base), tmp_path / "model" / "causal")
    ids = torch.cat([sample.prompt, sample.answers[0]])[None, :-1]
    close(model.answer_logits([sample])[0][0], theirs(ids).logits[0, 12:])


def test_a_method_without_a_name_and_a_users_lora_come_back(base, tmp_path):
    method = Method(second_pass="anti_causal", mixing=False)
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], use_rslora=True)
    model = Bitune.build(fresh(base), method, config, theta_init=0.1, adapter_dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    again = Bitune.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert again.method == method and again.theta_k is None and again.alphas() == {}
    assert torch.equal(flat(again.answer_logits(draw())), flat(model.eval().answer_logits(draw())))


@pytest.mark.parametrize(
    "part",
    [
        "bidirectional",
        "causal",
        "theta.safetensors",
        "bitune.json",
        "causal/adapter_model.safetensors",
        "causal/adapter_config.json",
        "bidirectional/adapter_model.safetensors",
        "bidirectional/adapter_config.json",
    ],  # fmt: skip
)
def test_a_missing_part_is_named(base, tmp_path, part):
    Bitune.build(fresh(base)).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{part.split('/')[-1]}.*whole model folder|bitune.json is missing"):
        Bitune.from_pretrained(tmp_path / "model")


def test_a_missing_tensor_is_named(base, tmp_path):
    Bitune.build(fresh(base)).save_pretrained(tmp_path / "model")
    path = tmp_path / "model/bidirectional/adapter_model.safetensors"
    tensors = load_file(path)
    gone = sorted(tensors)[0]
    del tensors[gone]
    save_file(tensors, path)
    with pytest.raises(ValueError, match=gone.removeprefix("base_model.model.")):
        Bitune.from_pretrained(tmp_path / "model")


def test_another_base_is_refused(base, tmp_path):
    Bitune.build(fresh(base)).save_pretrained(tmp_path / "model")
    torch.manual_seed(9)
    with pytest.raises(ValueError, match="other weights"):
        Bitune.from_pretrained(tmp_path / "model", tiny("llama"))


OTHER_SETTINGS = {
    "granite": ("attention_multiplier", "embedding_multiplier", "residual_multiplier"),
    "olmoe": ("num_experts_per_tok", "norm_topk_prob", "clip_qkv"),
    "smollm3": ("no_rope_layers",),
    "gemma2": ("query_pre_attn_scalar", "attn_logit_softcapping", "sliding_window", "hidden_activation"),
    "llama": ("rms_norm_eps", "hidden_act"),
}
VALUES = {
    "num_experts_per_tok": 1,
    "query_pre_attn_scalar": 3,
    "norm_topk_prob": True,
    "no_rope_layers": [0, 1, 1],
    "sliding_window": 3,
}
VALUES |= {"hidden_activation": "relu", "hidden_act": "relu", "rms_norm_eps": 0.5}


@pytest.mark.parametrize("family", OTHER_SETTINGS)
def test_a_base_with_another_setting_is_refused(family, tmp_path):
    """One that no weight tells, and that changes what the decoder computes."""
    torch.manual_seed(0)
    model = Bitune.build(tiny(family), "plain", "none").eval()
    model.save_pretrained(tmp_path / "model")
    before = flat(model.answer_logits(draw()))
    for name in OTHER_SETTINGS[family]:
        torch.manual_seed(0)
        other = tiny(family, **{name: VALUES.get(name, 0.125)})
        with pytest.raises(ValueError, match=r"this decoder has other settings .in its config.json.: load that base"):
            Bitune.from_pretrained(tmp_path / "model", other)
        changed = flat(Bitune.build(other, "plain", "none").answer_logits(draw()))
        assert not torch.allclose(before, changed, atol=1e-3), name


@pytest.mark.parametrize("family", ALL)
def test_saving_a_base_does_not_change_its_settings(family, tmp_path):
    """Nor does what only says how it is run or trained."""
    config = tiny(family).config
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    again.use_cache, again.dtype, again.eos_token_id = False, torch.bfloat16, 4
    for name in ("attention_dropout", "resid_pdrop", "initializer_range"):
        setattr(again, name, 0.5)
    assert fingerprint.told(again.get_text_config()) == fingerprint.told(config.get_text_config())


def test_a_mark_of_another_version_is_told_as_such(base, tmp_path):
    Bitune.build(fresh(base)).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "bitune.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "0123456789abcdef" * 2}))
    with pytest.raises(ValueError, match="model carries a mark of its base that this version .* train it again[.]$"):
        Bitune.from_pretrained(tmp_path / "model")


def test_the_base_may_come_in_another_type(base, tmp_path):
    Bitune.build(fresh(base)).save_pretrained(tmp_path / "model")
    model = Bitune.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    assert model.decoder.dtype == torch.bfloat16 and model.theta_k.dtype == torch.float32


def test_a_loaded_model_still_equals_three_passes(base, tmp_path):
    build("llama").save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    again = Bitune.from_pretrained(tmp_path / "model", tiny("llama"))
    close(again.answer_logits(draw()), three_pass.answer_logits(again, draw()))


def test_a_decoder_of_several_types_keeps_them(base, tmp_path):
    Bitune.build(fresh(base)).save_pretrained(tmp_path / "model")
    decoder = fresh(base).bfloat16()
    decoder.model.norm.float()
    assert Bitune.from_pretrained(tmp_path / "model", decoder).decoder.model.norm.weight.dtype == torch.float32


def test_d04_each_file_holds_exactly_its_own_tensors(base, tmp_path):
    model = Bitune.build(fresh(base))
    model.save_pretrained(tmp_path / "model")
    adapted = sum(hasattr(module, "lora_A") for module in model.decoder.modules())
    for name in ("causal", "bidirectional"):
        tensors = load_file(tmp_path / "model" / name / "adapter_model.safetensors")
        assert len(tensors) == 2 * adapted and not any("causal" in key or "bidirectional" in key for key in tensors)


class Around(nn.Module):
    """A module of a decoder that is called as a set of weights is."""

    def __init__(self, inner):
        super().__init__()
        self.causal = inner

    def forward(self, x):
        return self.causal(x)


def test_d04_a_module_called_like_a_set_of_weights_is_refused_before_training(base):
    decoder = fresh(base)
    for block in decoder.model.layers:
        block.mlp = Around(block.mlp)
    with pytest.raises(ValueError, match="itself called like a set of weights; rename it"):
        Bitune.build(decoder)
