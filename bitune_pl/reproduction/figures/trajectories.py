"""How alpha went in a run: read from its TensorBoard events, or from the JSON file of a cell of the reproduction.

Only reading is done here; `alpha.py` draws. What the events are called is decided in `training/dashboard/scalars.py`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bitune_pl.arguments import read_config
from bitune_pl.method.variants import name_of, resolve
from bitune_pl.reproduction.figures.style import THETA_INIT
from bitune_pl.reproduction.tables.checks import flat
from bitune_pl.training.run_folder import existing_run

PARTS = {"alpha_k": "keys", "alpha_v": "values"}
"""What alpha is of, as it is written in figures."""

DEFAULTS = {
    "model.base": "smollm2", "model.method": "bitune", "model.adapter": "lora", "model.theta_init": 0.01,
    "data.source": "categories", "model.lr": 3e-4, "data.batch_size": 10, "data.max_length": 512,
}  # fmt: skip
"""What a run's config leaves out where it is at its default; a test holds them together."""

NAMED = ("model.base", "model.method", "data.source", "model.adapter")
"""Settings whose values say what they are of."""

WITHOUT_EFFECT = {
    "seed", "seed_everything", "data.seed", "data.root", "data.num_workers", "trainer.default_root_dir", "trainer.logger",
    "trainer.enable_progress_bar", "trainer.max_steps",
}  # fmt: skip
"""In these, runs of one curve may differ: seeds, places, and the length of the training, which `updates` has."""


