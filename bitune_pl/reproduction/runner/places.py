"""Where a grid keeps things, and records that are written once and whole.

FOLDER/<table>/<profile>/<model>--<method>--<seed>.json   cells: what tables and figures read
FOLDER/learning_rate/<profile>/...                        cells of the searches
FOLDER/parts/<key>.json                                   what each run gave; cells are put together from these
FOLDER/scores/<key>-<limit>.json                          its results of `bitune evaluate`, until they are in its part
FOLDER/runs/<training>/                                   folders of `bitune fit`, one for each training
FOLDER/logs/<key>.log                                     what each run said
FOLDER/locks/                                             which trainings are under way
FOLDER/slurm/                                             what submitit writes, with --launcher slurm
FOLDER/tables/                                            tables in all formats
FOLDER/decoders/                                          tiny decoders of the smoke profile
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitune_pl.data.files import put
from bitune_pl.reproduction.runner.experiment import Cell, Run, slug


@dataclass(frozen=True)
class Places:
    """The files of a grid below its folder."""

    folder: Path

    def cell(self, cell: Cell) -> Path:
        return self.folder / cell.table / cell.profile / f"{cell.name}.json"

    def part(self, run: Run) -> Path:
        return self.folder / "parts" / f"{run.key}.json"

    def scores(self, run: Run, limit: int | None) -> Path:
        return self.folder / "scores" / f"{run.key}-{limit}.json"

    def log(self, run: Run) -> Path:
        return self.folder / "logs" / f"{run.key}.log"

    def lock(self, run: Run) -> Path:
        """One for all that needs the same training, so that no two processes do it."""
        return self.folder / "locks" / f"{run.training}.lock"

    def training(self, run: Run) -> Path:
        said = run.settings["model"]
        variant = "-".join(str(said[name]) for name in ("method", "adapter") if name in said)
        return self.folder / "runs" / f"{slug(Path(said['base']).name)}-{variant}-{run.training}"

    @property
    def decoders(self) -> Path:
        return self.folder / "decoders"


def write(path: Path, record: dict[str, Any]) -> None:
    """Write JSON, a field a line; nobody sees half of it."""
    text = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, f"{{\n{text}\n}}\n")


def read(path: Path) -> dict[str, Any] | None:
    """A record, or None where there is none.

    Raises:
        ValueError: if the file is no record.
    """
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a record of a cell ({error}): remove it, and it is made again.") from None
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not a record of a cell but {str(record)[:40]!r}: remove it, and it is made again.")
    return record


def whole(path: Path) -> dict[str, Any] | None:
    """A record that is only kept to go on from: None where it is damaged, so that it is made anew."""
    try:
        return read(path)
    except ValueError:
        return None


def finished(path: Path, key: str) -> dict[str, Any] | None:
    """The record at a place, if it is of that key and done."""
    record = read(path)
    return record if record and record.get("status") == "done" and record.get("key") == key else None


def set_aside_stale(path: Path, key: str) -> str | None:
    """Move a record of other settings, or what is no record, out of the way; returns what to say about it."""
    try:
        record = read(path)
    except ValueError:
        record, what = {}, "is damaged"
    else:
        what = "was recorded with other settings"
    if record is None or record.get("key") == key:
        return None
    aside = path.with_name(f"{path.name}.{slug(str(record.get('key', 'unknown')))[:16]}.old")
    os.replace(path, aside)
    return f"{path.name} {what}: it is done again, and the old file is kept as {aside.name}."


def finished_elsewhere(folder: Path) -> dict[str, dict[str, Any]]:
    """Finished cells of another grid, by key, whatever their table.

    Raises:
        FileNotFoundError: if there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder} to take finished cells from.")
    records = (read(path) for path in sorted(folder.glob("*/*/*.json")))
    return {
        record["key"]: record for record in records if record and record.get("status") == "done" and "key" in record
    }


def cell_record(cell: Cell, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The record of a cell from those of its runs, in their order; failed if one of them failed."""
    parts = list(parts)
    named = {
        "table": cell.table,
        "profile": cell.profile,
        "model": cell.model,
        "method": cell.method,
        "seed": cell.seed,
    }
    errors = [part["error"] for part in parts if part["status"] != "done"]
    head = named | {"status": "failed" if errors else "done", "error": " ".join(errors) or None, "key": cell.key}
    return head | {"settings": _settings(cell)} | _together(parts)


def _settings(cell: Cell) -> dict[str, Any]:
    return cell.runs[0].settings if len(cell.runs) == 1 else {"runs": [run.settings for run in cell.runs]}


SUMS = ("updates", "train_seconds", "evaluate_seconds")
MAPPINGS = ("scores", "right", "prompt_hash", "versions")
SINGLE = ("run", "lr", "trained_parameters", "loss_validation", "alpha", "latency", "device", "resumed")


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Times added up, scores side by side, the highest memory; what only one run can have is null where there are more."""
    said: dict[str, Any] = {name: sum(part.get(name) or 0 for part in parts) for name in SUMS}
    said["peak_memory_gb"] = max((part.get("peak_memory_gb") or 0.0 for part in parts), default=0.0)
    for name in MAPPINGS:
        said[name] = {key: value for part in parts for key, value in (part.get(name) or {}).items()}
    for name in SINGLE:
        values = [part.get(name) for part in parts]
        said[name] = values[0] if values and all(value == values[0] for value in values) else None
    return said
