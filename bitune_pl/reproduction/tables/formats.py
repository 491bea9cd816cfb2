"""The rows of a table as text: for the terminal, as Markdown, LaTeX (booktabs) and CSV, with the same numbers in each.

For each model there are two tables, results and gains. A mean without a deviation comes from one seed.
"""

import csv
import io
import textwrap
from collections.abc import Sequence

from tabulate import SEPARATING_LINE, tabulate

from bitune_pl.reproduction.tables import notes
from bitune_pl.reproduction.tables.entries import Entry, Gain
from bitune_pl.reproduction.tables.notes import points, remarks
from bitune_pl.reproduction.tables.published import MEASURES, PAPER, Published, paper_seeds
from bitune_pl.reproduction.tables.rows import Row

WIDTH = 120
WIDEST = 6  # columns of one table, so that it keeps to that width
Lines = list[list[str]]


def label(rows: Sequence[Row]) -> str:
    """What the rows of a table are."""
    return PAPER["tables"][rows[0].table].get("rows_are", "method")


def by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {model: [row for row in rows if row.model == model] for model in dict.fromkeys(row.model for row in rows)}


# -- numbers -----------------------------------------------------------------------------------------------------------


def spread(mean: float, deviation: float | None, measure: bool = False) -> str:
    digits = 1 if not measure else 2 if mean >= 0.1 else 3
    return " ± ".join(f"{value:.{digits}f}" for value in (mean, deviation) if value is not None)


def ours(row: Row, column: str) -> str:
    """A mean; with its own number of seeds where that is not the row's."""
    entry = row.columns[column]
    if entry.ours is None:
        return "failed" if row.cells and not row.done else "-"
    text = spread(entry.ours.mean, entry.ours.deviation, column in MEASURES.get(row.table, []))
    return text if entry.ours.n == seeds_of(row) else f"{text} (n={entry.ours.n})"


def paper(row: Row, column: str) -> str:
    printed: Published | None = row.columns[column].paper
    return spread(*printed, column in MEASURES.get(row.table, [])) if printed else ""


def gain(said: Gain | None) -> str:
    if said is None:
        return ""
    return f"{said.mean:.2f}x" if said.ratio else points(said.mean)


def paper_gain(entry: Entry) -> str:
    """The paper's gain, as a ratio where ours is one."""
    return "" if entry.paper_gain is None else gain(Gain(entry.paper_gain, ratio=bool(entry.gain and entry.gain.ratio)))


def ends(said: Gain | None) -> str:
    """The ends of a gain's interval. Where no answer differs there is nothing to draw from, and no interval."""
    if said is None or said.interval is None:
        return ""
    if said.interval.alike:
        return "same answers"
    return f"{points(said.interval.low)} to {points(said.interval.high)}"


def seeds_of(row: Row) -> int:
    return max((entry.ours.n for entry in row.columns.values() if entry.ours), default=0)


def count(row: Row) -> str:
    """Seeds that count, and of how many."""
    if not row.cells:
        return "not run"
    return str(seeds_of(row)) if seeds_of(row) == len(row.expected) else f"{seeds_of(row)} of {len(row.expected)}"


# -- tables ------------------------------------------------------------------------------------------------------------


def results(rows: Sequence[Row], columns: Sequence[str]) -> list[Lines]:
    """For each row, its line and those with the paper's numbers and the verdicts, where there are any."""
    groups = []
    for row in rows:
        lines = [[row.method, count(row), *(ours(row, column) for column in columns)]]
        printed = [paper(row, column) for column in columns]
        if any(printed):
            lines.append([f"paper, {row.reference}", str(paper_seeds(row.table, row.method) or "?"), *printed])
        if row.comparable and row.done:
            lines.append(["verdict", "", *(short(row.columns[column]) for column in columns)])
        groups.append(lines)
    return groups


def gains(rows: Sequence[Row], columns: Sequence[str]) -> list[Lines]:
    """For each row with a gain: the gain, its interval, the paper's gain."""
    groups = []
    for row in rows:
        entries = [row.columns[column] for column in columns]
        lines = [
            [row.method, *(gain(entry.gain) for entry in entries)],
            ["95 % interval", *(ends(entry.gain) for entry in entries)],
            [
                f"paper, {row.reference}",
                *(paper_gain(entry) for entry in entries),
            ],
        ]
        if any(lines[0][1:]):
            groups.append([lines[0], *(line for line in lines[1:] if any(line[1:]))])
    return groups


def short(entry: Entry) -> str:
    said = entry.verdict
    if said is None:
        return ""
    words = {"within the published spread": "within", "no published spread": "no spread", "not in the paper": "-"}
    return words.get(said.word, said.why.split(" (")[0] if said.word == "not comparable" else said.word)


