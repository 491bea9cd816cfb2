"""Which base a model was trained on: a mark that another base does not share."""

import hashlib
import json
from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

IGNORED = frozenset(
    "architectures attn_implementation auto_map bos_token_id cache_implementation chunk_size_feed_forward "
    "decoder_start_token_id dtype eos_token_id experts_implementation finetuning_task gradient_checkpointing id2label "
    "init_std initializer_factor initializer_range keys_to_ignore_at_inference label2id name_or_path num_labels "
    "output_attentions output_hidden_states output_router_logits pad_token_id prefix pretraining_tp problem_type "
    "quantization_config return_dict router_aux_loss_coef sep_token_id task_specific_params tokenizer_class torch_dtype "
    "transformers_version use_cache".split()
)
"""Settings that do not change what a decoder computes. Neither do those whose name has `drop` in it or begins with `_`."""

VERSION = "2"  # how marks are made; those of another version cannot be compared


def fingerprint(decoder: PreTrainedModel) -> str:
    """A mark of the base: hashes of its settings and of its weights, `2-<settings>-<weights>`.

    It is the same for bfloat16 and float32 (values are rounded to bfloat16 first), and the same with adapters put in:
    an adapter layer keeps the layer it wraps as `base_layer` (or `original_module`), and only that is read.
    """
    settings = json.dumps(told(decoder.config.get_text_config()), sort_keys=True, default=str)
    weights = hashlib.sha256()
    for name, weight in sorted(base_weights(decoder)):
        entries = torch.linspace(0, weight.numel() - 1, min(64, weight.numel()), dtype=torch.float64).long()
        sample = weight.detach().flatten()[entries.to(weight.device)].bfloat16().float().cpu()
        weights.update(f"{name} {tuple(weight.shape)} {sample.tolist()}".encode())
    return f"{VERSION}-{hashlib.sha256(settings.encode()).hexdigest()[:16]}-{weights.hexdigest()[:16]}"


def told(config: PreTrainedConfig) -> dict:
    """The settings that may change what a decoder computes and differ from its kind's defaults.

    A later transformers may know more settings, whose defaults leave a decoder as it was: they are not among these.
    """
    said, usual = config.to_dict(), _defaults(config)
    found = {name: value for name, value in said.items() if value != usual.get(name) and not _is_ignored(name)}
    return {"model_type": config.model_type, **found}


def differences(kept: str, found: str) -> str | None:
    """What is other in the decoder with the mark `found` than in the one with the mark `kept`; None if nothing is.

    Raises:
        ValueError: if the kept mark is of another version.
    """
    version, *parts = kept.split("-")
    if version != VERSION or len(parts) != 2:
        raise ValueError("carries a mark of its base that this version of bitune_pl cannot compare: train it again")
    pairs = zip(("settings (in its config.json)", "weights"), parts, found.split("-")[1:], strict=True)
    return " and other ".join(what for what, a, b in pairs if a != b) or None


def _defaults(config: PreTrainedConfig) -> dict:
    """What a configuration of this kind says if nothing is asked of it; empty for a kind that cannot be made so."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # some kinds warn about their own defaults
    try:
        return type(config)().to_dict()
    except (TypeError, ValueError):
        return {}
    finally:
        logging.set_verbosity(verbosity)


def _is_ignored(name: str) -> bool:
    return name in IGNORED or name.startswith("_") or "drop" in name


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
