"""The sentences around a table: what it is, what is missing, what the verdicts come to, how to read it."""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from statistics import fmean

from bitune_pl.reproduction.tables.cells import Cell, runs_of
from bitune_pl.reproduction.tables.entries import Entry
from bitune_pl.reproduction.tables.published import MEASURES, PAPER, baseline_of, paper_tasks
from bitune_pl.reproduction.tables.rows import Row, tasks_of
from bitune_pl.reproduction.tables.statistics import Interval
from bitune_pl.reproduction.tables.verdict import NOT_PRINTED, OUTSIDE, WITHIN

PROFILES = {
    "smoke": "tiny random decoders: everything runs, and the numbers mean nothing",
    "cpu": "a small decoder, few updates, few questions",
    "paper": "the paper's models and settings",
    "published": "the paper's own numbers, sent through this code",
}


def title(rows: Sequence[Row]) -> str:
    row = rows[0]
    number = row.table.removeprefix("table")
    what = PROFILES.get(row.profile)
    return (
        f"Table {number}: {PAPER['tables'][row.table]['title']}. Profile {row.profile}{f' ({what})' if what else ''}."
    )


def unit(rows: Sequence[Row]) -> str:
    measures = MEASURES.get(rows[0].table, [])
    accuracy = "" if set(rows[0].columns) <= set(measures) else "Accuracy in %. "
    return f"{accuracy}Mean ± sample standard deviation (ddof 1) over n seeds; one seed has no deviation."


def subtitle(model: str, rows: Sequence[Row]) -> str:
    questions = {}
    for row in rows:
        questions |= {column: n for column, entry in row.columns.items() if (n := entry.questions) and column != "Avg."}
    asked = ", ".join(f"{column} {n:,}" for column, n in questions.items())
    return f"{model}{f' (questions: {asked})' if asked else ''}"


def gain_title(rows: Sequence[Row]) -> str:
    over = dict.fromkeys(b for row in rows if row.cells and (b := baseline_of(row.table, row.method)))
    entries = [entry for row in rows for entry in row.columns.values() if entry.gain]
    if any(entry.gain.ratio for entry in entries):
        return (
            f"Ratio to {' or '.join(over)}, and gain in points:"
            if _points(entries)
            else f"Ratio to {' or '.join(over)}:"
        )
    name = over.popitem()[0] if len(over) == 1 else "the same adapter without Bitune"
    seeds = {entry.gain.interval.seeds for entry in entries if entry.gain.interval}
    how = "" if not seeds else INTERVAL if min(seeds) > 1 else SOME_ALONE if max(seeds) > 1 else ALONE
    return f"Gain over {name} in points{how}:"


INTERVAL = "; 95 % interval over seeds and questions"
SOME_ALONE = f"{INTERVAL}; with one seed over questions only, which says nothing of other seeds"
ALONE = "; one seed: the 95 % interval is over questions only, and says nothing of other seeds"


def _points(entries: Sequence[Entry]) -> bool:
    return any(not entry.gain.ratio for entry in entries)


def remarks(rows: Sequence[Row]) -> list[str]:
    """All that is to be said below the tables of one model."""
    return verdicts(rows) + _average(rows) + missing(rows)


def _average(rows: Sequence[Row]) -> list[str]:
    theirs = paper_tasks(rows[0].table, rows[0].reference)
    ours = tasks_of([cell for row in rows for cell in row.done])
    if "Avg." not in rows[0].columns or not ours or set(ours) == set(theirs):
        return []
    return [f"Avg. is over {', '.join(ours)}; the paper's, over {', '.join(theirs)}, is another one and is not shown."]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """How many cells got which verdict; those outside are named."""
    said = [(row, column, entry.verdict) for row in rows for column, entry in row.columns.items() if entry.verdict]
    counts = Counter(str(verdict) for _, _, verdict in said)
    if len(counts) > 1:
        del counts[NOT_PRINTED]
    if not counts:
        return []
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    lines = [f"Verdicts: {told}." if len(counts) > 1 else f"Verdict, all {counts.total()} cells: {next(iter(counts))}."]
    outside = [f"{row.method} {column} ({verdict.why})" for row, column, verdict in said if verdict.word == OUTSIDE]
    if outside:
        compared = counts[WITHIN] + counts[OUTSIDE]
        lines.append(
            f"Outside: {'; '.join(outside)}. Of {compared} cells compared, 5 % are expected outside by chance."
        )
    return lines


def missing(rows: Sequence[Row]) -> list[str]:
    """Rows that were not run, and seeds that do not count, each with the reason."""
    lines = [line for row in rows if row.cells for line in _left_out(row)]
    not_run = [row.method for row in rows if not row.cells]
    return lines + ([f"Not run: {', '.join(not_run)}."] if not_run else [])


def _left_out(row: Row) -> list[str]:
    """A sentence for each reason, in each group of columns that it holds for."""
    columns: dict[tuple[int, str], list[str]] = {}
    for column, entry in row.columns.items():
        for seed, why in entry.missing.items():
            columns.setdefault((seed, why), []).append(column)
    seeds: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (seed, why), found in columns.items():
        seeds.setdefault((why, tuple(found)), []).append(str(seed))
    return [_sentence(row, who, why, found) for (why, found), who in seeds.items()]


