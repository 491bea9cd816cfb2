"""`bitune evaluate`: score a run, or a base as pretrained, on tasks.

A question with choices is scored by log-likelihood, all choices from one reading of the prompt; GSM8K and `sums` by the
number at the end of a generated answer, chain-of-thought sets by the letter or number there. Templates are those of the
sources (the paper's), not that of the run.
"""

import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bitune_pl.arguments import Arguments

BATCH = 16  # prompts that are continued together


class Score(NamedTuple):
    """A task's figures; the last two are None where they do not apply."""

    task: str
    n: int
    accuracy: float
    per_character: float | None
    without_answer: int | None
    seconds: float

    @property
    def standard_error(self) -> float:
        """Of the accuracy, by the sample standard deviation (as lm-eval's)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / (self.n - 1)) if self.n > 1 else math.nan


def main(argv: list[str]) -> None:
    """Score and print a table."""
    args = _parser().parse_args(argv)
    tasks = [task for task in args.tasks.split(",") if task]
    if not tasks:
        raise ValueError("--tasks names no task: give some, separated by commas, such as categories,sums.")
    examples = [(task, _examples(task, args)) for task in tasks]

    from bitune_pl.evaluation.run import open_either

    opened = open_either(args.run, args.base)
    print(_HEAD)
    for task, rows in examples:
        print(_line(evaluate(opened.model, opened.encoder, task, rows)), flush=True)


def evaluate(model, encoder, task: str, rows: Sequence) -> Score:
    """Score the rows of a task, by generation or by choosing."""
    start = time.perf_counter()
    if stated := _stated(task):
        right, silent = _exact_matches(model, encoder, rows, stated)
        return Score(task, len(rows), right / len(rows), None, silent, time.perf_counter() - start)
    from bitune_pl.evaluation.choices import score_choices

    outcomes = score_choices(model, encoder, rows)
    right, per_character = (sum(column) / len(rows) for column in zip(*outcomes, strict=True))
    return Score(task, len(rows), right, per_character, None, time.perf_counter() - start)


def _parser() -> Arguments:
    parser = Arguments("evaluate", "Score a run, or a base as pretrained, on tasks.")
    parser.add_argument("--run", metavar="FOLDER", help="folder of a run")
    parser.add_argument(
        "--base", metavar="NAME", help="a decoder as pretrained: hub id, folder, .gguf file, smollm2, gemma3-270m"
    )
    parser.add_argument(
        "--tasks", metavar="A,B", required=True, help="commonsense_qa, arc_challenge, gsm8k, ... : see the data sources"
    )
    parser.add_argument(
        "--data.root", dest="root", metavar="FOLDER", help="local copies of the data sets; without it, the hub"
    )
    parser.add_argument("--part", default="test", choices=["test", "validation", "train"], help="rows to score (test)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N rows of each task")
    return parser


def _examples(task: str, args: Namespace) -> Sequence:
    """The rows of a task, read before any model is loaded."""
    from bitune_pl.data.sources import load

    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit is a number of rows, at least 1, not {args.limit}.")
    rows = load(task, args.part, args.root, limit=args.limit).examples
    if not _stated(task) and len(rows[0].answers) < 2:
        raise ValueError(
            f"{task} has one answer to a prompt, so there is nothing to choose from: it can be trained on, not scored."
        )
    return rows


def _stated(task: str) -> Callable[[str], object | None] | None:
    """What finds the final answer in a generated text; None where a task is scored by choosing."""
    from bitune_pl.data.chain_of_thought import final_answer
    from bitune_pl.data.sources import find
    from bitune_pl.evaluation.exact_match import extract_number

    source = find(task)
    return final_answer if source.tested_on else extract_number if source.generated else None


def _exact_matches(model, encoder, rows: Sequence, stated: Callable[[str], object | None]) -> tuple[int, int]:
    """How many generated answers state the gold final answer, and how many state none."""
    from bitune_pl.evaluation.exact_match import before_stop

    right = silent = 0
    by_length = sorted(rows, key=lambda row: len(row.prompt))
    for start in range(0, len(rows), BATCH):
        batch = by_length[start : start + BATCH]
        prompts = [encoder.prompt(row.prompt) for row in batch]
        answers = model.generate(prompts, max_new_tokens=256, do_sample=False, eos_token_id=encoder.eos)
        for row, ids in zip(batch, answers, strict=True):
            found = stated(before_stop(encoder.decode(ids)))
            right += found is not None and found == stated(row.answer)
            silent += found is None
    return right, silent


_HEAD = f"{'task':<18}{'n':>6}{'accuracy':>10}{'std.err.':>10}{'per char.':>11}{'seconds':>9}"


def _line(score: Score) -> str:
    per_character = "-" if score.per_character is None else f"{score.per_character:.4f}"
    accuracy = f"{score.accuracy:>10.4f}{score.standard_error:>10.4f}{per_character:>11}"
    line = f"{score.task:<18}{score.n:>6}{accuracy}{score.seconds:>9.1f}"
    return line + (f"  ({score.without_answer} without a final answer)" if score.without_answer else "")
