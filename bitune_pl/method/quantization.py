"""A base in 4 bits (bitsandbytes, nf4): what it goes with, and why the rest is refused.

Computing stays in the type the base is loaded in; only the linear layers' weights are packed, embeddings and norms are not.
They are frozen, so adapters are trained over them and merged into nothing: merging would round them again, and no single
base could hold two sets of weights.
"""

import importlib.util

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

QUANTIZED = "4bit"


def check_quantization(quantization: str | None, base: str, adapter: object = None) -> None:
    """What can be said before anything is loaded.

    Raises:
        ValueError, ModuleNotFoundError: if the base cannot be loaded so, or the adapter does not go with it.
    """
    if quantization is None:
        return
    if quantization == "8bit":
        raise ValueError(
            "quantization 8bit is not offered: one forward pass differed from three by 2.6e-2 with it, in float32 too, probably "
            "because its outlier columns depend on all samples that share a row. Use 4bit."
        )
    if quantization != QUANTIZED:
        raise ValueError(f"quantization is null or {QUANTIZED!r}, not {quantization!r}.")
    if base.endswith(".gguf"):
        raise ValueError(
            f"{base} is quantised already and is unpacked when it is loaded: leave quantization out, or name a folder or hub id."
        )
    if adapter == "full":
        raise ValueError(FULL)
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModuleNotFoundError(
            "A base in 4bit needs the package bitsandbytes: pip install bitsandbytes (or 'bitune_pl[quantized]')."
        )


FULL = "The weights of a quantised base cannot be trained: choose lora, dora or ia3 in place of full, or an unquantised base."


def packing(quantization: str | None, dtype: torch.dtype) -> dict:
    """What `from_pretrained` is told. A base is packed on the CPU, so that it is the same base wherever it runs."""
    if quantization is None:
        return {}
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": config, "device_map": {"": "cpu"}}


def quantization_of(decoder: PreTrainedModel) -> str | None:
    """How a decoder's weights are packed; None if they are not."""
    return next((bits for bits in (QUANTIZED, "8bit") if getattr(decoder, f"is_loaded_in_{bits}", False)), None)


def check_decoder(decoder: PreTrainedModel, adapter: object) -> None:
    """As `check_quantization`, of a decoder that is already there."""
    check_quantization(quantization_of(decoder), decoder.name_or_path, adapter)


def keep_packing(decoder: PreTrainedModel) -> None:
    """Keep the weights as they were packed.

    On some CPUs (AVX-512 with bfloat16) a 4-bit layer packs its weights anew when it first runs in evaluation, and rounds
    their scales to bfloat16: the base would not be the one that was trained on.
    """
    for module in decoder.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
