"""Tiny random decoders, one for each family, built so that a wrong method cannot hide.

Every weight is drawn at random, with a standard deviation of 0.25 that makes attention far from uniform; windows are
shorter than the prompts, and every adapter tensor and theta is drawn too: fresh adapters are zero and hide swapped
routes.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bitune_pl import Bitune, Sample

COMMON = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=128, initializer_range=0.25,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
WINDOW = 5
MIXED = dict(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2)
ROPE = dict(rope_theta=10000.0, factor=8.0, original_max_position_embeddings=16)
UNDROPPED = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, dropout=0.0)

FAMILIES: dict[str, dict] = {
    "llama": dict(model_type="llama"),
    "gemma": dict(model_type="gemma", num_key_value_heads=1),
    "phi": dict(model_type="phi", partial_rotary_factor=0.5, num_key_value_heads=4),
    "mistral": dict(model_type="mistral", sliding_window=WINDOW),
    "qwen2": dict(model_type="qwen2"),
}
"""The families of the quick tests."""

MORE: dict[str, dict] = {
    "apertus": dict(
        model_type="apertus",
        rope_parameters=dict(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0, **ROPE),
    ),
    "cohere": dict(model_type="cohere", use_qk_norm=True, logit_scale=0.25),
    "cohere2": dict(model_type="cohere2", logit_scale=0.25, **MIXED),
    "ernie4_5": dict(model_type="ernie4_5", use_bias=True),
    "exaone4": dict(model_type="exaone4", **MIXED),
    "gemma2": dict(
        model_type="gemma2", attn_logit_softcapping=2.0, final_logit_softcapping=3.0, query_pre_attn_scalar=24, **MIXED
    ),
    "gemma3": dict(model_type="gemma3_text", query_pre_attn_scalar=24, **MIXED),
    "glm4": dict(model_type="glm4", partial_rotary_factor=0.5),
    "gpt2": dict(model_type="gpt2", n_inner=48, **UNDROPPED),
    "gpt_neox": dict(model_type="gpt_neox", rotary_pct=0.5),
    "gpt_oss": dict(model_type="gpt_oss", rope_parameters=dict(rope_type="yarn", **ROPE), **MIXED, **EXPERTS),
    "gptj": dict(model_type="gptj", n_inner=48, rotary_dim=4, **UNDROPPED),
    "granite": dict(
        model_type="granite",
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        residual_multiplier=0.5,
        attention_multiplier=0.5,
    ),
    "mixtral": dict(model_type="mixtral", sliding_window=WINDOW, **EXPERTS),
    "nemotron": dict(model_type="nemotron"),
    "olmo2": dict(model_type="olmo2"),
    "olmo3": dict(model_type="olmo3", **MIXED),
    "olmoe": dict(model_type="olmoe", head_dim=8, clip_qkv=1.0, **EXPERTS),
    "opt": dict(model_type="opt", ffn_dim=48, word_embed_proj_dim=16, init_std=0.25, **UNDROPPED),
    "phi3": dict(model_type="phi3", partial_rotary_factor=0.5),
    "phi3-sliding": dict(model_type="phi3", sliding_window=WINDOW),
    "qwen2-sliding": dict(model_type="qwen2", use_sliding_window=True, **MIXED),
    "qwen3": dict(model_type="qwen3"),
    "qwen3_moe": dict(model_type="qwen3_moe", moe_intermediate_size=24, mlp_only_layers=[1], **EXPERTS),
    "smollm3": dict(model_type="smollm3", no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=WINDOW),
    "stablelm": dict(
        model_type="stablelm", head_dim=8, use_qkv_bias=True, qk_layernorm=True, partial_rotary_factor=0.5
    ),
    "starcoder2": dict(model_type="starcoder2", sliding_window=WINDOW),
}
"""The families of the slow tests, which with those above are all that a prototype served exactly."""

ALL = FAMILIES | MORE

DORA_ON_EXPERTS = {(family, "dora") for family in ("mixtral", "olmoe", "qwen3_moe")}
"""PEFT has no DoRA for experts, which are parameters of three axes; with `NO_EXPERTS` they stay as pretrained."""
NO_EXPERTS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def tiny(family: str, **changes) -> PreTrainedModel:
    """A decoder of a family, in float32; `changes` go to its configuration."""
    return from_settings(**{**ALL[family], **changes})


def from_settings(model_type: str, **settings) -> PreTrainedModel:
    """A random decoder of any type; `...` leaves a common setting out."""
    settings = {name: value for name, value in {**COMMON, **settings}.items() if value is not ...}
    config = AutoConfig.for_model(model_type, **settings)
    decoder = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():  # some families take no initializer_range, all start norms at one
            noise = 0.25 * torch.randn_like(parameter)
            parameter.copy_(noise if parameter.ndim > 1 else parameter + noise)
    return decoder


def randomise(model: Bitune, seed: int = 0) -> Bitune:
    """Every trained tensor, frozen bidirectional ones too, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".causal" in name or ".bidirectional" in name:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(1 + 0.3 * noise if "magnitude" in name or "ia3" in name else 0.3 * noise)
            elif name.startswith("theta"):
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def build(family: str, method="bitune", adapter="lora", dtype=torch.float32, seed: int = 0, **settings) -> Bitune:
    torch.manual_seed(seed)
    decoder = tiny(family).to(dtype)
    if dtype == torch.float64:
        decoder.set_experts_implementation("eager")  # there is no grouped product in float64
    return randomise(Bitune.build(decoder, method, adapter, adapter_dtype=dtype, **settings).to(dtype).eval(), seed)


def draw(lengths=((13, (4,)), (7, (6, 2)), (1, (3,))), vocab: int = 97, seed: int = 1) -> list[Sample]:
    """Samples of unequal lengths, a prompt with two answers and one that is a start token alone among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = lambda n: torch.randint(3, vocab, (n,), generator=generator)  # noqa: E731
    return [Sample(ids(prompt), [ids(n) for n in answers]) for prompt, answers in lengths]
