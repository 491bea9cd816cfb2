"""`bitune compare A.json B.json`: two results of `bitune evaluate`, question by question.

Questions are the same if task, place in the task, prompt and choices are; only those that both files hold are compared, and what
is left out is told. Each task has a line: both scores, their difference with a 95 % interval (paired bootstrap) and
McNemar's exact test. The subjects of MMLU are one task. Over all tasks there are two lines: all questions together, and
the mean of the tasks' scores, which is the paper's "Avg.".
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bitune_pl.arguments import Arguments
from bitune_pl.evaluation.paired import Gain, McNemar, mcnemar, mean_gain, paired_gain

METRICS = ("acc", "exact_match_flexible", "exact_match_strict")
"""What is compared where no metric is named: the first of these that a task has."""

NO_METRIC = {"index", "gold", "chosen"}
"""Numbers of a question that say which, not how well."""

LARGEST = 1e100
"""Beyond any score."""

Question = Mapping[str, Any]
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Results:
    """One file: its path, what was scored, its questions by task, place, and prompt with choices, and the base's type."""

    path: str
    model: str
    questions: Mapping[Key, Question]
    dtype: str | None = None

    def of(self, task: str) -> dict[Key, Question]:
        return {key: question for key, question in self.questions.items() if key[0] == task}

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, *_ in self.questions))


class Row(NamedTuple):
    """A line of the table; without a number of questions or a test where it says nothing about single ones."""

    name: str
    n: int | None
    before: float
    after: float
    gain: Gain
    test: McNemar | None


@dataclass
class Comparison:
    """The outcomes of each task on both sides, by which metric, and what was left out."""

    outcomes: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[Row]:
        rows = [_row(task, *pair) for task, pair in self.outcomes.items()]
        return rows if len(rows) == 1 else [*rows, self._all_questions(), self._mean_of_tasks(rows)]

    def _all_questions(self) -> Row:
        before, after = ([x for pair in self.outcomes.values() for x in pair[side]] for side in (0, 1))
        return _row("all questions", before, after)

    def _mean_of_tasks(self, rows: Sequence[Row]) -> Row:
        before, after = (math.fsum(getattr(row, side) for row in rows) / len(rows) for side in ("before", "after"))
        return Row(f"mean of {len(rows)} tasks", None, before, after, mean_gain(list(self.outcomes.values())), None)

    def compared_by(self) -> str:
        """The metric, with the tasks of each where there are several."""
        tasks = {metric: [t for t, m in self.metrics.items() if m == metric] for metric in self.metrics.values()}
        return ", ".join(tasks) if len(tasks) == 1 else ", ".join(f"{m} ({', '.join(t)})" for m, t in tasks.items())


def main(argv: list[str]) -> None:
    """Print the comparison."""
    parser = Arguments("compare", "Compare two results of `bitune evaluate --out FILE`, question by question.")
    parser.add_argument("before", metavar="A.json", help="the results to compare with")
    parser.add_argument("after", metavar="B.json", help="the results that are compared")
    parser.add_argument("--metric", help="acc, acc_norm, exact_match_strict, ... (acc, or exact_match_flexible)")
    args = parser.parse_args(argv)
    before, after = read(args.before), read(args.after)
    compared = compare(before, after, args.metric)
    print(f"A  {before.path}  {before.model}\nB  {after.path}  {after.model}\ncompared by {compared.compared_by()}\n")
    rows = compared.rows()
    width = max(18, *(len(row.name) + 1 for row in rows))
    print("\n".join([" " * width + _HEAD, *(_line(row, width) for row in rows)]))
    if compared.notes:
        print("\n" + "\n".join(compared.notes))


def compare(before: Results, after: Results, metric: str | None = None) -> Comparison:
    """The questions that two results share.

    Raises:
        ValueError: if there is none, if the metric is not there, or if a question has another right answer.
    """
    shared = [task for task in before.tasks if task in after.tasks]
    if not shared:
        raise ValueError(
            f"{before.path} and {after.path} have no task in common: the first holds {', '.join(before.tasks)}, the "
            f"second {', '.join(after.tasks)}. Evaluate both on the same tasks."
        )
    compared = Comparison()
    for one in (before, after):
        if alone := [task for task in one.tasks if task not in shared]:
            compared.notes.append(f"Only {one.path} holds {', '.join(alone)}.")
    for task in shared:
        _add(compared, task, before, after, metric)
    if before.dtype != after.dtype and before.dtype and after.dtype:
        compared.notes.append(
            f"A was scored in {before.dtype}, B in {after.dtype}, which alone may move a question or two of 200: "
            "`bitune evaluate --dtype` chooses."
        )
    if not compared.outcomes:
        raise ValueError(" ".join(["There is nothing to compare.", *compared.notes]))
    return compared


