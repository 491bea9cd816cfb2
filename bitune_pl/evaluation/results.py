"""Results as one JSON object, from what lm-eval returns: scores by task, and one line a question.

    {"bitune_pl": ..., "versions": {...}, "model": {...}, "config": {...}, "settings": {...}, "seconds": 12.3,
     "known_before": 0,
     "tasks": {"piqa": {"n": 1838, "seconds": 12.3, "cut_contexts": 0, "acc": 0.68, "acc_stderr": 0.011, ...}},
     "questions": [
    {"task": "piqa", "index": 0, "prompt_hash": "...", "choices_hash": "...", "loglikelihoods": [-9.1, -12.2], "gold": 0, ...},
    {"task": "gsm8k", "index": 0, "prompt_hash": "...", "answer": "...", "extracted": "18", "gold": "18", ...}]}

Two runs that scored the same questions can so be compared question by question: the hashes say which are the same. What a
score means is said in the tasks' YAML files. `known_before` counts answers of an evaluation that was stopped, whose time is
not in `seconds`.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from bitune_pl import __version__
from bitune_pl.arguments import read_config
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.files import put
from bitune_pl.evaluation.answers import EXTRACTORS
from bitune_pl.evaluation.choices import pick
from bitune_pl.evaluation.finished import digest
from bitune_pl.method import adapters
from bitune_pl.method.backbone import name_of_dtype
from bitune_pl.method.model import Bitune
from bitune_pl.method.variants import name_of

PACKAGES = ("torch", "transformers", "peft", "lm_eval", "datasets", "tokenizers", "numpy")


def versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def describe(model: Bitune, run: str | None = None) -> dict:
    """What was scored: the run's folder if it is one, the base, the method (a variant's name or its fields), the adapter."""
    method = name_of(model.method) or asdict(model.method)
    return {"run": run, "base": model.decoder.name_or_path, "method": method, "adapter": model.adapter}


def computed(model: Bitune) -> dict:
    """In what numbers, on what, and when."""
    kind = model.decoder.device.type
    device = torch.cuda.get_device_name() if kind == "cuda" else kind
    theta_init = model.theta_init if model.method.mixing else None
    return {
        "theta_init": theta_init,
        "dtype": name_of_dtype(model.decoder.dtype),
        "device": device,
        "threads": torch.get_num_threads(),
        "base_fingerprint": model.base_fingerprint,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def config_of(run: str | None) -> dict | None:
    """The settings that a run was trained with, its seed among them; None for a base, or a `model/` folder on its own.

    Raises:
        ValueError: if they are damaged.
    """
    if not run:
        return None
    folder = Path(run).resolve()
    path = (folder.parent if folder.name == "model" else folder) / "config.yaml"
    return read_config(path) if path.is_file() else None


def fingerprint(model: Bitune, encoder: Encoder, **settings) -> str:
    """16 hexadecimal digits of all that an answer hangs on: weights, method, adapters, tokenizer, settings and versions."""
    weights = hashlib.sha256()
    for name, tensor in sorted(_own_tensors(model)):
        weights.update(name.encode())
        weights.update(tensor.detach().float().cpu().numpy().tobytes())
    spoken = digest(sorted(encoder.tokenizer.get_vocab().items()), encoder.opening, encoder.closing)
    told = (describe(model), model.base_fingerprint, name_of_dtype(model.decoder.dtype), model.theta_init, settings)
    adapted = [adapters.settings_of(model.decoder, name) for name in model.method.weight_sets]
    continued = model.decoder.generation_config.to_json_string()
    return digest(__version__, versions(), *told, adapted, continued, weights.hexdigest(), spoken)


def _own_tensors(model: Bitune) -> Iterator:
    for weights in model.method.weight_sets:
        yield from adapters.owned(model.decoder, weights).items()
    if model.method.mixing:
        yield from (("theta_k", model.theta_k), ("theta_v", model.theta_v))
    if model.start_token_id is not None:
        yield "start_token", model.decoder.get_input_embeddings().start_token.weight


def scores(found: dict, name: str) -> dict[str, float | int | None]:
    """n and every metric with its standard error, of a task or a group, from lm-eval's results."""
    row = found["results"][name]
    n = row.get("sample_len") or sum(found["n-samples"][task]["effective"] for task in leaves(found, name))
    taken = {"n": n}
    for key, value in row.items():
        metric, comma, way = key.partition(",")
        if comma:
            base, is_error = metric.removesuffix("_stderr"), metric.endswith("_stderr")
            label = base if way == "none" else f"{base}_{way}"
            taken[label + "_stderr" * is_error] = value if isinstance(value, int | float) else None
    return taken


def leaves(found: dict, name: str) -> list[str]:
    """The tasks of a group, or the task itself."""
    children = found["group_subtasks"].get(name)
    return [leaf for child in children for leaf in leaves(found, child)] if children else [name]


def questions(found: dict, tasks: dict) -> Iterator[dict]:
    """One object a question, in order; what several filters of lm-eval found of one is put together."""
    for task, samples in found["samples"].items():
        rows: dict[int, dict] = {}
        for sample in samples:
            row = rows.setdefault(sample["doc_id"], _question(task, sample, tasks[task]))
            way = sample["filter"]
            row |= {m if way == "none" else f"{m}_{way}": sample[m] for m in sample["metrics"] if _is_number(sample[m])}
        yield from rows.values()


def _question(task: str, sample: dict, spec) -> dict:
    row = {"task": task, "index": sample["doc_id"], "prompt_hash": sample["prompt_hash"][:16]}
    answers = [answer for responses in sample["resps"] for answer in responses]
    if all(isinstance(answer, str) for answer in answers):
        extract = EXTRACTORS.get(spec.config.process_results)
        both = answers[0], str(sample["target"])
        found = [extract(text, sample["doc"]) for text in both] if extract else (None, sample["target"])
        return row | {"answer": answers[0], "extracted": _text(found[0]), "gold": _text(found[1])}
    sums = [answer[0] if isinstance(answer, tuple | list) else answer for answer in answers]
    choices = digest(*(arguments[1:2] for arguments in sample["arguments"]))
    row |= {"choices_hash": choices, "loglikelihoods": [round(said, 6) for said in sums], "gold": sample["target"]}
    return row | ({"chosen": pick(sums)} if len(sums) > 1 else {})


def _text(found: object) -> str | None:
    return None if found is None else str(found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) or hasattr(value, "item")


def write(results: dict, path: Path) -> None:
    """Write results, a question a line; the file is there whole or not at all."""
    head = {key: value for key, value in results.items() if key != "questions"}
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, default=_plain) for row in results["questions"])
    text = json.dumps(head, indent=1, ensure_ascii=False, default=_plain).removesuffix("\n}")
    put(path, f'{text},\n "questions": [\n{lines}\n]}}\n')


def _plain(value: object):
    """Numbers of numpy as Python's, and anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)
