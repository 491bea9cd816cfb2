"""What is adapted, from what start, and what one step moves: the paper's settings, the published code's, and a user's."""

import pytest
import torch
from decoders import DORA_ON_EXPERTS, NO_EXPERTS, build, draw, randomise, tiny
from peft import IA3Config, LoraConfig
from test_known_answers import close, flat
from transformers import AutoModelForCausalLM, Gemma3Config

from bitune_pl import VARIANTS, Bitune
from bitune_pl.method import three_pass
from bitune_pl.method.adapters import owned
from bitune_pl.method.fingerprint import base_weights

ADAPTERS = ["lora", "dora", "ia3", "full"]


@pytest.mark.parametrize("start_token", [None, "<sep>"])
@pytest.mark.parametrize("adapter", [*ADAPTERS, "none"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_large_step_moves_all_that_is_trained_and_nothing_else(variant, adapter, start_token):
    if adapter == "none" and not VARIANTS[variant].mixing and start_token is None:
        pytest.skip("nothing is trained")
    model = build("llama", variant, adapter, start_token=start_token).train()
    samples = draw()
    if start_token:
        end = torch.tensor([model.start_token_id])
        samples = [type(s)(torch.cat([s.prompt, end]), s.answers) for s in samples]
    before = {name: tensor.clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=10.0, weight_decay=0.0)
    model.loss(samples).backward()
    optimizer.step()
    after = dict([*model.named_parameters(), *model.named_buffers()])
    if (variant, adapter) == ("only_causal", "none"):  # both readings are one and the same, whatever theta is
        trained -= {"theta_k", "theta_v"}
    assert {name for name, tensor in before.items() if not torch.equal(after[name], tensor)} == trained
    assert all(torch.isfinite(after[name]).all() for name in trained)


def base_of(model: Bitune) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in base_weights(model.decoder)}


@pytest.mark.parametrize("adapter", ["lora", "dora", "ia3"])
def test_putting_an_adapter_on_leaves_the_base_as_it_was(family, adapter):
    torch.manual_seed(0)
    before = {name: weight.clone() for name, weight in tiny(family).named_parameters()}
    settings = {"target_modules": NO_EXPERTS} if (family, adapter) in DORA_ON_EXPERTS else None
    model = build(family, "bitune", adapter, adapter_settings=settings)
    after = base_of(model)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_the_rank_16_baseline():
    """LoRA16 (Table 12): twice the rank, alpha still 1."""
    model = build("llama", "plain", "lora", adapter_settings={"r": 16})
    layer = model.decoder.model.layers[0].self_attn.q_proj
    assert layer.lora_A["causal"].weight.shape == (16, 32) and layer.scaling == {"causal": 1 / 16}
    close(model.answer_logits(draw()), three_pass.answer_logits(model, draw()))


OPTIONS = {
    "rank-stabilised": dict(use_rslora=True, r=4, lora_alpha=2),
    "gaussian": dict(init_lora_weights="gaussian"),
    "orthogonal": dict(init_lora_weights="orthogonal"),
    "bias": dict(lora_bias=True),
    "some modules": dict(target_modules=["q_proj", "down_proj"]),
    "ranks by layer": dict(rank_pattern={"q_proj": 2}, alpha_pattern={"v_proj": 3}),
    "dropout, in evaluation": dict(lora_dropout=0.5),
    "weight-decomposed": dict(use_dora=True, lora_dropout=0.1),
}


@pytest.mark.parametrize("named", [True, False], ids=["settings", "configuration"])
@pytest.mark.parametrize("options", OPTIONS)
def test_options_of_peft_pass_through(options, named, tmp_path):
    settings = {"r": 8, "lora_alpha": 1, "target_modules": "all-linear"} | OPTIONS[options]
    torch.manual_seed(0)
    given = dict(adapter="lora", adapter_settings=settings) if named else dict(adapter=LoraConfig(**settings))
    model = Bitune.build(tiny("llama"), **given).eval()
    for name, value in settings.items():
        kept = getattr(model.decoder.peft_config["bidirectional"], name)
        assert value == "all-linear" or kept == (set(value) if isinstance(value, list) else value)
    randomise(model)
    close(model.answer_logits(draw()), three_pass.answer_logits(model, draw()))
    model.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    again = Bitune.from_pretrained(tmp_path / "model", tiny("llama"))
    assert torch.equal(flat(again.answer_logits(draw())), flat(model.answer_logits(draw())))


@pytest.mark.parametrize("start", ["gaussian", "orthogonal"])
def test_other_initialisations_start_where_the_base_is(start):
    torch.manual_seed(0)
    model = Bitune.build(tiny("llama"), "plain", adapter_settings={"init_lora_weights": start}).eval()
    torch.manual_seed(0)
    close(
        model.answer_logits(draw()),
        Bitune.build(tiny("llama"), "plain", "none").answer_logits(draw()),
    )


def test_dropout_of_an_adapter_falls_in_training_only():
    torch.manual_seed(0)
    model = randomise(Bitune.build(tiny("llama"), adapter_settings={"lora_dropout": 0.5}).eval())
    still, again = model.loss(draw()).item(), model.loss(draw()).item()
    model.train()
    assert still == again and len({model.loss(draw()).item() for _ in range(3)}) == 3


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "loftq", "PiSSA"])
def test_initialisations_that_change_the_base_are_refused(start):
    config = LoraConfig()
    config.init_lora_weights = start
    for given in (dict(adapter_settings={"init_lora_weights": start}), dict(adapter=config)):
        with pytest.raises(ValueError, match="takes its start out of the base"):
            Bitune.build(tiny("llama"), **given)