def _sentence(row: Row, seeds: list[str], why: str, columns: tuple[str, ...]) -> str:
    who = f"seed{'s' * (len(seeds) > 1)} {' and '.join(seeds)} left out"
    where = "" if len(columns) == len(row.columns) else f" of {', '.join(columns)}"
    return f"{row.method}: {who}{where}: {why}."


def points(value: float) -> str:
    """A difference, with its sign; what rounds to zero has none."""
    return f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"


def headline(rows: Sequence[Row]) -> str:
    """One sentence on Bitune, or else on the last row that has a gain; none on numbers that mean nothing."""
    if rows[0].profile == "smoke":
        return ""
    for row in sorted(rows, key=lambda row: row.method == "Bitune")[::-1]:
        ratios = [f"{c} {e.gain.mean:.2f}x" for c, e in row.columns.items() if e.gain and e.gain.ratio]
        column, entry = list(row.columns.items())[-1]
        if ratios:
            return f"{_name(row)} against {baseline_of(row.table, row.method)}: {', '.join(ratios)}."
        if entry.gain:
            if entry.gain.interval and entry.gain.interval.alike:
                return f"{_name(row)} and {baseline_of(row.table, row.method)} gave the same answers."
            does, against = ("loses", "against") if points(entry.gain.mean)[0] == "-" else ("gains", "over")
            told = (
                f"{_name(row)} {does} {abs(entry.gain.mean):.1f} points {against} {baseline_of(row.table, row.method)}"
            )
            return f"{told} {'on average' if column == 'Avg.' else f'on {column}'}{_sure(entry.gain.interval)}."
    return f"There is no gain to show yet: one needs {PAPER['tables'][rows[0].table]['baseline']} and another row."


def _name(row: Row) -> str:
    return f"{PAPER['tables'][row.table].get('rows_are', '')} {row.method}".strip()


def _sure(interval: Interval | None) -> str:
    if interval is None:
        return ""
    seeds = f"{interval.seeds} seeds" if interval.seeds > 1 else "1 seed, so of other seeds nothing is known"
    told = "" if interval.clear else ", so zero is not excluded"
    ends = f"{points(interval.low)} to {points(interval.high)}"
    return f": 95 % interval {ends}{told} ({interval.questions:,} questions, {seeds})"


def cost(rows: Sequence[Row]) -> list[dict[str, str]]:
    """What each row took, mean over its seeds (memory: the largest)."""
    return [_cost(row) for row in rows if row.done]


def _cost(row: Row) -> dict[str, str]:
    said = {name: [v for cell in row.done if (v := cell.record.get(name)) and isfinite(v)] for name in COSTS}
    show = {name: how(values) if values else "" for name, values in said.items() if (how := COSTS[name])}
    return {"model": row.model, "method": row.method, "runs": str(len(row.done))} | show


COSTS = {
    "updates": lambda values: f"{fmean(values):.0f}",
    "lr": lambda values: f"{values[0]:g}",
    "trained_parameters": lambda values: f"{values[0]:,}",
    "train_seconds": lambda values: f"{fmean(values):,.0f}",
    "evaluate_seconds": lambda values: f"{fmean(values):,.0f}",
    "peak_memory_gb": lambda values: f"{max(values):.1f}",
    "loss_validation": lambda values: f"{fmean(values):.3f}",
}


def comparison(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """What, ours, the paper's: what decides whether the two can be compared."""
    done = [cell for row in rows for cell in row.done]
    trained = [cell for cell in done if cell.trained]
    table = PAPER["tables"][rows[0].table]
    updates = sorted({cell.record.get("updates") for cell in trained if cell.record.get("updates")})
    data = dict.fromkeys(
        str(d["source"]) for cell in trained for run in runs_of(cell.record) if (d := run.get("data")) and "source" in d
    )
    theirs = PAPER["updates"].get(table.get("trained_on"))
    asked = {c: e.questions for row in rows for c, e in row.columns.items() if e.questions and c != "Avg."}
    said = [
        ("model", rows[0].model, ", ".join(table["rows"])),
        ("trained on", ", ".join(data) or "not recorded", table.get("trained_on", "nothing: fresh adapters")),
        ("updates", ", ".join(map(str, updates)) or "not recorded", str(theirs or "by task, or not printed")),
        ("seeds", ", ".join(map(str, sorted({cell.seed for cell in trained}))), ", ".join(map(str, PAPER["seeds"]))),
        *_tokens(done),
        ("questions", ", ".join(f"{c} {n:,}" for c, n in asked.items()), ", ".join(map(_questions, asked))),
    ]
    return [line for line in said if line[1]]


def _tokens(done: Sequence[Cell]) -> list[tuple[str, str, str]]:
    """Of Table 4: tokens of the prompt and of the answer, and where they were timed."""
    timed = [latency for cell in done if (latency := cell.record.get("latency"))]
    if not timed:
        return []
    tokens = dict.fromkeys(
        f"{latency.get('prompt_tokens', '?')} + {latency.get('new_tokens', '?')}" for latency in timed
    )
    devices = dict.fromkeys(str(latency.get("device", "not recorded")) for latency in timed)
    return [("tokens, prompt + answer", ", ".join(tokens), "2000 + 2000"), ("timed on", ", ".join(devices), "one A100")]


def _questions(task: str) -> str:
    return f"{task} {PAPER['questions'][task]:,}" if task in PAPER["questions"] else f"{task}: not a task of the paper"