def read(path: str) -> Results:
    """A file of results.

    Raises:
        FileNotFoundError, ValueError: if there is none, or it is something else.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise IsADirectoryError(f"{path} is no file: name one that `bitune evaluate --out` wrote.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}; `bitune evaluate --out {path}` writes one.")
    try:
        found = json.loads(Path(path).read_bytes() or b"null")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not JSON ({error}); it may be cut short: give a file that `bitune evaluate --out` wrote."
        ) from None
    questions = found.get("questions") if isinstance(found, dict) else None
    if not isinstance(questions, list) or not questions:
        what = "is empty" if found is None else "holds no questions"
        raise ValueError(f"{path} {what}: give a file that `bitune evaluate --out` wrote.")
    said = found.get("model")
    said = said if isinstance(said, dict) else {}
    return Results(path, _model(said), _by_key(path, questions), said.get("dtype"))


def _by_key(path: str, questions: Iterable[Any]) -> dict[Key, Question]:
    found: dict[Key, Question] = {}
    for number, question in enumerate(questions, start=1):
        try:
            task, index, prompt = question["task"], question["index"], question["prompt_hash"]
            key = (_whole_task(task), f"{task} {index}", f"{prompt} {question.get('choices_hash')}")
            if not isinstance(task, str):
                raise TypeError
        except (KeyError, TypeError, AttributeError):
            raise ValueError(
                f"Question {number} of {path} lacks task, index or prompt_hash: the file was written in another format, "
                "or by another version; evaluate again."
            ) from None
        if key in found:
            raise ValueError(f"{path} holds question {index} of {task} twice, so it cannot be matched with another's.")
        found[key] = question
    return found


def _whole_task(task: str) -> str:
    """`mmlu` for one of its subjects; other tasks of lm-eval begin like these."""
    return "mmlu" if task in _subjects() else task


@cache
def _subjects() -> set[str]:
    return {f"mmlu_{path.stem}" for path in (Path(__file__).parent / "tasks" / "mmlu").glob("[!_]*.yaml")}


def _model(said: Mapping[str, Any]) -> str:
    """What was scored, as far as the file says: `bitune, lora on smollm2`."""
    method = said.get("method")
    fields = ", ".join(f"{name} {value}" for name, value in method.items()) if isinstance(method, dict) else method
    if (fields, said.get("adapter")) == ("plain", "none"):
        return f"{said.get('base')} as pretrained"
    what = ", ".join(str(part) for part in (fields, said.get("adapter")) if part)
    return f"{what} on {said['base']}" if what and said.get("base") else what or str(said.get("base") or "")


def _add(compared: Comparison, task: str, before: Results, after: Results, metric: str | None) -> None:
    """The outcomes of a task's shared questions, and a note on those that are not."""
    ours, theirs = before.of(task), after.of(task)
    keys = [key for key in ours if key in theirs]
    if not keys:
        compared.notes.append(
            f"The questions of {task} read otherwise in the two files ({len(ours)} and {len(theirs)}, none in common): "
            "they come from other rows or another template."
        )
        return
    if not len(keys) == len(ours) == len(theirs):
        compared.notes.append(
            f"{task}: {len(keys)} questions in common are compared, of {len(ours)} in {before.path} and {len(theirs)} "
            f"in {after.path}."
        )
    _refuse_other_golds(task, [(ours[key], theirs[key]) for key in keys], before, after)
    has = set.intersection(*(set(side[key]) for key in keys for side in (ours, theirs))) - NO_METRIC
    name = metric if metric else next((name for name in METRICS if name in has), None)
    if name is None or name not in has:
        wanted = name or " or ".join(METRICS)
        offered = ", ".join(sorted(one for one in has if isinstance(ours[keys[0]][one], int | float))) or "no score"
        compared.notes.append(f"{task} is left out: not all of its questions have {wanted}, but {offered}.")
        return
    compared.metrics[task] = name
    compared.outcomes[task] = (
        [_number(ours[key], name, before.path) for key in keys],
        [_number(theirs[key], name, after.path) for key in keys],
    )


def _refuse_other_golds(task: str, pairs: Iterable[tuple[Question, Question]], before: Results, after: Results) -> None:
    other = sum(one.get("gold") != two.get("gold") for one, two in pairs)
    if other:
        raise ValueError(
            f"{other} questions of {task} have the same prompt but another right answer in {before.path} than in "
            f"{after.path}: the two were scored on different data."
        )


def _number(question: Question, metric: str, path: str) -> float:
    value = question[metric]
    if isinstance(value, int | float) and -LARGEST < value < LARGEST:
        return float(value)
    said = repr(value)[:40]
    raise ValueError(
        f"{metric} of question {question['index']} of {question['task']} in {path} is {said}, not a score: evaluate again."
    )


def _row(name: str, before: list[float], after: list[float]) -> Row:
    is_right_or_wrong = set(before) | set(after) <= {0.0, 1.0}
    scores = (math.fsum(side) / len(side) for side in (before, after))
    test = mcnemar(before, after) if is_right_or_wrong else None
    return Row(name, len(before), *scores, paired_gain(before, after), test)


_HEAD = f"{'n':>7}{'A':>9}{'B':>9}{'B - A':>10}{'95 % interval':>20}" + "  only A  only B  McNemar p"


def _line(row: Row, width: int) -> str:
    n, interval = "" if row.n is None else row.n, f"{row.gain.low:+.4f} to {row.gain.high:+.4f}"
    line = f"{row.name:<{width}}{n:>7}{row.before:>9.4f}{row.after:>9.4f}{row.gain.mean:>+10.4f}{interval:>20}"
    return line + (f"{row.test.only_before:>8}{row.test.only_after:>8}{row.test.p:>11.2g}" if row.test else "")
