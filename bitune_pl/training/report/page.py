"""A `Record` as one HTML page that needs no network: styles, charts and pictures are inside it.

Sections without anything to show are left out; what a run lacks that one would look for is said in a sentence.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from bitune_pl import __version__
from bitune_pl.training.report.charts import dot_chart, heat_map, line_chart
from bitune_pl.training.report.proof import Step
from bitune_pl.training.report.record import Curve, Record

METRICS = ("acc", "acc_norm", "exact_match_strict", "exact_match_flexible")
UNTUNED = "accuracy/untuned"
PARTS = ("causal", "bidirectional", "theta", "start_token")
NAMES = {"alpha_k": "alpha_k (keys)", "alpha_v": "alpha_v (values)"}


def page(record: Record, checks: Sequence[Step] | str | None = None) -> str:
    """The page; `checks` are the ladder's rungs, or why there are none, or None to leave them out."""
    name = f"{record.folder.resolve().parent.name}/{record.folder.resolve().name}"
    sections = [_curves(record), _alpha(record), _more_curves(record), _samples(record), _results(record)]
    sections += [_pair(_cost(record), _checks(checks)), _settings(record)]
    style = files("bitune_pl.training.report").joinpath("page.css").read_text()
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(name)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f"<h1>{escape(name)}</h1>\n<p>{_status(record)}</p>",
            _tiles(record),
            *filter(None, sections),
            f'<p class="soft" style="margin-top:32px">Written by bitune_pl {__version__}.</p>\n</body>\n</html>\n',
        ]
    )


def _status(record: Record) -> str:
    model = record.section("model")
    said = lambda name, default: escape(record.settings.get(name) or str(model.get(name, default)))  # noqa: E731
    source = record.settings.get("source") or record.section("data").get("source", "categories")
    what = f"{said('base', 'smollm2')}, method {said('method', 'bitune')}, adapter {said('adapter', 'lora')}"
    return f"{what}, trained on {escape(str(source))}. <b>{_progress(record)}</b>"


def _progress(record: Record) -> str:
    if not record.curves:
        return "This run has no TensorBoard events, so there are no curves to show."
    if record.planned is not None and record.updates < record.planned:
        done = f"{record.updates} of {record.planned} updates"
        return f"Ended early: {done}." if record.ended else f"Unfinished: {done} so far."
    if not (record.ended or (record.folder / "model").is_dir()):
        return (
            f"Stopped after {record.updates} updates, with no model kept yet: bitune fit --resume goes on from there."
        )
    return f"Finished: {record.updates} updates."


def _tiles(record: Record) -> str:
    """The figures one looks for first."""
    last = record.last
    found = [
        ("accuracy of the untuned base", last(UNTUNED), lambda v: f"{v:.3f}"),
        ("accuracy, validation", last("accuracy/validation"), lambda v: f"{v:.3f}"),
        ("loss, validation", last("loss/validation"), lambda v: f"{v:.3f}"),
        ("mean alpha_k", last("alpha_k/mean"), lambda v: f"{v:.3f}"),
        ("mean alpha_v", last("alpha_v/mean"), lambda v: f"{v:.3f}"),
        ("training time", last("cost/seconds"), _duration),
        ("peak memory", last("cost/peak_memory_gb"), lambda v: f"{v:.1f} GB"),
    ]
    tiles = [
        f'<div class="tile"><b>{show(value)}</b><span>{name}</span></div>'
        for name, value, show in found
        if value is not None
    ]
    return _grid("tiles", tiles)


def _curves(record: Record) -> str:
    titles = {
        "loss": {"train": "loss/train", "validation": "loss/validation"},
        "validation accuracy": {"run": "accuracy/validation", "untuned base": UNTUNED},
        "learning rate": {"lr": "learning_rate"},
    }
    charts = [line_chart(title, lines) for title, tags in titles.items() if (lines := _lines(record, tags))]
    return _section("Curves", _charts(charts)) if charts else ""


def _more_curves(record: Record) -> str:
    """Those that fewer readers look for, scores of tasks first."""
    tasks = {tag: {tag: tag} for tag in record.curves if tag.startswith("eval/")}
    charts = [line_chart(title, _lines(record, tags)) for title, tags in tasks.items()]
    found = {name: curve for name in NAMES if (curve := record.alphas(name))[0]}
    if found:
        means = {name: (updates, alphas.mean(1).tolist()) for name, (updates, alphas) in found.items()}
        band = {n: ((u, a.min(1).tolist()), (u, a.max(1).tolist())) for n, (u, a) in found.items()}
        charts.append(line_chart("mean and range", means, band))
    if norms := _lines(record, {name: f"gradient_norm/{name}" for name in PARTS}):
        charts.append(line_chart("gradient norm", norms, log=True))
    if speed := _lines(record, {"tokens": "tokens_per_second"}):
        charts.append(line_chart("tokens per second", speed))
    return _section("More curves", _charts(charts)) if charts else ""


def _lines(record: Record, tags: dict[str, str]) -> dict[str, Curve]:
    return {name: record.curves[tag] for name, tag in tags.items() if tag in record.curves}


