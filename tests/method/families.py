"""One tiny random configuration for each family of decoders, in transformers' own words."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

COMMON = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, max_position_embeddings=128, initializer_range=0.25, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
WINDOW = 5

FAMILIES: dict[str, dict] = {
    "llama": dict(model_type="llama"),
    "gemma": dict(model_type="gemma", num_key_value_heads=1),
    "phi": dict(model_type="phi", partial_rotary_factor=0.5, num_key_value_heads=4),
    "mistral": dict(model_type="mistral", sliding_window=WINDOW),
    "qwen2": dict(model_type="qwen2"),
}


def tiny(family: str, **changes) -> PreTrainedModel:
    settings = {**COMMON, **FAMILIES[family], **changes}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
