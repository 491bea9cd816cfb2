"""Do cells belong into one table?

A mean over seeds means something only if the runs differ in their seeds alone, and a paired gain only if both methods
were trained alike and answered the same questions. What does not fit is refused, naming the setting and both cells.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bitune_pl.reproduction.tables.cells import Cell, runs_of
from bitune_pl.reproduction.tables.published import paper_task

Said = dict[str, Any]


def checked(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, if they belong into one table.

    Raises:
        ValueError: which cells do not, and in what they differ.
    """
    _alike(cells, "One table is made from one table's cells", lambda c: {"table": c.table, "profile": c.profile})
    seen: dict[tuple, Cell] = {}
    for cell in cells:
        first = seen.setdefault((cell.model, cell.method, cell.seed), cell)
        if first is not cell:
            raise ValueError(
                f"{first.name} and {cell.name} are both {cell.method} on {cell.model}, seed {cell.seed}: remove one."
            )
    done = [cell for cell in cells if cell.error is None]
    for model in {cell.model for cell in done}:
        here = [cell for cell in done if cell.model == model]
        _alike(here, "Methods are compared on the same questions", _asked)
        _alike([c for c in here if c.trained], "Methods are compared after the same training", _training)
        for method in {cell.method for cell in here}:
            _alike(
                [c for c in here if c.method == method], "A mean is taken over seeds of one setting", _model_settings
            )
    return list(cells)


def _asked(cell: Cell) -> Said:
    """How many questions of each task, and which, where single answers are kept: those are compared one by one."""
    hashes = {paper_task(task): said for task, said in (cell.record.get("prompt_hash") or {}).items()}
    return {"questions": cell.questions, "prompt_hash": {task: None for task in cell.right} | hashes}


def _training(cell: Cell) -> Said:
    """What a table's methods share. A task that was not asked in all of them is no contradiction: the table shows it."""
    parts = ("data", "trainer", "latency")
    shared = [{part: run[part] for part in parts if part in run} for run in runs_of(cell.record)]
    return {"updates": cell.record.get("updates"), "settings": _numbered(shared)}


def _model_settings(cell: Cell) -> Said:
    """All that was set but the seed."""
    runs = [{key: said for key, said in run.items() if key not in ("seed", "tasks")} for run in runs_of(cell.record)]
    return {"lr": cell.record.get("lr"), "settings": _numbered(runs)}


def _numbered(runs: list[Said]) -> Said:
    return runs[0] if len(runs) == 1 else {f"runs.{index}": run for index, run in enumerate(runs)}


def _alike(cells: Iterable[Cell], rule: str, of: Callable[[Cell], Said]) -> None:
    known: dict[str, tuple[Any, Cell]] = {}
    for cell in cells:
        for key, value in flat(of(cell)).items():
            first, other = known.setdefault(key, (value, cell))
            if first != value:
                raise ValueError(
                    f"{rule}, but {key} is {_short(first)} for {other} and {_short(value)} for {cell}. "
                    "Take one of them out, or run it again with the other's settings."
                )


def flat(said: Said) -> Said:
    """Nested settings as one level: {"data": {"max_length": 224}} is {"data.max_length": 224}."""
    found: Said = {}
    for key, value in said.items():
        inner = flat(value) if isinstance(value, dict) else {}
        found |= {f"{key}.{name}": deeper for name, deeper in inner.items()} if inner else {key: value}
    return found


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 80 else f"{text[:80]} ..."
