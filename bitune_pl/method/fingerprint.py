"""Which base a model was trained on: a hash that another base does not share."""

import hashlib
import json
from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

FUNCTION = (
    "model_type", "hidden_act", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters",
    "sliding_window", "layer_types", "rms_norm_eps", "layer_norm_eps", "final_logit_softcapping",
    "attn_logit_softcapping", "query_pre_attn_scalar", "logit_scale", "logits_scaling",
)  # fmt: skip
"""Settings that change what a decoder computes and that no weight's shape tells."""


def fingerprint(decoder: PreTrainedModel) -> str:
    """A hash of the base: its configuration, and the names, shapes and a sample of the values of its weights.

    It is the same for bfloat16 and float32 (values are rounded to bfloat16 first), and the same with adapters put in:
    an adapter layer keeps the layer it wraps as `base_layer` (or `original_module`), and only that is read.
    """
    config = decoder.config.get_text_config().to_dict()
    told = {name: config.get(name) for name in FUNCTION}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for name, weight in sorted(base_weights(decoder)):
        entries = torch.linspace(0, weight.numel() - 1, min(64, weight.numel()), dtype=torch.float64).long()
        sample = weight.detach().flatten()[entries.to(weight.device)].bfloat16().float().cpu()
        digest.update(f"{name} {tuple(weight.shape)} {sample.tolist()}".encode())
    return digest.hexdigest()[:32]


def base_weights(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Named weights of the base alone, under the names they had before anything wrapped them."""
    wrapped = getattr(module, "base_layer", None) or getattr(module, "original_module", None)
    if isinstance(wrapped, nn.Module):
        yield from base_weights(wrapped, prefix)
        return
    for name, weight in module.named_parameters(prefix, recurse=False):
        yield name, weight
    for name, child in module.named_children():
        yield from base_weights(child, f"{prefix}.{name}" if prefix else name)
