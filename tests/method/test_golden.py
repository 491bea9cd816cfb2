"""Values from the authors' published code: logits, loss, every gradient, greedy tokens (DESIGN 5.8)."""

import json

import pytest
import torch
from peft import IA3Config, LoraConfig
from places import SHARED
from safetensors import safe_open
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig

from bitune_pl import Bitune, Sample
from bitune_pl.method import three_pass

FILES = sorted((SHARED / "golden").glob("*.safetensors")) if SHARED.is_dir() else []
CONFIGS = {"llama": LlamaConfig, "gemma": GemmaConfig}
ATTENTION, FEEDFORWARD = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]


def adapter(peft: str, rank: int, alpha: int) -> LoraConfig | IA3Config:
    if peft == "ia3":
        return IA3Config(target_modules=ATTENTION + FEEDFORWARD, feedforward_modules=FEEDFORWARD)
    return LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", use_dora=peft == "dora")


def rebuild(path) -> tuple[Bitune, Sample, dict]:
    with safe_open(path, "pt") as file:
        meta, values = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    config = CONFIGS[meta["family"]](**json.loads(meta["config"]))
    decoder = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    settings = adapter(meta["peft"], int(meta["rank"]), int(meta["lora_alpha"]))
    model = Bitune.build(decoder, meta["variant"], settings, float(meta["theta_init"])).eval()
    load(model, values)
    split = int(meta["prompt_tokens"])
    return model, Sample(values["input_ids"][0, :split], [values["labels"][0, split:]]), values


def golden_name(parameter: str) -> str:
    name = parameter.removeprefix("decoder.")
    return name.removesuffix(".weight") if "lora_magnitude_vector" in name else name


def load(model: Bitune, values: dict) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[f"weight/{golden_name(name)}"].view_as(parameter))


@pytest.mark.parametrize(
    "path", FILES or [pytest.param(None, marks=pytest.mark.skip("no golden files here"))], ids=lambda p: p and p.stem
)
def test_equals_the_authors_code(path):
    model, sample, values = rebuild(path)
    [[logits]] = model.answer_logits([sample])
    # the published logits have one row more: it follows the last answer token and predicts nothing
    torch.testing.assert_close(logits, values["logits"][0, : len(logits)], atol=1e-5, rtol=0)
    loss = model.loss([sample])
    torch.testing.assert_close(loss, values["loss"][0], atol=1e-5, rtol=0)
    loss.backward()
    gradients = {golden_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    for name, grad in gradients.items():
        expected = values[f"grad/{name}"].view_as(grad)
        assert (grad - expected).abs().max() <= 1e-4 * expected.abs().max(), name
    left = {k.removeprefix("grad/") for k in values if k.startswith("grad/") and values[k].any()} - set(gradients)
    assert not left, f"published gradients that the model does not compute: {left}"
    [tokens] = model.generate([sample.prompt], max_new_tokens=10, do_sample=False)
    assert tokens.tolist() == values["greedy_tokens"][0].tolist()
    [tokens] = model.generate([sample.prompt], max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert tokens.tolist() == three_pass.greedy(model, sample.prompt, 10).tolist()


@pytest.mark.parametrize("path", FILES[:1] or [pytest.param(None, marks=pytest.mark.skip("no golden files here"))])
def test_the_specification_equals_the_authors_code(path):
    model, sample, values = rebuild(path)
    [[logits]] = three_pass.answer_logits(model, [sample])
    torch.testing.assert_close(logits, values["logits"][0, : len(logits)], atol=1e-5, rtol=0)
