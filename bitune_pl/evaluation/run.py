"""Open what is to be scored or asked: a run's `model/` folder, or a base as it was pretrained.

A `model/` folder holds the method's weights (`Bitune.save_pretrained`), the tokenizer (transformers) and `prompt.json`:
the template and the length limit that the run was trained with.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bitune_pl.arguments import check_model
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.templates import Template
from bitune_pl.method.backbone import load_decoder, load_tokenizer, usual_device
from bitune_pl.method.model import Bitune

PROMPT, TOKENIZER = "prompt.json", ("tokenizer.json", "tokenizer_config.json")


class Opened(NamedTuple):
    """A model, the encoder that speaks to it, and the template of its run (None for a base)."""

    model: Bitune
    encoder: Encoder
    template: Template | None


def write_prompt(folder: Path, template: Template, max_length: int) -> None:
    """Write `prompt.json`."""
    text = json.dumps({"template": asdict(template), "max_length": max_length}, indent=2, ensure_ascii=False)
    (folder / PROMPT).write_text(text + "\n")


def open_run(folder: str | Path, dtype: torch.dtype | None = None) -> Opened:
    """A run's best model, from the run's folder or its `model/`.

    Args:
        folder: of the run.
        dtype: of the base; the one it was trained in if not given.

    Raises:
        FileNotFoundError: if the folder is no run, has no model yet, or a part of it is missing.
        ValueError: if a part is damaged.
    """
    folder = Path(folder)
    model = folder / "model" if (folder / "model").is_dir() else folder
    if not (model / PROMPT).is_file():
        raise FileNotFoundError(_without_model(folder))
    template, max_length = _read_prompt(model / PROMPT)
    tokenizer = _read_tokenizer(model)
    opened = Bitune.from_pretrained(model, dtype=dtype, device=usual_device())
    return Opened(opened, Encoder(tokenizer, max_length, opened.start_token_id), template)


def _without_model(folder: Path) -> str:
    """What a folder without a model is, and what to do."""
    if (folder / "model").is_dir():
        return f"{folder / 'model'} lacks {PROMPT}: copy the run's whole model folder."
    if (folder / "checkpoints").is_dir():
        return f"{folder} has no model: bitune fit --resume {folder} goes on with a training that was stopped, and writes it."
    if below := sorted(path.parents[1] for depth in ("*", "*/*") for path in folder.glob(f"{depth}/model/{PROMPT}")):
        return f"{folder} holds runs and is none: name one, such as {below[-1]}."
    what = (
        f"holds no model (no {PROMPT})" if folder.is_dir() else "is no folder" if folder.exists() else "does not exist"
    )
    return f"{folder} {what}: give the folder of a finished run, such as runs/smollm2/<date-time>-<seed>."


def _read_prompt(path: Path) -> tuple[Template, int]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if missing := {"template", "max_length"} - set(said):
            raise ValueError(f"without {' and '.join(sorted(missing))}")
        return Template(**said["template"]), int(said["max_length"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy the run's whole model folder again.") from error


def _read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    for part in TOKENIZER:
        if not (folder / part).is_file():
            raise FileNotFoundError(f"{folder} lacks {part}: copy the run's whole model folder.")
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # a file that is cut gives a bare Exception
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{folder / TOKENIZER[0]} or {TOKENIZER[1]} is damaged ({reason}): copy the run's whole model folder again."
        ) from error


def open_base(name: str, dtype: torch.dtype | None = None) -> Opened:
    """A base as it was pretrained: one causal reading, no adapters; see `load_decoder` for its type."""
    encoder = Encoder(load_tokenizer(name))
    decoder = load_decoder(name, dtype, usual_device())
    return Opened(Bitune.build(decoder, method="plain", adapter="none").eval(), encoder, None)


def open_either(run: str | None, base: str | None, dtype: str | None = None) -> Opened:
    """Whichever of the two was named, with the base in a type if one was named.

    Raises:
        ValueError: if not exactly one was.
    """
    check_model(run, base)
    wanted = None if dtype is None else getattr(torch, dtype)
    return open_run(run, wanted) if run is not None else open_base(base, wanted)
