"""What stands in a column of a row: mean and deviation, intervals, gain, the paper's numbers, a verdict.

Accuracies and gains are in percent here. A seed that failed, was not run or gave no number is left out of a mean and
named; the mean says how many seeds it stands on. An average over tasks is taken within each seed first, over the seeds
that have every task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bitune_pl.reproduction.tables.cells import Cell
from bitune_pl.reproduction.tables.published import (
    AVERAGE,
    MEASURES,
    PAPER,
    Published,
    baseline_of,
    paper_gain,
    paper_model,
    paper_scores,
    paper_tasks,
)
from bitune_pl.reproduction.tables.statistics import Interval, Summary, bootstrap, paired_gain, summarise
from bitune_pl.reproduction.tables.verdict import Verdict, difference, verdict


class Gain(NamedTuple):
    """Over the baseline: points of accuracy with their interval (None without single answers), or a ratio of measures."""

    mean: float
    interval: Interval | None = None
    ratio: bool = False


@dataclass(frozen=True)
class Entry:
    """A column of a row. `seeds`: value of each seed that counts; `missing`: why a seed does not."""

    ours: Summary | None = None
    seeds: dict[int, float] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    questions: int = 0
    interval: Interval | None = None
    gain: Gain | None = None
    paper: Published | None = None
    paper_gain: float | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Group:
    """The cells of one model, by method and seed. `seeds`: what every trained method should have; () takes what there is."""

    table: str
    model: str
    reference: str
    tasks: list[str]
    by_method: dict[str, dict[int, Cell]]
    seeds: tuple[int, ...] = ()

    def expected(self, method: str) -> tuple[int, ...]:
        """The seeds that the row should have; an untrained decoder needs no more than it has."""
        own = self.by_method[method]
        if not own or not all(cell.trained for cell in own.values()):
            return tuple(sorted(own))
        all_seeds = {c.seed for cells in self.by_method.values() for c in cells.values() if c.trained}
        return tuple(sorted({*(self.seeds or all_seeds), *own}))

    def entry(self, method: str, column: str) -> Entry:
        own = self.by_method[method]
        values = {seed: self._value(cell, column) for seed, cell in sorted(own.items())}
        counted = {seed: value for seed, value in values.items() if math.isfinite(value)}
        ours = summarise(list(counted.values()))
        paper = paper_scores(self.table, self.reference, method).get(column) if self._printed(column) else None
        questions = next((n for cell in own.values() if (n := self._questions(cell, column))), 0)
        return Entry(
            ours=ours, seeds=counted, questions=questions, paper=paper,
            missing={seed: self._why(method, seed, column) for seed in self.expected(method) if seed not in counted},
            interval=self._interval(method, column, tuple(counted)),
            gain=self._gain(method, column, counted),
            paper_gain=paper_gain(self.table, self.reference, method, column) if self._printed(column) else None,
            verdict=verdict(ours, paper, self._difference(method, column, questions)) if ours else None,
        )  # fmt: skip

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, cell: Cell, column: str) -> float:
        """In percent, or the measure's own unit; nan where there is none."""
        if column in MEASURES.get(self.table, []):
            return cell.values.get(column, math.nan)
        return 100 * float(np.mean([cell.accuracy.get(task, math.nan) for task in self._tasks(column)]))

    def _tasks(self, column: str) -> list[str]:
        return self.tasks if column == AVERAGE else [column]

    def _questions(self, cell: Cell, column: str) -> int:
        return sum(cell.questions.get(task, 0) for task in self._tasks(column))

    def _why(self, method: str, seed: int, column: str) -> str:
        cell = self.by_method[method].get(seed)
        if cell is None:
            return "not run"
        if cell.error is not None:
            error = " ".join(cell.error.split()).rstrip(".")
            return f"failed ({error if len(error) <= 200 else error[:200] + ' ...'})"
        lacking = [task for task in self._tasks(column) if not math.isfinite(cell.accuracy.get(task, math.nan))]
        absent = [task for task in lacking if task not in cell.accuracy]
        return f"{', '.join(absent)} not evaluated" if absent else f"no number for {', '.join(lacking) or column}"

    # -- intervals and gains -------------------------------------------------------------------------------------------

    def _outcomes(self, method: str, column: str, seeds: Sequence[int]) -> dict[str, np.ndarray] | None:
        """Task -> (seeds, questions), for an untrained decoder the same for every seed; None where answers are not kept."""
        chosen = [_of_seed(self.by_method[method], seed) for seed in seeds]
        tasks = self._tasks(column)
        if not chosen or not tasks or any(task not in cell.right for cell in chosen for task in tasks):
            return None
        return {task: np.stack([cell.right[task] for cell in chosen]) for task in tasks}

    def _interval(self, method: str, column: str, seeds: tuple[int, ...]) -> Interval | None:
        outcomes = self._outcomes(method, column, seeds)
        return _percent(bootstrap(outcomes)) if outcomes else None

    def _gain(self, method: str, column: str, counted: dict[int, float]) -> Gain | None:
        """Over the seeds that both methods have."""
        baseline = baseline_of(self.table, method)
        others = self.by_method.get(baseline, {})
        values = {seed: self._value(cell, column) for seed, cell in others.items()}
        both = _common(counted, {s: v for s, v in values.items() if math.isfinite(v)}, self.by_method[method], others)
        if not both:
            return None
        before, after = np.array(list(both.values())).T
        if column in MEASURES.get(self.table, []):
            return Gain(float(after.mean() / before.mean()), ratio=True)
        sides = [self._outcomes(side, column, list(both)) for side in (baseline, method)]
        interval = _percent(paired_gain(*sides)) if all(sides) else None
        return Gain(float((after - before).mean()), interval)

    # -- the paper -----------------------------------------------------------------------------------------------------

    def _printed(self, column: str) -> bool:
        """An average over other tasks than the paper's is not in the paper."""
        return column != AVERAGE or set(self.tasks) == set(paper_tasks(self.table, self.reference))

    def _difference(self, method: str, column: str, questions: int) -> str | None:
        known = self.reference if self.reference == paper_model(self.model) else None
        cell = next(cell for cell in self.by_method[method].values() if cell.error is None)
        if column in MEASURES.get(self.table, []):
            device = (cell.record.get("latency") or cell.record).get("device")
            same = difference(known, cell.profile, (None, None), (0, None))
            return same or (None if "A100" in str(device) or cell.profile == "published" else "other hardware")
        updates = PAPER["updates"].get(PAPER["tables"][self.table].get("trained_on"))
        ours = cell.record.get("updates") if cell.trained else None
        full = sum(PAPER["questions"].get(task, 0) for task in self._tasks(column))
        return difference(known, cell.profile, (ours, updates), (questions, full))


def _of_seed(cells: dict[int, Cell], seed: int) -> Cell:
    return cells[seed] if seed in cells else next(iter(cells.values()))


def _common(
    own: dict[int, float], other: dict[int, float], own_cells: dict[int, Cell], other_cells: dict[int, Cell]
) -> dict[int, tuple[float, float]]:
    """Seed -> (other's value, own value). An untrained decoder has its one value for every seed of the other side."""
    if not own or not other:
        return {}
    own = _for_all(own, own_cells, other)
    other = _for_all(other, other_cells, own)
    return {seed: (other[seed], own[seed]) for seed in sorted(own) if seed in other}


def _for_all(values: dict[int, float], cells: dict[int, Cell], seeds: dict[int, float]) -> dict[int, float]:
    if all(cell.trained for cell in cells.values()):
        return values
    return dict.fromkeys(seeds, next(iter(values.values())))


def _percent(interval: Interval) -> Interval:
    return interval._replace(mean=100 * interval.mean, low=100 * interval.low, high=100 * interval.high)
