"""What would be wrong without a word is an error: options, files and settings that Bitune cannot honour."""

import json

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from bitune_pl import Bitune, Sample
from bitune_pl.method.variants import Method


def decoder():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )  # fmt: skip
    )


@pytest.fixture(scope="module")
def model():
    return Bitune.build(decoder()).eval()


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "option", [{"use_cache": False}, {"prompt_lookup_num_tokens": 2}, {"assistant_model": "another decoder"}]
)
def test_options_that_would_bypass_the_mixed_cache(model, option):
    with pytest.raises(ValueError, match=next(iter(option))):
        model.generate([torch.tensor([3, 4, 5])], max_new_tokens=2, **option)


def test_a_base_saved_without_use_cache_generates_the_same(model):
    prompt = [torch.tensor([3, 4, 5, 6, 7])]
    plain = model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None)
    model.decoder.generation_config.use_cache = False
    try:
        again = model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None)
    finally:
        model.decoder.generation_config.use_cache = True
    assert torch.equal(plain[0], again[0])


def test_a_target_of_minus_100_is_an_error(model):
    with pytest.raises(IndexError):
        model.loss([Sample(torch.tensor([3, 4]), [torch.tensor([5, -100])])])


@pytest.mark.parametrize("field", ["separate_weights", "mixing"])
@pytest.mark.parametrize("value", ["false", 3, None])
def test_a_method_takes_true_and_false_only(field, value):
    with pytest.raises(ValueError, match=field):
        Method(**{field: value})


@pytest.mark.parametrize("theta_init", [float("inf"), float("nan"), 0, -1])
def test_theta_init_is_finite_and_positive(theta_init):
    with pytest.raises(ValueError, match="theta_init"):
        Bitune.build(decoder(), theta_init=theta_init)


@pytest.mark.parametrize("init", ["pissa", "olora", "pissa_niter_4"])
def test_an_initialisation_that_changes_the_shared_base(init):
    with pytest.raises(ValueError, match="init_lora_weights"):
        Bitune.build(decoder(), adapter=LoraConfig(target_modules="all-linear", init_lora_weights=init))


@pytest.mark.parametrize("thetas", [{"theta_k": 1, "theta_v": 1}, {"theta_k": 3, "theta_v": 3}, {"theta_k": 2}])
def test_a_theta_file_of_another_length(folder, thetas):
    save_file({name: torch.ones(length) for name, length in thetas.items()}, folder / "theta.safetensors")
    with pytest.raises(ValueError, match="theta_. in .*theta.safetensors"):
        Bitune.from_pretrained(folder, decoder())


@pytest.mark.parametrize("part", ["theta.safetensors", "causal/adapter_model.safetensors", "bitune.json"])
def test_a_damaged_part(folder, part):
    (folder / part).write_bytes((folder / part).read_bytes()[:20])
    with pytest.raises(ValueError, match="damaged"):
        Bitune.from_pretrained(folder, decoder())


def test_a_description_that_lacks_something(folder):
    said = json.loads((folder / "bitune.json").read_text())
    (folder / "bitune.json").write_text(json.dumps({**said, "method": {**said["method"], "mixng": True}}))
    with pytest.raises(ValueError, match="mixng"):
        Bitune.from_pretrained(folder, decoder())
    del said["fingerprint"]
    (folder / "bitune.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match="fingerprint"):
        Bitune.from_pretrained(folder, decoder())


def test_no_samples_have_no_answers_and_no_loss():
    model = Bitune.build(decoder())
    assert model.answer_logits([]) == model.log_likelihood([]) == []
    with pytest.raises(ValueError, match="no answer token to learn from"):
        model.loss([])


@pytest.mark.parametrize("where", [dict(target_modules=["lm_head"]), dict(target_modules=["embed_tokens", "q_proj"])])
def test_adapters_on_embeddings_are_refused(where):
    with pytest.raises(ValueError, match="no adapter can be routed on them"):
        Bitune.build(decoder(), adapter=LoraConfig(**where))


@pytest.mark.parametrize("name, value", [("method", "bitune"), ("dtype", "int8"), ("theta_init", "a"), ("base", None)])
def test_a_description_of_the_wrong_kind(folder, name, value):
    path = folder / "bitune.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ValueError, match=f"bitune.json says {name} is .*copy the run's whole model folder"):
        Bitune.from_pretrained(folder, decoder())


@pytest.mark.parametrize("text", ["[]", '{"peft_type": "NOPE"}', '{"peft_type": "LORA", "r"', "7", '{"r": 8}', "\xff"])
def test_an_adapter_configuration_that_is_damaged(folder, text):
    (folder / "bidirectional" / "adapter_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"bidirectional/adapter_config.json is damaged .*whole model folder again[.]$"
    ):
        Bitune.from_pretrained(folder, decoder())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_adapter_that_holds_no_numbers(folder, value):
    path = folder / "causal" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[3]
    tensors[name][0, 0] = value
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"lora_..weight in .*causal/adapter_model.safetensors holds .*not finite"):
        Bitune.from_pretrained(folder, decoder())


