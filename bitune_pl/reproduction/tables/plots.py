"""The plot of a page: bars of accuracy and, below them, gains over the baseline, with their 95 % intervals, as SVG.

Colours are those of the page: the plot is drawn in marks that are replaced by CSS variables, so that it follows a light or
a dark page. Texts stay texts. Resting on a bar or a gain shows its numbers.
"""

import io
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from bitune_pl.reproduction.tables.notes import points
from bitune_pl.reproduction.tables.published import AVERAGE, MEASURES, PAPER, baseline_of
from bitune_pl.reproduction.tables.rows import Row, tasks_of

COLOURS = 8
"""Methods have the page's colours --m0 to --m7."""

INK, FAINT, GRID = "#010203", "#010204", "#010205"
VARIABLES = {INK: "--ink", FAINT: "--faint", GRID: "--line"}
STYLE = {
    "svg.fonttype": "none", "figure.facecolor": "none", "axes.facecolor": "none",
    "font.size": 8.5, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": GRID, "grid.color": GRID,
    "xtick.color": INK, "ytick.color": INK, "xtick.major.size": 0, "axes.grid": True, "axes.grid.axis": "y",
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def plot(rows: Sequence[Row]) -> str:
    """The plot of one model's rows; empty if there is nothing to draw."""
    drawn = [row for row in rows if row.done]
    columns = [c for c in drawn[0].columns if c not in MEASURES.get(drawn[0].table, [])] if drawn else []
    if not columns:
        return ""
    gains = any(row.columns[column].gain for row in drawn for column in columns)
    with rc_context(STYLE | {"svg.hashsalt": drawn[0].model}):
        figure = Figure(figsize=(11, 4.7 if gains else 2.9), layout="constrained")
        axes = figure.subplots(2 if gains else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 2][: 1 + gains])
        titles = _bars(axes[0, 0], rows, drawn, columns)
        if gains:
            titles |= _gains(axes[1, 0], rows, drawn, columns)
        room = max(0, 4 - len(columns)) / 2  # few columns are not spread over the whole width
        axes[-1, 0].set_xlim(-0.6 - room, len(columns) - 0.4 + room)
        axes[-1, 0].set_xticks(range(len(columns)), [_label(drawn, column) for column in columns])
        return _svg(figure, titles)


OWN = {"Pretrained": 0, "LoRA": 1, "LoRA16": 2, "Bitune": 3}
"""Methods that look the same in every table; others share the rest."""


def colour(rows: Sequence[Row], method: str) -> int:
    """Which of the page's colours a method has."""
    if method in OWN:
        return OWN[method]
    others = [row.method for row in rows if row.method not in OWN]
    return len(OWN) + others.index(method) % (COLOURS - len(OWN))


def _mark(index: int) -> str:
    return f"#0102{0x10 + index:02x}"


def _label(rows: Sequence[Row], column: str) -> str:
    questions = max(row.columns[column].questions for row in rows)
    name = column.replace("$", r"\$")  # a dollar would begin a formula
    return name if column == AVERAGE else f"{name}\n{questions:,} questions"


class Place(NamedTuple):
    """Where a row's mark stands in a column's group, and its name in the drawing."""

    at: float
    name: str


def _places(drawn: Sequence[Row], columns: Sequence[str]) -> Iterator[tuple[Place, Row, str]]:
    """Every row in every column, side by side around the column's place."""
    for i, row in enumerate(drawn):
        for x, column in enumerate(columns):
            yield Place(x - 0.4 + (i + 0.5) * 0.8 / len(drawn), f"{row.model}-{i}-{x}"), row, column