# -- the published code's choice of modules ---------------------------------------------------------------------------

ATTENTION = {"q_proj", "k_proj", "v_proj"}
GATED = ATTENTION | {"o_proj", "gate_proj", "up_proj", "down_proj"}
PAPER = {
    "phi": ATTENTION,  # its dense, fc1 and fc2 are left out, against the paper's Table 12
    "llama": GATED,
    "gemma": GATED,
    "mistral": GATED,
    "qwen2": GATED,
    "opt": ATTENTION | {"out_proj"},
    "phi3": {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"},
}


def adapted(model: Bitune) -> set[str]:
    """Last names of the modules that carry causal weights."""
    layers = {id(p): n for n, p in model.decoder.named_parameters()}
    names = {layers[id(p)] for p in owned(model.decoder, "causal").values()}
    known = {name.rpartition(".")[2] for name, _ in model.decoder.named_modules()}
    return {part for name in names for part in name.split(".") if part in known and ("proj" in part or "fc" in part)}


@pytest.mark.parametrize(
    ("name", "adapter"), [*((name, "lora") for name in PAPER), *(("phi", adapter) for adapter in ADAPTERS[1:])]
)
def test_paper_targets_are_those_of_the_published_code(name, adapter, tmp_path):
    model = build(name, "bitune", adapter, paper_targets=True)
    assert adapted(model) == PAPER[name]
    close(model.answer_logits(draw()), three_pass.answer_logits(model, draw()))
    expected = model.answer_logits(draw())
    model.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    assert torch.equal(
        flat(Bitune.from_pretrained(tmp_path / "model", tiny(name)).answer_logits(draw())), flat(expected)
    )


def test_paper_targets_of_phi_are_fewer_than_all_linear_layers():
    ours, theirs = (owned(build("phi", paper_targets=flag).decoder, "causal") for flag in (False, True))
    assert len(ours) == 3 * 6 * 2 and len(theirs) == 3 * 3 * 2


def test_ia3_scales_the_input_of_the_mlp_and_the_output_of_attention():
    model = build("llama", "bitune", "ia3", adapter_settings={"target_modules": ["k_proj", "down_proj"]})
    block = model.decoder.model.layers[0]
    assert not block.self_attn.k_proj.is_feedforward and block.mlp.down_proj.is_feedforward
    assert not hasattr(block.self_attn.q_proj, "ia3_l") and not hasattr(block.mlp.up_proj, "ia3_l")


CONTRADICTIONS = [
    (dict(adapter="none"), "paper_targets chooses the layers of lora, dora, ia3 or full"),
    (dict(adapter=IA3Config()), "paper_targets chooses the layers of lora, dora, ia3 or full"),
    (dict(adapter_settings={"target_modules": ["q_proj"]}), "both choose the layers to adapt"),
]


@pytest.mark.parametrize(("given", "why"), CONTRADICTIONS)
def test_paper_targets_that_contradict_something_are_refused(given, why):
    with pytest.raises(ValueError, match=why):
        Bitune.build(tiny("llama"), paper_targets=True, **given)


def test_a_decoder_without_such_names_is_refused():
    with pytest.raises(ValueError, match=r"this decoder \(gpt_neox\) has dense, .*: leave paper_targets out"):
        Bitune.build(tiny("gpt_neox"), paper_targets=True)


def test_settings_beside_a_configuration_are_refused():
    with pytest.raises(ValueError, match="put them into the PEFT configuration"):
        Bitune.build(tiny("llama"), adapter=LoraConfig(), adapter_settings={"r": 2})


def test_what_reads_pictures_is_left_as_it_is():
    """All linear layers are those of the blocks that read text: no gradient reaches any other (paper, Table 12)."""
    text = dict(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=5,
    )  # fmt: skip
    eyes = dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = Gemma3Config(text_config=text, vision_config=eyes, mm_tokens_per_image=1)
    model = Bitune.build(AutoModelForCausalLM.from_config(config))
    model.loss(draw()).backward()
    trained = {name for name, p in model.decoder.named_parameters() if p.requires_grad}
    assert trained and all(".language_model." in f".{name}" for name in trained)
    assert all(model.decoder.get_parameter(name).grad is not None for name in trained)


def test_the_usual_layers_of_some_blocks():
    model = build("llama", "bitune", "lora", adapter_settings={"layers_to_transform": [0]})
    adapted = {name.partition(".layers.")[2][0] for name in owned(model.decoder, "causal")}
    assert adapted == {"0"} and len(owned(model.decoder, "causal")) == 14


def test_target_parameters_that_match_nothing_are_refused():
    with pytest.raises(ValueError, match="No parameter of this decoder is named like 'x': correct target_parameters"):
        build("llama", "bitune", "lora", adapter_settings={"target_parameters": ["x"]})
