"""How alpha went in a run: read from its TensorBoard events, or from the JSON file of a cell of the reproduction.

Only reading is done here; `alpha.py` draws. What the events are called is decided in `training/dashboard/scalars.py`.
"""

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from bitune_pl.method.variants import resolve
from bitune_pl.reproduction.figures.style import THETA_INIT
from bitune_pl.training.run_folder import existing_run

PARTS = {"alpha_k": "keys", "alpha_v": "values"}
"""What alpha is of, as it is written in figures."""

DEFAULTS = {"base": "smollm2", "method": "bitune", "theta_init": 0.01}
"""What a run's config leaves out where it is as `BituneModule` has it; a test holds them together."""


@dataclass(frozen=True)
class Trajectory:
    """Alpha of one run.

    Args:
        name: of the run's folder or cell.
        settings: what tells runs apart: base, method, theta_init; and the seed, which does not.
        updates: at which alpha was logged.
        mean: over blocks, at each of them; for `alpha_k` and `alpha_v`.
        final: of each block after the last of them.
    """

    name: str
    settings: dict[str, object]
    updates: list[int]
    mean: dict[str, list[float]]
    final: dict[str, list[float]]


def read(path: str | Path) -> Trajectory:
    """The trajectory of a run folder, or of a cell's JSON file.

    Raises:
        FileNotFoundError: if there is no such run, or it has no events.
        ValueError: if the run has no alpha, since its method does not mix.
    """
    path = Path(path)
    return _of_cell(path) if path.suffix == ".json" else _of_run(existing_run(path))


def _of_run(run: Path) -> Trajectory:
    settings, scalars = _settings(run), _scalars(run)
    found = {part: [tag for tag in sorted(scalars) if re.fullmatch(rf"{part}/layer_\d+", tag)] for part in PARTS}
    if not all(found.values()) and resolve(settings["method"]).mixing:
        raise FileNotFoundError(f"{run} has logged no alpha yet: wait for its first logged update.")
    if not all(found.values()):
        raise ValueError(
            f"{run} has no alpha: its method, {settings['method']}, does not mix two readings of the prompt; leave it out."
        )
    mean = {part: scalars[f"{part}/mean"] for part in PARTS}
    updates = [event.step for event in mean["alpha_k"]]
    return Trajectory(
        run.name,
        settings,
        updates,
        {part: [event.value for event in events] for part, events in mean.items()},
        {part: [scalars[tag][-1].value for tag in tags] for part, tags in found.items()},
    )


def _settings(run: Path) -> dict[str, object]:
    """Of a run's config, and what it leaves out as the defaults have it."""
    given = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")) or {}
    model = given.get("model") or {}
    return {name: model.get(name, default) for name, default in DEFAULTS.items()} | {
        "seed": given.get("seed_everything")
    }


def _scalars(run: Path) -> dict[str, list]:
    """All scalars of a run by their tags, none left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not list(run.glob("events.*")):
        raise FileNotFoundError(
            f"{run} has no TensorBoard events, which figures of alpha are drawn from: train with the default logger, "
            "or wait for the first logged update."
        )
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def _of_cell(path: Path) -> Trajectory:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}: give a run's folder or the JSON file of a cell.")
    cell = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(cell, dict) or "alpha" not in cell:
        raise ValueError(f"{path} is no cell of the reproduction: it should hold table, model, method, seed and alpha.")
    if cell["alpha"] is None:
        raise ValueError(
            f"{path} holds no alpha: {cell['method']} mixes no two readings of the prompt, or the cell is made of several "
            "runs, whose folders can be given one by one."
        )
    alpha, trained = cell["alpha"], (cell.get("settings") or {}).get("model") or {}
    theta_init = trained.get("theta_init", DEFAULTS["theta_init"])
    told = {"base": cell["model"], "method": cell["method"], "theta_init": theta_init}
    mean, final = ({part: alpha[f"{part}{end}"] for part in PARTS} for end in ("_mean", ""))
    return Trajectory(path.stem, told | {"seed": cell["seed"]}, alpha["updates"], mean, final)


def labelled(trajectories: list[Trajectory]) -> dict[str, list[Trajectory]]:
    """Runs by a label that says how they differ; those that differ in their seeds alone share one."""
    differing = [name for name in DEFAULTS if len({str(t.settings[name]) for t in trajectories}) > 1] or ["theta_init"]
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=partial(_place, differing)):
        shown = [_shown(name, trajectory.settings[name]) for name in differing]
        groups.setdefault(", ".join(shown), []).append(trajectory)
    return groups


def _shown(name: str, value: object) -> str:
    return f"{THETA_INIT} = {value:g}" if name == "theta_init" else str(value)


def _place(differing: list[str], trajectory: Trajectory) -> tuple:
    """Larger theta_init first, as in the paper's Figure 2."""
    return (*(str(trajectory.settings[n]) for n in differing if n != "theta_init"), -trajectory.settings["theta_init"])