def _chunks(columns: Sequence[str]) -> list[list[str]]:
    return [list(columns[start : start + WIDEST]) for start in range(0, len(columns), WIDEST)]


def _tables(rows: Sequence[Row]) -> list[tuple[str, list[str], list[Lines]]]:
    """Title, header and groups of lines of each table of one model."""
    made = []
    for columns in _chunks(list(rows[0].columns)):
        made.append(("", [label(rows), "n", *columns], results(rows, columns)))
    for columns in _chunks(list(rows[0].columns)):
        if groups := gains(rows, columns):
            made.append((notes.gain_title(rows), [label(rows), *columns], groups))
    return made


# -- formats -----------------------------------------------------------------------------------------------------------


def terminal(rows: Sequence[Row]) -> str:
    """At most 120 columns wide."""
    said = [_wrapped(notes.title(rows)), _wrapped(notes.unit(rows))]
    for model, own in by_model(rows).items():
        said += ["", _wrapped(notes.subtitle(model, own)), ""]
        for title, header, groups in _tables(own):
            between = [SEPARATING_LINE] if any(len(group) > 1 for group in groups) else []
            lines = [line for i, group in enumerate(groups) for line in [*(between if i else []), *group]]
            said += [_wrapped(title)] * bool(title) + [_table(lines, header, "simple"), ""]
        said += map(_wrapped, remarks(own))
    return "\n".join(said).rstrip() + "\n"


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, subsequent_indent="  ")


def markdown(rows: Sequence[Row]) -> str:
    said = [f"### {notes.title(rows)}", "", notes.unit(rows)]
    for model, own in by_model(rows).items():
        said += ["", f"**{notes.subtitle(model, own)}**", ""]
        for title, header, groups in _tables(own):
            lines = [[f"**{first[0]}**", *first[1:]] for first, *_ in groups]
            lines = [line for bold, group in zip(lines, groups, strict=True) for line in [bold, *group[1:]]]
            said += [title, ""] * bool(title) + [_table(lines, header, "pipe"), ""]
        said += [f"- {note}" for note in remarks(own)]
    return "\n".join(said).rstrip() + "\n"


def latex(rows: Sequence[Row]) -> str:
    """Tables for \\usepackage{booktabs}."""
    said = [f"% {notes.title(rows)}", f"% {notes.unit(rows)}"]
    for model, own in by_model(rows).items():
        said += ["", f"% {notes.subtitle(model, own)}"]
        for title, header, groups in _tables(own):
            lines = [line for group in groups for line in group]
            said += [f"% {title}"] * bool(title) + [_table(lines, header, "latex_booktabs").replace("±", "$\\pm$")]
        said += [f"% {note}" for note in remarks(own)]
    return "\n".join(said) + "\n"


def _table(lines: Lines, header: list[str], form: str) -> str:
    return tabulate(lines, header, tablefmt=form, disable_numparse=True)


COLUMNS = (
    "table,profile,model,method,column,n,seeds,missing,mean,deviation,low,high,questions,baseline_gain,gain_low,gain_high,"
    "gain_seeds,paper_model,paper_mean,paper_deviation,paper_gain,verdict,why"
).split(",")


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each row and column, numbers with six decimals."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_record(row, column) for row in rows for column in row.columns)
    return file.getvalue()


def _record(row: Row, column: str) -> dict[str, object]:
    entry = row.columns[column]
    own, printed, gained = entry.ours, entry.paper, entry.gain
    said = {
        "table": row.table, "profile": row.profile, "model": row.model, "method": row.method, "column": column,
        "n": own.n if own else 0, "seeds": " ".join(map(str, entry.seeds)),
        "missing": "; ".join(f"{seed}: {why}" for seed, why in entry.missing.items()),
        "questions": entry.questions, "paper_model": row.reference if printed else "",
        "verdict": str(entry.verdict or ""), "why": entry.verdict.why if entry.verdict else "",
    }  # fmt: skip
    numbers = {
        "mean": own and own.mean, "deviation": own and own.deviation,
        "low": entry.interval and entry.interval.low, "high": entry.interval and entry.interval.high,
        "baseline_gain": gained and gained.mean,
        "gain_low": gained and gained.interval and gained.interval.low,
        "gain_high": gained and gained.interval and gained.interval.high,
        "paper_mean": printed and printed.mean, "paper_deviation": printed and printed.deviation,
        "paper_gain": entry.paper_gain,
    }  # fmt: skip
    if gained and gained.interval:
        said["gain_seeds"] = gained.interval.seeds
    return said | {name: "" if value is None else f"{value:.6f}" for name, value in numbers.items()}
