"""The numbers that the paper prints, and how they are looked up.

`published.yaml` holds Tables 1-8, 14-17 and 21-25 and what is known of the figures. Models and tasks go by the paper's
names here; `paper_model` and `paper_task` translate. Nothing is computed from the numbers but, in `as_cells`, cells that
have the published mean and deviation, so that the paper can be sent through the code that makes our tables.
"""

from importlib.resources import files
from typing import NamedTuple

import yaml

PAPER: dict = yaml.safe_load(files(__package__).joinpath("published.yaml").read_text(encoding="utf-8"))
AVERAGE = "Avg."
MEASURES = {"table4": ["Prefill", "Generation"], "table14": ["Train. Time [h]", "Memory [GB]"]}
"""Columns that are no accuracies."""


class Published(NamedTuple):
    """A printed number: mean over the seeds, and sample standard deviation where one is printed; in the table's unit."""

    mean: float
    deviation: float | None


def paper_model(name: str) -> str | None:
    """The paper's name of a model given by that, by a short or by a hub name; None: the paper has no such model."""
    for model, others in PAPER["models"].items():
        if name == model or name in others:
            return model
    return None


def paper_task(name: str) -> str:
    """The paper's name of a task; a task that the paper does not have keeps its own."""
    for task, others in PAPER["tasks"].items():
        if name in others:
            return task
    return name


def reference_model(table: str, name: str) -> str:
    """Whose numbers stand beside those of a model: its own, or else those of the smallest model of the table."""
    rows = PAPER["tables"][table]["rows"]
    known = paper_model(name)
    return known if known in rows else next(iter(rows))


def baseline_of(table: str, method: str) -> str | None:
    """The row over which a row's gain is counted; None for that row itself."""
    known = PAPER["tables"][table]
    baseline = known.get("baselines", {}).get(method, known["baseline"])
    return None if baseline == method or method in known.get("baselines", {}).values() else baseline


def paper_scores(table: str, model: str, method: str) -> dict[str, Published]:
    """Column -> printed number, in percent; empty for a row that the paper does not have.

    Means with two decimals and their deviations come from Tables 21-25 where those have the row.
    """
    known = PAPER["tables"][table]
    values = known["rows"].get(model, {}).get(method)
    if values is None:
        return {}
    printed = {column: Published(value, None) for column, value in zip(known["columns"], values, strict=True)}
    return printed | _with_deviations(known, model, method)


def _with_deviations(known: dict, model: str, method: str) -> dict[str, Published]:
    if "deviations" not in known:
        return {}
    spread = PAPER["deviations"][known["deviations"]]
    values = spread["rows"].get(model, {}).get(known.get("also_called", {}).get(method, method), [])
    return {task: Published(*value) for task, value in zip(spread["columns"], values, strict=False)}


def paper_tasks(table: str, model: str) -> list[str]:
    """The tasks that a table's averages are over, also where only the averages stand in it."""
    methods = PAPER["tables"][table]["rows"][model]
    found = {task for method in methods for task in paper_scores(table, model, method)}
    return [task for task in PAPER["tasks"] if task in found]


def paper_gain(table: str, model: str, method: str, column: str) -> float | None:
    """Published mean of a row less that of its baseline; of measures, the one divided by the other."""
    baseline = baseline_of(table, method)
    if baseline is None:
        return None
    own, other = (paper_scores(table, model, name).get(column) for name in (method, baseline))
    if not own or not other:
        return None
    return own.mean / other.mean if column in MEASURES.get(table, []) else own.mean - other.mean


def paper_seeds(table: str, method: str) -> int | None:
    """How many seeds the paper took; None where it does not say."""
    return 1 if method == "Pretrained" else PAPER["tables"][table].get("seeds", len(PAPER["seeds"]))


def as_cells(table: str) -> list[dict]:
    """Cells of the profile `published` with the paper's scores, and no `right`, for the code that makes our tables.

    Where a deviation is printed, the three seeds have mean - deviation, mean and mean + deviation, whose mean and sample
    deviation are the printed ones. What each of the paper's seeds gave is not known. Else there is one cell, of seed 42.

    Raises:
        ValueError: for a table without accuracies of tasks: 4 has seconds, and 14 repeats Table 1's.
    """
    if table in MEASURES:
        raise ValueError(f"{table} is not made of accuracies of tasks: its numbers are in PAPER['tables'].")
    rows = ((model, method) for model, methods in PAPER["tables"][table]["rows"].items() for method in methods)
    cells = [cell for model, method in rows for cell in _cells(table, model, method)]
    return [cell for cell in cells if cell["scores"]]  # of Anti-causal only the average is printed


def _cells(table: str, model: str, method: str) -> list[dict]:
    scores = {task: score for task, score in paper_scores(table, model, method).items() if task in PAPER["tasks"]}
    spread = any(score.deviation for score in scores.values())
    steps = zip(PAPER["seeds"], (-1, 0, 1), strict=True) if spread else [(PAPER["seeds"][0], 0)]
    return [
        {
            "table": table, "profile": "published", "model": model, "method": method, "seed": seed, "status": "done",
            "error": None, "settings": {}, "updates": None, "versions": {}, "right": {}, "prompt_hash": {},
            "scores": {task: _score(task, score, step) for task, score in scores.items()},
        }
        for seed, step in steps
    ]  # fmt: skip


def _score(task: str, score: Published, step: int) -> dict:
    return {"acc": (score.mean + step * (score.deviation or 0)) / 100, "n": PAPER["questions"][task]}