def _bars(axes: Axes, rows: Sequence[Row], drawn: Sequence[Row], columns: Sequence[str]) -> dict[str, str]:
    titles, width = {}, 0.8 / len(drawn)
    for place, row, column in _places(drawn, columns):
        entry = row.columns[column]
        if entry.ours is None:
            continue
        at, name, paper = place.at, f"bar-{place.name}", entry.paper if row.comparable else None
        axes.bar(at, entry.ours.mean, 0.92 * width, color=_mark(colour(rows, row.method)), gid=name)
        at -= 0.22 * width if paper else 0
        if entry.interval:
            axes.vlines(at, entry.interval.low, entry.interval.high, color=INK, lw=0.9)
        axes.plot([at] * len(entry.seeds), list(entry.seeds.values()), "o", ms=2.4, color=INK, mfc="none", mew=0.7)
        if paper:
            axes.errorbar(at + 0.44 * width, paper.mean, paper.deviation or 0, fmt="D", ms=3.4, color=INK, lw=0.9)
        titles[name] = _bar_title(row, column)
    for x, column in enumerate(columns):
        if (guess := _chance(drawn, column)) is not None:
            axes.hlines(guess, x - 0.44, x + 0.44, color=FAINT, lw=1, ls=(0, (4, 3)))
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(bottom=0)
    return titles


def _chance(drawn: Sequence[Row], column: str) -> float | None:
    tasks = tasks_of([cell for row in drawn for cell in row.done]) if column == AVERAGE else [column]
    known = [PAPER["chance"].get(task) for task in tasks]
    return None if None in known else sum(known) / len(known)


def _gains(axes: Axes, rows: Sequence[Row], drawn: Sequence[Row], columns: Sequence[str]) -> dict[str, str]:
    titles, width = {}, 0.8 / len(drawn)
    axes.axhline(0, color=INK, lw=0.8)
    for place, row, column in _places(drawn, columns):
        entry = row.columns[column]
        if entry.gain is None:
            continue
        at, name, shade = place.at, f"gain-{place.name}", _mark(colour(rows, row.method))
        paper = entry.paper_gain if row.comparable else None
        at -= 0.22 * width if paper is not None else 0
        if interval := entry.gain.interval:
            axes.vlines(at, interval.low, interval.high, color=shade, lw=2.2)
        axes.plot([at], [entry.gain.mean], "o", ms=6, color=shade, gid=name)
        if paper is not None:
            axes.plot([at + 0.44 * width], [paper], "D", ms=3.4, color=INK)
        titles[name] = _gain_title(row, column)
    over = dict.fromkeys(b for row in drawn if (b := baseline_of(row.table, row.method)))
    axes.set_ylabel(f"gain over {next(iter(over))}, points" if len(over) == 1 else "gain, points")
    return titles


def _bar_title(row: Row, column: str) -> str:
    entry = row.columns[column]
    seeds = ", ".join(f"seed {seed}: {value:.1f}" for seed, value in entry.seeds.items())
    ends = f"; 95 % interval {entry.interval.low:.1f} to {entry.interval.high:.1f}" if entry.interval else ""
    return f"{row.method}, {column}: {entry.ours.mean:.1f}{ends} ({seeds})"


def _gain_title(row: Row, column: str) -> str:
    gain = row.columns[column].gain
    ends = f"; 95 % interval {points(gain.interval.low)} to {points(gain.interval.high)}" if gain.interval else ""
    return f"{row.method}, {column}: {points(gain.mean)} points over {baseline_of(row.table, row.method)}{ends}"


def _svg(figure: Figure, titles: dict[str, str]) -> str:
    """An element to put into a page, as wide as there is room."""
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" role="img">', svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for name, title in titles.items():
        svg = svg.replace(f'<g id="{name}">', f"<g><title>{escape(title)}</title>")
    svg = re.sub(r' id="(?!p[0-9a-f]{8,}|m[0-9a-f]{8,})[^"]*"', "", svg)  # all but what is referred to
    for index in range(COLOURS):
        svg = svg.replace(_mark(index), f"var(--m{index})")
    for mark, variable in VARIABLES.items():
        svg = svg.replace(mark, f"var({variable})")
    return svg
