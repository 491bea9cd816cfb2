"""What a cell's record says, read off a run's folder and off the results of `bitune evaluate`.

Curves and counts come from the run's TensorBoard events and its last checkpoint; nothing is trained or scored here.
"""

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bitune_pl import __version__
from bitune_pl.evaluation.evaluate import FIRST
from bitune_pl.training.run_folder import last_checkpoint

POINTS = 200  # most points of a curve in a record
PACKAGES = ("torch", "transformers", "peft", "lightning", "lm-eval")


def versions() -> dict[str, str]:
    return {"bitune_pl": __version__} | {name: version(name) for name in PACKAGES}


def device_name() -> str:
    """What this process computes on, as tables tell hardware apart."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu, {torch.get_num_threads()} threads"


def training(run: Path) -> dict[str, Any]:
    """Updates, size, memory and curves of a finished run."""
    saved = torch.load(last_checkpoint(run), weights_only=True, map_location="cpu", mmap=True)
    events = _events(run)
    losses = _curve(events, "loss/validation")
    return {
        "updates": saved["global_step"],
        "trained_parameters": sum(tensor.numel() for tensor in saved["state_dict"].values()),
        "loss_validation": losses[-1][1] if losses else None,
        "peak_memory_gb": max((gb for _, gb in _curve(events, "cost/peak_memory_gb")), default=0.0),
        "alpha": _alpha(events),
    }


def seconds_of_updates(run: Path) -> float:
    """The time of a run that was resumed: its updates at the median time between two."""
    times = [event.wall_time for event in _events(run).Scalars("loss/train")]
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    return len(times) * statistics.median(gaps) if gaps else 0.0


def _events(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()


def _curve(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(e.step, e.value) for e in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []


def _alpha(events: EventAccumulator) -> dict[str, list] | None:
    """Means over the blocks against update, and the last value of each block; None without mixing."""
    if not (curve := _curve(events, "alpha_k/mean")):
        return None
    step = -(-len(curve) // POINTS)
    kept = sorted({*range(0, len(curve), step), len(curve) - 1})
    said: dict[str, list] = {"updates": [curve[i][0] for i in kept]}
    for name in ("alpha_k", "alpha_v"):
        values = _curve(events, f"{name}/mean")
        said[f"{name}_mean"] = [round(values[i][1], 6) for i in kept]
        layers = sorted(tag for tag in events.Tags()["scalars"] if tag.startswith(f"{name}/layer_"))
        said[name] = [round(_curve(events, tag)[-1][1], 6) for tag in layers]
    return said


def scores(tasks: Iterable[str], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy, outcomes and a hash of the questions of each task, from results of `bitune evaluate`.

    Accuracy is the first of `FIRST` that a task has; which metric the paper prints, it does not say.

    Raises:
        ValueError: if a task is missing from the results.
    """
    found: dict[str, Any] = {"scores": {}, "right": {}, "prompt_hash": {}}
    for task in tasks:
        result = next((result for result in results if task in result["tasks"]), None)
        if result is None:
            raise ValueError(f"The evaluation gave no results for {task}.")
        figures = result["tasks"][task]
        metric = next(metric for metric in FIRST if metric in figures)
        asked = [q for q in result["questions"] if q["task"] == task or q["task"].startswith(f"{task}_")]
        asked = [q for q in asked if metric in q]
        found["scores"][task] = {"acc": figures[metric], "n": figures["n"], "stderr": figures[f"{metric}_stderr"]}
        found["right"][task] = [int(q[metric]) for q in asked]
        hashes = "".join(q["prompt_hash"] for q in asked)
        found["prompt_hash"][task] = hashlib.sha256(hashes.encode()).hexdigest()[:16]
    return found
