"""From cells to the rows of a table: the methods of the paper's table, run or not, with its numbers beside ours.

What stands in a column of a row is made in `entries.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bitune_pl.reproduction.tables.cells import Cell
from bitune_pl.reproduction.tables.checks import checked
from bitune_pl.reproduction.tables.entries import Entry, Group
from bitune_pl.reproduction.tables.published import AVERAGE, MEASURES, PAPER, paper_model, paper_tasks, reference_model


@dataclass(frozen=True)
class Row:
    """A method on a model. `reference` is the paper's model whose numbers stand beside ours; `cells` may be empty."""

    table: str
    profile: str
    model: str
    method: str
    reference: str
    columns: dict[str, Entry]
    cells: tuple[Cell, ...]
    expected: tuple[int, ...]

    @property
    def done(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.error is None]

    @property
    def comparable(self) -> bool:
        return self.reference == paper_model(self.model)


def rows(cells: Sequence[Cell], seeds: Sequence[int] | None = None) -> list[Row]:
    """All rows: those of the paper's table, run or not, then others, for each model.

    Args:
        seeds: those that every trained method should have; None takes all that some trained method of the model has.

    Raises:
        ValueError: if there are no cells, or some do not belong with the others.
    """
    if not cells:
        raise ValueError("A table is made from cells, and there are none.")
    models = dict.fromkeys(cell.model for cell in checked(cells))
    return [row for model in models for row in _of_model([c for c in cells if c.model == model], seeds)]


def tasks_of(cells: Sequence[Cell]) -> list[str]:
    """The tasks of some cells, in the paper's order, its own first."""
    found = dict.fromkeys(task for cell in cells for task in cell.accuracy)
    return [task for task in PAPER["tasks"] if task in found] + [task for task in found if task not in PAPER["tasks"]]


def _of_model(cells: Sequence[Cell], seeds: Sequence[int] | None) -> list[Row]:
    table, model = cells[0].table, cells[0].model
    reference = reference_model(table, model)
    methods = dict.fromkeys([*PAPER["tables"][table]["rows"][reference], *(cell.method for cell in cells)])
    by_method = {method: {c.seed: c for c in cells if c.method == method} for method in methods}
    tasks = tasks_of(cells) or paper_tasks(table, reference)
    group = Group(table, model, reference, tasks, by_method, tuple(seeds or ()))
    return [
        Row(
            table, cells[0].profile, model, method, reference,
            columns={column: group.entry(method, column) for column in columns_of(table, group.tasks)},
            cells=tuple(by_method[method][seed] for seed in sorted(by_method[method])),
            expected=group.expected(method),
        )
        for method in methods
    ]  # fmt: skip


def columns_of(table: str, tasks: Sequence[str]) -> list[str]:
    """Columns: measures first, then tasks, then their average; of Table 14 only the average, as in the paper."""
    average = [AVERAGE] if len(tasks) > 1 else []
    return MEASURES.get(table, []) + (average if table == "table14" and average else [*tasks, *average])