def _alpha(record: Record) -> str:
    found = {name: record.alphas(name) for name in NAMES}
    if not all(updates for updates, _ in found.values()) or len({alphas.shape[1] for _, alphas in found.values()}) > 1:
        return ""
    final = {name: alphas[-1].tolist() for name, (_, alphas) in found.items()}
    charts = [heat_map(NAMES[name], updates, alphas) for name, (updates, alphas) in found.items()]
    charts.append(dot_chart("last alpha", final))
    rows = [(str(i), f"{k:.4f}", f"{v:.4f}") for i, (k, v) in enumerate(zip(*final.values(), strict=True))]
    numbers = f"<details><summary>Numbers of each block</summary>{_table(('block', *final), rows)}</details>"
    about = (
        "Share of the second pass (in Bitune the bidirectional one) in each block's keys and values: 0 is the causal pass "
        "alone; 1/2 before training."
    )
    return _section(f'Alpha <span class="soft small">{about}</span>', f"{_charts(charts)}{numbers}")


def _samples(record: Record) -> str:
    cards = [
        f'<div class="sample"><h3>prompt</h3><pre>{escape(answered.prompt)}</pre>'
        f"<h3>answer after update {update}</h3><pre>{escape(answered.answer.strip()) or '(nothing)'}</pre>"
        f"<h3>right answer</h3><pre>{escape(answered.right_answer.strip())}</pre></div>"
        for update, answered in record.samples
    ]
    about = '<span class="soft small">Written freely; accuracy asks which of the choices is the likeliest.</span>'
    return _section(f"Answers to validation prompts {about}", _grid("samples", cards)) if cards else ""


def _results(record: Record) -> str:
    rows = []
    for file, said in record.results.items():
        for task, scores in said["tasks"].items():
            for name in (name for name in METRICS if _is_number(scores.get(name))):
                error = scores.get(f"{name}_stderr")
                value = f"{scores[name]:.4f}" + (f" &plusmn; {error:.4f}" if _is_number(error) else "")
                rows.append((escape(file), escape(task), escape(str(scores.get("n", ""))), name, value))
    heads = ("file", "task", "n", "score", "value, standard error")
    return _section("Scores of tasks", _table(heads, rows, texts=(0, 1, 3))) if rows else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and -math.inf < value < math.inf and abs(value) < 1e300


def _cost(record: Record) -> str:
    seconds, tokens, last = record.last("cost/seconds"), record.last("cost/tokens"), record.last
    rows = []
    if seconds and tokens:
        counted = record.curves["cost/seconds"][0][-1]
        rows += [
            (f"training up to update {counted}, without validation", _duration(seconds)),
            ("time of an update", f"{seconds / max(1, counted):.2f} s"),
            ("tokens", f"{tokens:,.0f}"),
            ("tokens per second", f"{tokens / seconds:,.0f}"),
        ]
    if gb := last("cost/peak_memory_gb"):
        rows.append(("peak memory", f"{gb:.2f} GB"))
    return _section("Cost", _table(("", ""), rows, texts=(0,))) if rows else ""


def _checks(checks: Sequence[Step] | str | None) -> str:
    if checks is None:
        return ""
    about = "On a copy of the decoder with two layers and random weights, as <code>bitune verify</code> does it."
    if isinstance(checks, str):
        return _section("Equivalence checks", f"<p>{escape(checks)}</p>")
    verdicts = {True: '<span class="good">PASS</span>', False: '<span class="bad">FAIL</span>'}
    rows = [(escape(s.name), escape(s.measured), s.limit, verdicts[s.passed]) for s in checks]
    passed = f'<p class="soft">{about}</p><p>{sum(s.passed for s in checks)} of {len(checks)} hold.</p>'
    return _section("Equivalence checks", passed + _table(("", "difference", "allowed", ""), rows, texts=(0, 3)))


def _settings(record: Record) -> str:
    items = [f"<div><span>{escape(name)}</span> {escape(value)}</div>" for name, value in record.settings.items()]
    is_open = "" if items else " open"
    config = f"<details{is_open}><summary>config.yaml</summary><pre>{escape(record.config)}</pre></details>"
    return _section("Settings", _grid("settings", items) + config)


def _pair(left: str, right: str) -> str:
    """Two sections beside each other, where there are two."""
    return f'<div class="pair">\n{left}\n{right}\n</div>' if left and right else left + right


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>"


def _grid(kind: str, items: Sequence[str]) -> str:
    return f'<div class="{kind}">\n' + "\n".join(items) + "\n</div>" if items else ""


def _charts(charts: Sequence[str]) -> str:
    return _grid("charts", [f'<div class="chart">{chart}</div>' for chart in charts])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already; columns other than `texts` are numbers."""
    kinds = ["" if i in texts else ' class="number"' for i in range(len(heads))]
    line = lambda cell, row: "".join(f"<{cell}{k}>{v}</{cell}>" for k, v in zip(kinds, row, strict=True))  # noqa: E731
    head = f"<tr>{line('th', heads)}</tr>" if any(heads) else ""
    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{head}\n{body}</table></div>'


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
