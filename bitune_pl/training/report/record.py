"""What a run's folder says about it: config, curves, texts, scores of tasks; any of them may be missing.

Only files are read: no decoder is loaded and nothing is trained.
"""

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bitune_pl.training.dashboard.texts import Answered, from_table
from bitune_pl.training.run_folder import existing_run

Curve = tuple[list[int], list[float]]
"""Updates and values."""


@dataclass
class Record:
    """A run as its folder has it.

    Args:
        folder: where it is.
        config: the text of its `config.yaml`.
        curves: scalars by their tags.
        settings: all settings, if its events say them.
        samples: answers to validation prompts, each with the update they are of; the last of each prompt.
        ended: whether its events say that its training came to an end.
        results: what `bitune evaluate --out` wrote beside it, by file name.
    """

    folder: Path
    config: str
    curves: dict[str, Curve] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    samples: list[tuple[int, Answered]] = field(default_factory=list)
    ended: bool = False
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def plain_config(self) -> dict[str, Any]:
        """The config as values."""
        return yaml.safe_load(self.config) or {}

    def section(self, name: str) -> dict[str, Any]:
        """A part of the config; empty where it is missing, or something else."""
        said = self.plain_config.get(name)
        return said if isinstance(said, dict) else {}

    @property
    def updates(self) -> int:
        """How far the run has come."""
        return max((steps[-1] for steps, _ in self.curves.values()), default=0)

    @property
    def planned(self) -> int | None:
        """How many updates it was to have, if that is known."""
        said = str(self.settings.get("updates") or self.section("trainer").get("max_steps"))
        return int(said) if said.isdecimal() and int(said) else None

    def last(self, tag: str) -> float | None:
        """The last value of a curve."""
        return self.curves[tag][1][-1] if tag in self.curves else None

    def alphas(self, name: str) -> tuple[list[int], np.ndarray]:
        """Updates at which every block has its alpha, and alphas of shape `(updates, layers)`; both empty without mixing."""
        tags = sorted(tag for tag in self.curves if re.fullmatch(rf"{name}/layer_\d+", tag))
        blocks = [dict(zip(*self.curves[tag], strict=True)) for tag in tags]
        updates = sorted(set.intersection(*map(set, blocks))) if blocks else []
        return updates, np.array([[block[update] for block in blocks] for update in updates])


def read(folder: Path) -> Record:
    """Read a run.

    Raises:
        FileNotFoundError: if the folder is not that of a run.
        ValueError: if its config cannot be read.
    """
    config = (existing_run(folder) / "config.yaml").read_text(encoding="utf-8", errors="backslashreplace")
    record = Record(folder, config, results=_results(folder))
    try:
        valid = isinstance(record.plain_config, dict)
    except (yaml.YAMLError, RecursionError):
        valid = False
    if not valid:
        raise ValueError(f"{folder / 'config.yaml'} cannot be read as a config; it may be cut short.")
    if any(folder.glob("events.out.tfevents.*")):
        _take_events(record)
    return record


def _take_events(record: Record) -> None:
    """Curves and texts; what a resumed run made anew is purged by TensorBoard's own reader."""
    try:
        events = EventAccumulator(str(record.folder), size_guidance={"scalars": 0, "tensors": 0, "images": 1}).Reload()
    except Exception as error:  # whatever its reader makes of bytes that are no record
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"The TensorBoard events in {record.folder} are damaged ({said}): move them away, and the page is made without."
        ) from None
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        record.curves[tag] = [point.step for point in points], [point.value for point in points]
    texts = {tag: events.Tensors(tag)[-1] for tag in events.Tags()["tensors"]}
    if "settings" in texts:
        record.settings = from_table(_text(texts["settings"]))
    record.ended = "_hparams_/session_end_info" in events.summary_metadata
    samples = sorted(
        (tag for tag in texts if re.fullmatch(r"samples/\d+", tag)), key=lambda tag: int(tag.split("/")[1])
    )
    record.samples = [(texts[tag].step, Answered.read(_text(texts[tag]))) for tag in samples]


def _text(event) -> str:
    return event.tensor_proto.string_val[0].decode()


def _results(folder: Path) -> dict[str, dict[str, Any]]:
    """Every JSON file of the folder that holds scores of tasks; others are left alone."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            said = json.loads(path.read_text())
        except (ValueError, OSError, RecursionError):
            continue
        tasks = said.get("tasks") if isinstance(said, dict) else None
        if isinstance(tasks, dict) and all(isinstance(scores, dict) for scores in tasks.values()):
            found[path.name] = said
    return found
