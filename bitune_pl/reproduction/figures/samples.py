"""Table 27 (appendix A.13): answers of several runs to the same questions, side by side.

Answers are greedy, as in the paper, and cut where the model goes on with a question of its own. A question whose answer ends in
a number is marked right or wrong as `bitune evaluate` does.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitune_pl.data.example import Example
from bitune_pl.evaluation.exact_match import extract_number
from bitune_pl.evaluation.run import Opened
from bitune_pl.evaluation.stops import cut_at

BATCH = 8  # questions that are answered together


@dataclass(frozen=True)
class Row:
    """A question, its right answer, and the answer of each run with whether it is right, in the order of the runs."""

    question: str
    gold: str
    answers: tuple[tuple[str, bool], ...]


def ask(opened: Opened, examples: Sequence[Example], max_new_tokens: int = 256) -> list[tuple[str, bool]]:
    """A model's answer to each question, and whether it states the right number."""
    model, encoder, _ = opened
    found = []
    for start in range(0, len(examples), BATCH):
        batch = examples[start : start + BATCH]
        prompts = [encoder.prompt(example.prompt) for example in batch]
        ids = model.generate(prompts, max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=encoder.eos)
        texts = [cut_at(encoder.decode(answer), ["\nQuestion:"]).strip() for answer in ids]
        found += [(text, _is_right(text, example.answer)) for text, example in zip(texts, batch, strict=True)]
    return found


def _is_right(text: str, gold: str) -> bool:
    stated = extract_number(text)
    return stated is not None and stated == extract_number(gold)


def rows(examples: Sequence[Example], answers: Iterable[list[tuple[str, bool]]]) -> list[Row]:
    """What is shown, from the answers of each run."""
    by_question = zip(*answers, strict=True)
    return [
        Row(example.prompt, example.answer.strip(), tuple(given))
        for example, given in zip(examples, by_question, strict=True)
    ]


def write(names: Sequence[str], table: Sequence[Row], out: Path) -> None:
    """Write the table in the format that the file's name ends in."""
    out.write_text(FORMATS[out.suffix](names, table), encoding="utf-8")


def _totals(names: Sequence[str], table: Sequence[Row]) -> list[str]:
    """ "Bitune (10 of 20 right)" for each run."""
    right = [sum(row.answers[i][1] for row in table) for i in range(len(names))]
    return [f"{name} ({n} of {len(table)} right)" for name, n in zip(names, right, strict=True)]


def text(names: Sequence[str], table: Sequence[Row]) -> str:
    """Plain text: the answers to a question stand under each other."""
    blocks = []
    for number, row in enumerate(table, start=1):
        said = [f"[{name}, {_mark(right)}]\n{answer}" for name, (answer, right) in zip(names, row.answers, strict=True)]
        blocks.append("\n\n".join([f"--- {number} ---\n{row.question}", f"[right answer]\n{row.gold}", *said]))
    return "\n\n\n".join([*blocks, "\n".join(_totals(names, table))]) + "\n"


def markdown(names: Sequence[str], table: Sequence[Row]) -> str:
    """A table with one column for each run."""
    head = ["question", "right answer", *_totals(names, table)]
    lines = [head, ["---"] * len(head)]
    for row in table:
        lines.append([row.question, row.gold, *(f"{answer}\n({_mark(right)})" for answer, right in row.answers)])
    return "".join(f"| {' | '.join(map(_markdown_cell, line))} |\n" for line in lines)


def _markdown_cell(said: str) -> str:
    for was, shown in [*((c, f"\\{c}") for c in "\\|$#*_`["), ("<", "&lt;"), ("\n", "<br>")]:
        said = said.replace(was, shown)
    return said


def web(names: Sequence[str], table: Sequence[Row]) -> str:
    """One page that needs nothing else."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("question", "right answer", *_totals(names, table)))
    body = "".join(
        f"<tr><td>{_html_cell(row.question)}</td><td>{_html_cell(row.gold)}</td>"
        + "".join(f'<td class="{_mark(r)}"><b>{_mark(r)}</b><br>{_html_cell(a)}</td>' for a, r in row.answers)
        + "</tr>\n"
        for row in table
    )
    return _PAGE.format(head=head, body=body)


def _html_cell(said: str) -> str:
    return html.escape(said).replace("\n", "<br>")


def _mark(right: bool) -> str:
    return "right" if right else "wrong"


FORMATS = {".txt": text, ".md": markdown, ".html": web}
"""Endings of files, and what writes them."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Answers side by side</title>
<style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #222 }}
table {{ border-collapse: collapse }}
th, td {{ border: 1px solid #ccc; padding: .5rem .6rem; text-align: left; vertical-align: top }}
th {{ position: sticky; top: 0; background: #f2f2f2 }} td {{ min-width: 12rem; max-width: 26rem }}
.right {{ background: #e5f1f8 }} .right b {{ color: #0072b2 }} .wrong b {{ color: #b04a00 }}
</style>
<table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table></html>
"""
