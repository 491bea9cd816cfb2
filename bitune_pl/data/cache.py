"""The cache of tokenised rows: a second run with the same rows does not tokenise them again.

The key is a hash of everything that decides on the ids: the text of every row as the template made it, the whole
tokenizer, the id of a new start token, the length limit, the code that encodes, and the versions of the libraries
beneath. What the key is made of is read anew in every run, so a stale entry cannot be found: an edited file or template
is another key. Entries lie in `$BITUNE_CACHE/rows`, else `$XDG_CACHE_HOME/bitune_pl/rows`, else
`~/.cache/bitune_pl/rows`; any of them may be deleted at any time. `BITUNE_CACHE=off` does without.

An entry is written beside its place and moved there whole, so that ranks and runs never see half of one. Its arrays
are mapped into memory, not read, and shared by all processes of a machine.
"""

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
import transformers

from bitune_pl.data import border, encoding, rows
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped, Example
from bitune_pl.data.rows import Rows

_CODE = b"".join(Path(module.__file__).read_bytes() for module in (border, encoding, rows))
_VERSIONS = f"{transformers.__version__} {tokenizers.__version__}"


class Encoded(NamedTuple):
    """Encoded rows, those left out, the key, and whether they were found in the cache."""

    rows: Rows
    dropped: list[Dropped]
    key: str
    was_found: bool

    @property
    def remark(self) -> str:
        return f"{'read from' if self.was_found else 'tokenised, kept in'} the cache as {self.key}" if self.key else ""


def encode(encoder: Encoder, examples: Sequence[Example], with_choices: bool) -> Encoded:
    """What `rows.encode` gives, from the cache if it is there; the key is empty where there is no cache."""
    place = folder()
    if place is None or not encoder.tokenizer.is_fast:
        return Encoded(*rows.encode(encoder, examples, with_choices), "", False)
    key = make_key(encoder, examples, with_choices)
    found = _read(place / key)
    if found is not None:
        return Encoded(*found, key, True)
    fresh, dropped = rows.encode(encoder, examples, with_choices)
    is_kept = len(fresh) > 0 and _write(place / key, fresh, dropped)
    return Encoded(fresh, dropped, key if is_kept else "", False)


def make_key(encoder: Encoder, examples: Sequence[Example], with_choices: bool) -> str:
    """The hash of everything that the encoded rows depend on."""
    tokenizer = encoder.tokenizer
    settings = [_VERSIONS, type(tokenizer).__name__, encoder.opening, encoder.closing, encoder.eos]
    settings += [tokenizer.unk_token_id, encoder.max_length, with_choices, len(examples)]
    digest = hashlib.blake2b(_CODE, digest_size=16)
    digest.update(repr(settings).encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    for row in examples:
        digest.update(repr((row.prompt, row.answers, row.gold, row.where)).encode())
    return digest.hexdigest()


def folder() -> Path | None:
    """Where entries lie; None where the user wants no cache."""
    chosen = os.environ.get("BITUNE_CACHE")
    if chosen == "off":
        return None
    shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitune_pl"
    return (Path(chosen) if chosen else shared) / "rows"


def _read(entry: Path) -> tuple[Rows, list[Dropped]] | None:
    """An entry, or None if there is none or it is damaged."""
    try:
        left_out = json.loads((entry / "dropped.json").read_text(encoding="utf-8"))
        columns = [np.load(entry / f"{field.name}.npy", mmap_mode="r") for field in fields(Rows)]
    except (OSError, ValueError):
        return None
    ids, ends, first, golds = columns
    if (len(first), len(ends), len(ids)) != (len(golds) + 1, first[-1] + 1, ends[-1]):
        return None
    return Rows(*columns), [Dropped(where, reason) for where, reason in left_out]


def _write(entry: Path, fresh: Rows, dropped: list[Dropped]) -> bool:
    """Keep an entry; whether that could be done."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(entry, ignore_errors=True)  # a damaged one
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix="unfinished-") as scratch:
            whole = Path(scratch) / entry.name
            whole.mkdir()
            for field in fields(Rows):
                np.save(whole / f"{field.name}.npy", getattr(fresh, field.name))
            left_out = [(row.where, row.reason) for row in dropped]
            (whole / "dropped.json").write_text(json.dumps(left_out), encoding="utf-8")
            _move(whole, entry)
    except OSError as error:
        warnings.warn(
            f"Tokenised rows cannot be kept in {entry.parent} ({error.strerror}); set BITUNE_CACHE to a folder that "
            "can be written, or to off.",
            stacklevel=2,
        )
        return False
    return True


def _move(whole: Path, entry: Path) -> None:
    try:
        os.rename(whole, entry)
    except OSError:
        if not entry.is_dir():  # else another process was quicker, and its work is the same
            raise