@dataclass(frozen=True)
class Trajectory:
    """Alpha of one run.

    Args:
        name: of the run's folder or cell.
        settings: all that tells runs apart, by full names such as `model.theta_init`, and `updates`.
        seed: of the run.
        updates: at which alpha was logged.
        mean: over blocks, at each of them; for `alpha_k` and `alpha_v`.
        final: of each block after the last of them.

    Raises:
        ValueError: if the curves are no numbers from 0 to 1, one for each update, or the parts have other blocks.
    """

    name: str
    settings: dict[str, Any]
    seed: Any
    updates: list[int]
    mean: dict[str, list[float]]
    final: dict[str, list[float]]

    def __post_init__(self) -> None:
        alphas = [alpha for part in PARTS for alpha in (*self.mean[part], *self.final[part])]
        wrong = next((alpha for alpha in alphas if not (_is_number(alpha) and 0 <= alpha <= 1)), None)
        if wrong is not None:
            raise ValueError(f"an alpha is a number from 0 to 1, and one is {wrong!r:.40}")
        lengths = {len(self.updates), *(len(self.mean[part]) for part in PARTS)}
        blocks = {len(self.final[part]) for part in PARTS}
        if len(lengths) > 1 or len(blocks) > 1 or 0 in lengths | blocks or not all(map(_is_number, self.updates)):
            raise ValueError("keys and values have an alpha for each update and for each block alike")
        if not (_is_number(theta_init := self.settings["model.theta_init"]) and theta_init > 0):
            raise ValueError(f"theta_init is a number above 0, not {theta_init!r:.40}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read(path: str | Path) -> Trajectory:
    """The trajectory of a run folder, or of a cell's JSON file.

    Raises:
        FileNotFoundError: if there is no such run, or it has no events.
        ValueError: if the run has no alpha, since its method does not mix, or a file of it is damaged.
    """
    path = Path(path)
    try:
        return _of_cell(path) if path.suffix == ".json" else _of_run(existing_run(path))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        if str(path) in str(error):
            raise
        why = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is damaged ({why}): leave it out.") from error


def _of_run(run: Path) -> Trajectory:
    config = read_config(run / "config.yaml")
    settings, scalars = _settings(config), _scalars(run)
    found = {part: [tag for tag in sorted(scalars) if re.fullmatch(rf"{part}/layer_\d+", tag)] for part in PARTS}
    whole = all(found.values()) and all(f"{part}/mean" in scalars for part in PARTS)
    if not whole and resolve((config.get("model") or {}).get("method", DEFAULTS["model.method"])).mixing:
        raise FileNotFoundError(f"{run} has logged no alpha yet: wait for its first logged update.")
    if not whole:
        raise ValueError(
            f"{run} has no alpha: its method, {settings['model.method']}, does not mix two readings of the prompt; leave "
            "it out."
        )
    curves = {part: {event.step: event.value for event in scalars[f"{part}/mean"]} for part in PARTS}
    updates = sorted(set.intersection(*map(set, curves.values())))
    planned = (config.get("trainer") or {}).get("max_steps")
    return Trajectory(
        run.name,
        settings | {"updates": _length(updates, planned)},
        config.get("seed_everything"),
        updates,
        {part: [curve[update] for update in updates] for part, curve in curves.items()},
        {part: [scalars[tag][-1].value for tag in tags] for part, tags in found.items()},
    )


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's config or a cell's settings, flat, and what is left out as the defaults have it."""
    groups = {name: said.get(name) or {} for name in ("model", "data", "trainer")}
    wrong = next((name for name, group in groups.items() if not isinstance(group, dict)), None)
    if wrong:
        raise ValueError(f"{wrong} should hold settings, and is {groups[wrong]!r:.40}")
    method = resolve(groups["model"].get("method", DEFAULTS["model.method"]))
    groups["model"] = groups["model"] | {"method": name_of(method) or str(asdict(method))}
    return DEFAULTS | {name: value for name, value in flat(groups).items() if name not in WITHOUT_EFFECT}


def _length(updates: list[int], planned: int | None) -> str:
    """ "40", or "20 of 40" of a run that is not through."""
    last = updates[-1] if updates else 0
    return str(last) if planned in (None, -1, last) else f"{last} of {planned}"


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
    if not isinstance(cell, dict) or not {"model", "method", "seed", "alpha"} <= set(cell):
        raise ValueError(f"{path} is no cell of the reproduction: it should hold table, model, method, seed and alpha.")
    if cell["alpha"] is None:
        raise ValueError(
            f"{path} holds no alpha: {cell['method']} mixes no two readings of the prompt, or the cell is made of several "
            "runs, whose folders can be given one by one."
        )
    alpha, said = cell["alpha"], cell.get("settings") or {}
    told = {"model.base": cell["model"]}
    if "method" not in said.get("model", {}):  # else a row's name may be that of a setting, which is shown as such
        told["model.method"] = cell["method"]
    mean, final = ({part: alpha[f"{part}{end}"] for part in PARTS} for end in ("_mean", ""))
    updates = alpha["updates"]
    settings = _settings(said) | told | {"updates": _length(updates, said.get("trainer", {}).get("max_steps"))}
    return Trajectory(path.stem, settings, cell["seed"], updates, mean, final)


def labelled(trajectories: list[Trajectory]) -> dict[str, list[Trajectory]]:
    """Runs by a label that says how they differ; those that differ in their seeds alone share one.

    Raises:
        ValueError: if there are none.
    """
    if not trajectories:
        raise ValueError("There is no run to draw: give at least one.")
    names = dict.fromkeys([*DEFAULTS, *(name for trajectory in trajectories for name in trajectory.settings)])
    differing = [name for name in names if len({str(t.settings.get(name)) for t in trajectories}) > 1]
    differing = differing or ["model.theta_init"]
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=partial(_place, differing)):
        shown = [_shown(name, trajectory.settings.get(name, "default")) for name in differing]
        groups.setdefault(", ".join(shown), []).append(trajectory)
    return groups


def _shown(name: str, value: object) -> str:
    if name == "model.theta_init":
        return f"{THETA_INIT} = {value:.12g}"
    value = str(value).replace("$", r"\$")  # a dollar would begin a formula
    return value if name in NAMED else f"{name.rpartition('.')[2]} = {value}"


def _place(differing: list[str], trajectory: Trajectory) -> tuple:
    """Larger theta_init first, as in the paper's Figure 2."""
    others = [name for name in differing if name != "model.theta_init"]
    return (*(str(trajectory.settings.get(name)) for name in others), -trajectory.settings["model.theta_init"])
