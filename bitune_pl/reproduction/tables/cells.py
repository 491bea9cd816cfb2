"""The cells of a table as the grid recorded them: read, and put into the paper's words.

A file that is no cell, or contradicts itself, is refused by name. A cell that failed is kept, for it is to be counted.
Whether cells belong together is the business of `checks.py`.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bitune_pl.reproduction.tables.published import MEASURES, PAPER, paper_task

NEEDED = ("table", "profile", "model", "method", "seed", "status")
MAPPINGS = ("settings", "scores", "right", "prompt_hash", "versions", "latency")
NUMBERS = (
    "updates", "lr", "train_seconds", "evaluate_seconds", "peak_memory_gb", "trained_parameters", "loss_validation",
)  # fmt: skip
DEEPEST = 20
"""Levels of a record's nesting; those of the grid have seven at most."""
LARGEST = 1e300


@dataclass(frozen=True)
class Cell:
    """One model, method and seed. Tasks go by the paper's names; accuracies are fractions, `values` whatever is no task."""

    name: str
    table: str
    profile: str
    model: str
    method: str
    seed: int
    error: str | None
    accuracy: dict[str, float] = field(default_factory=dict)
    questions: dict[str, int] = field(default_factory=dict)
    right: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def trained(self) -> bool:
        """An untrained decoder gives the same for every seed."""
        return self.method != "Pretrained"

    def __str__(self) -> str:
        return f"{self.method} on {self.model}, seed {self.seed} ({self.name})"


def read(folder: Path) -> list[Cell]:
    """The cells in a folder, in the order of their names.

    Raises:
        FileNotFoundError: if the folder is missing, or has no cells.
        ValueError: if a file is no cell.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"A table is made from a folder of cells, and there is no folder {folder}.")
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no cells (JSON files that the grid writes). {_elsewhere(folder)}")
    return [parse(_loaded(path), path.name) for path in paths]


def _elsewhere(folder: Path) -> str:
    tables = {path.parent for depth in ("*/*.json", "*/*/*.json") for path in folder.glob(depth)}
    tables = sorted(str(path) for path in tables if path.parent.name in PAPER["tables"])
    return f"There are cells in {', '.join(tables[:8])}: give one of those." if tables else "Run the grid first."


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not whole JSON ({error}): remove it, and run the grid again.") from None


def parse(record: Any, name: str = "a record") -> Cell:
    """A cell from its record.

    Raises:
        ValueError: if the record is no cell of a table that the paper has, or contradicts itself.
    """
    missing = [key for key in NEEDED if key not in record] if isinstance(record, dict) else list(NEEDED)
    if missing:
        raise ValueError(f"{name} is not a cell of a table: it lacks {', '.join(missing)}. Move it elsewhere.")
    if odd := [key for key in NEEDED if not (_is_whole if key == "seed" else _is_text)(record[key])]:
        raise ValueError(
            f"{name} is not a cell of a table: its {odd[0]} is {_short(record[odd[0]])}. Move it elsewhere."
        )
    if record["table"] not in PAPER["tables"]:
        raise ValueError(f"{name} is a cell of {record['table']!r}; there are {', '.join(PAPER['tables'])}.")
    if not re.fullmatch(r"[a-z0-9_-]+", record["profile"]):  # files are named after it
        raise ValueError(f"{name} has the profile {record['profile']!r}; a profile is small letters, digits, - and _.")
    said = {key: record[key] for key in NEEDED[:-1]}
    try:
        _check(record)
        cell = _cell(record, name, said)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{name} is a damaged cell ({why}): remove it, and run the grid again.") from None
    return _consistent(cell)


def _check(record: dict[str, Any]) -> None:
    """Refuse what would be a mistake of another kind later: nothing but JSON's own types was promised."""
    if _is_deeper(record, DEEPEST):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair could not be written
    if record["status"] != "done":
        return
    for key in MAPPINGS:
        if not isinstance(record.get(key) or {}, dict):
            raise ValueError(f"its {key} is {_short(record[key])}")
    for key in NUMBERS:
        if math.isnan(_number(said := record.get(key), key)) and said is not None and key != "loss_validation":
            raise ValueError(f"its {key} is {said}")  # only a loss may be: of a run that diverged
    for run in runs_of(record):
        if not isinstance(run, dict) or not isinstance(run.get("data", {}), dict):
            raise ValueError(f"its settings hold {_short(run)}")


def runs_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings of the runs that a cell was made of: one, or one for each task."""
    settings = record.get("settings") or {}
    return settings.get("runs") or [settings]


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not levels or any(_is_deeper(one, levels - 1) for one in inner)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: Any) -> str:
    return f"{value!r:.60}"


def _cell(record: dict[str, Any], name: str, said: dict[str, Any]) -> Cell:
    if record["status"] != "done":
        return Cell(name, **said, error=str(record.get("error") or "no reason recorded"), record=record)
    scores = {_task(task): score for task, score in (record.get("scores") or {}).items()}
    return Cell(
        name, **said, error=None, record=record,
        accuracy={task: _number(score["acc"], "accuracy") for task, score in scores.items()},
        questions={task: _count(score["n"]) for task, score in scores.items()},
        right={_task(task): _answers(right) for task, right in (record.get("right") or {}).items() if right},
        values=_values(record),
    )  # fmt: skip


def _task(name: str) -> str:
    if not _is_text(name):
        raise ValueError(f"a task has the name {_short(name)}")
    return paper_task(name)


def _count(value: Any) -> int:
    if not _is_whole(value) or value < 0:
        raise ValueError(f"a number of questions is {_short(value)}")
    return value


def _answers(right: Any) -> np.ndarray:
    if (found := np.array(right)).ndim != 1:
        raise ValueError(f"answers are marked by {_short(right)}")
    return found


def _number(value: Any, what: str) -> float:
    """nan where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | None) or abs(value or 0) > LARGEST:
        raise ValueError(f"its {what} is {_short(value)}, which is no number that can be")
    return math.nan if value is None else float(value)


def _values(record: dict[str, Any]) -> dict[str, float]:
    latency = record.get("latency") or {}
    said = {
        "Prefill": latency.get("prefill_seconds"),
        "Generation": latency.get("decode_seconds"),
        "Train. Time [h]": (record.get("train_seconds") or 0) / 3600 or None,
        "Memory [GB]": record.get("peak_memory_gb") or None,
    }
    wanted = MEASURES.get(record["table"], [])
    return {column: _number(value, column) for column, value in said.items() if column in wanted}


def _consistent(cell: Cell) -> Cell:
    for task, right in cell.right.items():
        said = cell.accuracy.get(task, math.nan)
        if not np.isin(right, (0, 1)).all():
            raise ValueError(
                f"{cell} marks answers to {task} as right by other numbers than 0 and 1. Run that cell again."
            )
        if len(right) != cell.questions.get(task) or abs(right.mean() - said) * len(right) > 0.5:
            raise ValueError(
                f"{cell} contradicts itself: {task} has an accuracy of {said:.4f} on {cell.questions.get(task)} questions, "
                f"but {right.sum()} of {len(right)} answers are marked right. Run that cell again."
            )
    for task, said in cell.accuracy.items():
        if not math.isnan(said) and not 0 <= said <= 1:
            raise ValueError(f"{cell} has an accuracy of {said} on {task}, which is no share. Run that cell again.")
    return cell