@pytest.mark.parametrize("adapter", ["nope", "dora", "ia3"])
def test_a_description_that_names_another_adapter(folder, adapter):
    path = folder / "bitune.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"adapter": adapter}))
    with pytest.raises(
        ValueError, match=f"adapter_config.json is of lora, and .* says {adapter}: copy the run's whole"
    ):
        Bitune.from_pretrained(folder, decoder())


def test_a_description_with_half_a_method(folder):
    path = folder / "bitune.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"method": {"mixing": True, "prompt_copies": 1}}))
    with pytest.raises(ValueError, match="bitune.json lacks second_pass, separate_weights of the method"):
        Bitune.from_pretrained(folder, decoder())


def test_full_copies_that_are_damaged(tmp_path):
    Bitune.build(decoder(), "plain", "full").save_pretrained(tmp_path)
    path = tmp_path / "causal" / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors, path, metadata={"layers": "[cut"})
    with pytest.raises(ValueError, match=r"causal/model.safetensors is damaged .*whole model folder again[.]$"):
        Bitune.from_pretrained(tmp_path, decoder())


@pytest.mark.parametrize("denominator", [0, -3, float("nan"), torch.tensor(0)])
def test_a_denominator_that_is_no_number_of_answers(model, denominator):
    with pytest.raises(ValueError, match="denominator is the number of answers"):
        model.loss([Sample(torch.tensor([3, 4]), [torch.tensor([5])])], denominator=denominator)


@pytest.mark.parametrize("dtype", ["float32", torch.int32, None])
def test_an_adapter_dtype_that_is_none(dtype):
    with pytest.raises(ValueError, match="adapter_dtype is a torch.dtype such as torch.float32, not"):
        Bitune.build(decoder(), adapter_dtype=dtype)


@pytest.mark.parametrize("wrong", [60, 99, -1])
def test_an_id_beyond_the_vocabulary_is_told(model, wrong):
    known, other = torch.tensor([3, 4, 5]), torch.tensor([3, wrong, 5])
    said = f"holds the token id {wrong}, and this decoder has the ids 0 to 59: encode texts with the tokenizer"
    with pytest.raises(IndexError, match=f"A prompt {said}"):
        model.answer_logits([Sample(known, [known]), Sample(other, [known])])
    with pytest.raises(IndexError, match=f"An answer {said}"):
        model.log_likelihood([Sample(known, [known, other])])
    for prompt in (other, torch.tensor([wrong])):
        with pytest.raises(IndexError, match=f"A prompt {said}"):
            model.generate([prompt], max_new_tokens=1)


def test_the_start_token_is_an_id_of_prompts_alone():
    model = Bitune.build(decoder(), start_token="<sep>")
    prompt = torch.tensor([3, model.start_token_id])
    model.loss([Sample(prompt, [torch.tensor([4])])])
    with pytest.raises(IndexError, match="An answer holds the token id 60, and this decoder has the ids 0 to 59"):
        model.loss([Sample(prompt, [prompt])])


@pytest.mark.parametrize("name", ["attention_mask", "input_ids", "inputs_embeds", "position_ids", "past_key_values"])
def test_what_generate_makes_itself_is_refused(model, name):
    with pytest.raises(ValueError, match=f"Bitune.generate makes {name} itself"):
        model.generate([torch.tensor([3, 4])], max_new_tokens=1, **{name: torch.ones(1, 2)})


@pytest.mark.parametrize("cast", [lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.to(torch.bfloat16)])
def test_theta_is_never_cast_below_float32(cast):
    model = Bitune.build(decoder())
    model.theta_k.data += torch.linspace(0, 1e-5, 2)
    model.loss([Sample(torch.tensor([3, 4, 5]), [torch.tensor([6])])]).backward()
    before = {n: (getattr(model, n).clone(), getattr(model, n).grad.clone()) for n in ("theta_k", "theta_v")}
    parameter = model.theta_k
    assert cast(model) is model and model.theta_k is parameter
    assert next(model.decoder.parameters()).dtype != torch.float32
    for name, (value, grad) in before.items():
        assert torch.equal(getattr(model, name), value) and torch.equal(getattr(model, name).grad, grad)
        assert getattr(model, name).dtype == getattr(model, name).grad.dtype == torch.float32


def test_theta_may_be_wider():
    assert Bitune.build(decoder()).double().theta_v.dtype == torch.float64


def test_a_graph_that_is_kept_is_replayed_in_each_backward_pass():
    model, samples = Bitune.build(decoder()).train(), [Sample(torch.tensor([3, 4, 5]), [torch.tensor([6, 7])])]
    model.checkpoint_activations()
    loss = model.loss(samples)
    loss.backward(retain_graph=True)
    once = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    loss.backward()
    assert once and all(torch.allclose(p.grad, 2 * once[n]) for n, p in model.named_parameters() if n in once)
