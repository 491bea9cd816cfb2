"""One HTML page with a table's plot, results, gains, cost and settings, and how far it can be compared with the paper.

Everything is in the file: no network is needed to read it. `page.html` is its template.
"""

from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from bitune_pl.reproduction.tables import formats, notes
from bitune_pl.reproduction.tables.cells import runs_of
from bitune_pl.reproduction.tables.checks import flat
from bitune_pl.reproduction.tables.plots import colour, plot
from bitune_pl.reproduction.tables.published import PAPER
from bitune_pl.reproduction.tables.rows import Row

COST_HEADS = {
    "model": "model", "method": "method", "runs": "runs", "updates": "updates", "lr": "rate",
    "trained_parameters": "trained weights", "train_seconds": "training, s", "evaluate_seconds": "evaluation, s",
    "peak_memory_gb": "memory, GB", "loss_validation": "val. loss",
}  # fmt: skip


def page(rows: Sequence[Row]) -> str:
    """The page of a table."""
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    )
    claims = [claim for claim in PAPER["claims"] if rows[0].table in claim["tables"]]
    return template.render(
        title=notes.title(rows), unit=notes.unit(rows), profile=rows[0].profile, table=rows[0].table,
        models=[_model(model, own) for model, own in formats.by_model(rows).items()],
        cost=notes.cost(rows), cost_heads=COST_HEADS, total=_total(rows),
        claims=[c for c in claims if not c["holds"]], agreeing=[c for c in claims if c["holds"]],
        versions=_versions(rows), settings=_settings(rows),
    )  # fmt: skip


def _model(model: str, rows: Sequence[Row]) -> dict[str, Any]:
    cells = [cell for row in rows for cell in row.cells]
    return {
        "name": model,
        "label": formats.label(rows),
        "headline": notes.headline(rows),
        "facts": [
            f"{len([c for c in cells if c.error is None])} of {len(cells)} cells done",
            f"seeds {', '.join(map(str, sorted({cell.seed for cell in cells})))}",
            notes.subtitle(model, rows).removeprefix(model).strip(" ()"),
        ],
        "legend": [(row.method, colour(rows, row.method)) for row in rows if row.done],
        "comparable": rows[0].comparable,
        "guessing": any(column in PAPER["chance"] or column == "Avg." for column in rows[0].columns),
        "borrowed": not rows[0].comparable and any(e.paper for row in rows for e in row.columns.values()),
        "plot": Markup(plot(rows)),
        "columns": list(rows[0].columns),
        "rows": [_row(row) for row in rows],
        "gain_title": notes.gain_title(rows).rstrip(":"),
        "gains": [_gains(row) for row in rows if any(entry.gain for entry in row.columns.values())],
        "notes": notes.remarks(rows),
        "comparison": notes.comparison(rows),
    }


def _row(row: Row) -> dict[str, Any]:
    cells = []
    for column, entry in row.columns.items():
        said = entry.verdict
        cells.append(
            {
                "sort": entry.ours.mean if entry.ours else "",
                "ours": formats.ours(row, column),
                "paper": formats.paper(row, column),
                "verdict": formats.short(entry) if row.comparable else "",
                "kind": said.word.split()[0] if said else "",
                "why": f"{said}. {said.why}" if said else "",
            }
        )
    return {
        "method": row.method,
        "n": formats.count(row),
        "seeds": formats.seeds_of(row),
        "cells": cells,
        "reference": row.reference,
    }


def _gains(row: Row) -> dict[str, Any]:
    cells = []
    for entry in row.columns.values():
        clear = entry.gain and entry.gain.interval and entry.gain.interval.clear
        cells.append(
            {
                "sort": entry.gain.mean if entry.gain else "",
                "gain": formats.gain(entry.gain),
                "ends": formats.ends(entry.gain),
                "paper": formats.paper_gain(entry),
                "kind": ("up" if entry.gain.mean > 0 else "down") if clear else "",
            }
        )
    return {"method": row.method, "cells": cells, "reference": row.reference}


def _total(rows: Sequence[Row]) -> str:
    cells = [cell for row in rows for cell in row.done]
    seconds = {
        what: sum(cell.record.get(name) or 0 for cell in cells)
        for what, name in (("training", "train_seconds"), ("evaluation", "evaluate_seconds"))
    }
    spent = " and ".join(f"{_span(value)} of {what}" for what, value in seconds.items())
    return f"{len(cells)} cell{'s' * (len(cells) != 1)}, {spent}"


def _span(seconds: float) -> str:
    """ "1.5 hours", "90 minutes", "1 second": in the unit of which there are two or more."""
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:,.1f} hours"
    number, unit = (round(seconds / 60), "minutes") if seconds >= 2 * 60 else (round(seconds), "seconds")
    return f"{number} {unit if number != 1 else unit.rstrip('s')}"


def _versions(rows: Sequence[Row]) -> list[str]:
    found = Counter(
        f"{name} {version}"
        for row in rows
        for cell in row.done
        for name, version in (cell.record.get("versions") or {}).items()
    )
    return list(found)


def _settings(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What all trained cells share, as far as it was recorded."""
    cells = [cell for row in rows for cell in row.done if cell.trained]
    said = [{key: str(value) for run in runs_of(cell.record) for key, value in flat(run).items()} for cell in cells]
    return [(key, value) for key, value in said[0].items() if all(s.get(key) == value for s in said)] if said else []
