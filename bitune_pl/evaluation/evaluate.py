"""`bitune evaluate`: score a run, or a base as pretrained, on tasks, through the lm-evaluation-harness.

A question with choices is scored by log-likelihood, all choices from one reading of the prompt; sums and worked answers by
what the generated answer states. Templates are those of the sources (the paper's), not that of the run. With `--out` the
results are written as JSON, and an evaluation that was stopped goes on where it was.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from bitune_pl.arguments import Arguments, check_model
from bitune_pl.data.fields import SURROGATE
from bitune_pl.data.files import check_place


def main(argv: list[str]) -> None:
    """Score, print a table, and write the results."""
    args = _parser().parse_args(argv)
    names = _checked(args)

    from bitune_pl.evaluation import catalogue, results
    from bitune_pl.evaluation.run import open_either

    if args.out:
        check_place(args.out, "results.json")
        check_place(args.out.with_name(f"{args.out.name}.12345678.unfinished"), "results.json")
        _refuse_to_write_over(args.out)
    tasks = catalogue.load(names, args.root, args.part, args.limit)
    finished = None
    try:
        opened = open_either(args.run, args.base, args.dtype)
        finished = _known(args, names, opened) if args.out else None
        for split, asked in catalogue.other_splits(tasks, args.part).items():
            print(f"note: {', '.join(asked)}: the {args.part} rows are from split {split}", file=sys.stderr)
        heads = iter([HEAD])
        scored = evaluate(
            opened.model, opened.encoder, tasks, args.root, args.limit, args.part, args.max_length, finished, args.run,
            args.seed, tell=lambda task, row: print(*heads, line(task, row), sep="\n", flush=True),
        )  # fmt: skip
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. {_go_on(args.out, finished)}") from None
    if finished:
        results.write(scored, args.out)
        finished.remove()
        print(f"The results are in {args.out}.")


def evaluate(
    model,
    encoder,
    tasks: Sequence[str] | str | dict[str, dict],
    root: str | Path | None = None,
    limit: int | None = None,
    part: str = "test",
    max_length: int | None = None,
    finished=None,
    run: str | None = None,
    seed: int | None = None,
    progress: bool = True,
    tell=lambda task, scores: None,
) -> dict:
    """Score a model on tasks; see `results.py` for what comes back.

    Args:
        model: a `Bitune`; modes and gradients are left as they were.
        encoder: the `Encoder` that speaks to it.
        tasks: names, or what `catalogue.load` made of them.
        root: folder with local copies of the data sets; None means the hub.
        limit: only the first so many rows of each task (of each subject, in a group).
        part: which rows of our tasks: `test` is what the paper evaluates.
        max_length: positions that a prompt and its answer may take; the decoder's own number if not given.
        finished: a `Finished` with answers that are known already.
        run: what the results call the model's folder.
        seed: of tasks that sample their answers; the random state is left alone if not given.
        progress: whether to show a bar.
        tell: called with each name that was asked for, and its scores, when they are there.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: before anything is scored, if a task is unknown, cannot be scored,
            its data is not there, or a question of it has no room.
    """
    import torch
    from lm_eval.evaluator import evaluate as ask

    from bitune_pl import __version__
    from bitune_pl.evaluation import catalogue, results
    from bitune_pl.evaluation.harness import BituneLM

    config = results.config_of(run)
    loaded = tasks if isinstance(tasks, dict) else catalogue.load(tasks, root, part, limit)
    if seed is not None:
        torch.manual_seed(seed)
    lm = BituneLM(model, encoder, max_length=max_length, finished=finished, progress=progress)
    lm.check(loaded, limit)
    start, rows, questions = time.perf_counter(), {}, {}
    known = len(finished.answers) if finished else 0
    if finished:
        finished.asked.clear()  # by an earlier call that stopped
    for name, task in loaded.items():
        lm.title, began = name, time.perf_counter()
        lm.cut.clear()
        with catalogue.quiet():
            found = ask(lm, task, limit=limit, bootstrap_iters=1000)
        names = catalogue.named(name, task)
        rows |= _rows(results, found, names, lm.cut, time.perf_counter() - began)
        questions |= {(row["task"], row["index"]): row for row in results.questions(found, task["tasks"])}
        for asked in names:
            tell(asked, rows[asked])
    return {
        "bitune_pl": __version__,
        "versions": results.versions(),
        "model": results.describe(model, run) | results.computed(model),
        "config": config,
        "settings": {
            "tasks": list(loaded), "root": None if root is None else str(root), "part": part, "limit": limit,
            "max_length": lm.max_length, "seed": seed, "splits": catalogue.splits(loaded, part),
        },
        "seconds": round(time.perf_counter() - start, 3),
        "known_before": known,
        "tasks": rows,
        "questions": list(questions.values()),
    }  # fmt: skip


def _rows(results, found: dict, names: list[str], cut: dict, seconds: float) -> dict[str, dict]:
    """Scores of what was asked for and of all tasks in it; their share of the time is by number of questions."""
    whole = sum(n["effective"] for n in found["n-samples"].values())
    rows = {}
    for task in dict.fromkeys([*names, *found["results"]]):
        got = results.scores(found, task)
        cut_contexts = sum(cut[leaf] for leaf in results.leaves(found, task))
        spent = {"seconds": round(seconds * got["n"] / whole, 3), "cut_contexts": cut_contexts}
        rows[task] = {"n": got.pop("n"), **spent, **got}
    return rows


def _known(args: Namespace, names: list[str], opened) -> "Finished":
    """What an earlier evaluation has finished; it goes when all is written."""
    from bitune_pl.evaluation import results
    from bitune_pl.evaluation.finished import Finished

    asked = {name: vars(args)[name] for name in ("root", "limit", "part", "max_length", "seed")}
    finished = Finished(args.out, results.fingerprint(opened.model, opened.encoder, tasks=names, **asked))
    if finished.answers:
        known = f"{len(finished.answers)} answers (each choice is one) are known from an evaluation that was stopped"
        print(f"{known}; the seconds are those of the rest.")
    return finished


def _refuse_to_write_over(out: Path) -> None:
    """Earlier results are written over, and nothing else: no task, no config of a run."""
    if out.is_file():
        with out.open("rb") as file:
            begins = file.read(64)
        if begins.strip() and b'"bitune_pl"' not in begins:
            raise FileExistsError(
                f"--out {out} holds something else than results: name another file, or remove it first."
            )


def _parser() -> Arguments:
    parser = Arguments("evaluate", "Score a run, or a base as pretrained, on tasks.")
    parser.add_model()
    parser.add_argument(
        "--tasks",
        metavar="A,B",
        required=True,
        help="piqa, arc_challenge, commonsense_qa, social_i_qa, mmlu, gsm8k, cot_piqa, ...; any data source, a file of your "
        "own, or a task of lm-eval",
    )
    parser.add_argument(
        "--data.root", dest="root", metavar="FOLDER", help="local copies of the data sets; without it, the hub"
    )
    parser.add_argument(
        "--part",
        default="test",
        choices=["test", "validation", "train"],
        help="rows to score (test; of your own file that is every row)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N rows of each task, or subject")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results, a question a line, as JSON")
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="positions for a prompt and its answer; the decoder's own number"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of tasks that sample their answers (0)")
    return parser


def _checked(args: Namespace) -> list[str]:
    """The names of the tasks, once the arguments make sense."""
    asked = [task.strip() for task in args.tasks.split(",") if task.strip()]
    found: dict[Path | str, str] = {}
    for name in asked:  # a file is one task, however it is named
        found.setdefault(Path(name).resolve() if Path(name).is_file() else name, name)
    names = list(found.values())
    for said in (*names, args.run or "", args.base or ""):
        if SURROGATE.search(said):
            raise ValueError(f"{said!r} is no text in UTF-8: rename that file or folder.")
    if not names:
        raise ValueError("--tasks names no task: give some, separated by commas, such as piqa,arc_challenge.")
    if args.limit is not None and not 1 <= args.limit < 2**63:
        raise ValueError(f"--limit is a number of rows, at least 1, not {args.limit}.")
    if not 0 <= args.seed < 2**32:
        raise ValueError(f"--seed is a whole number from 0 to {2**32 - 1}, not {args.seed}.")
    if args.max_length is not None and args.max_length < 2:
        raise ValueError(f"--max-length is a number of positions, at least 2, not {args.max_length}.")
    check_model(args.run, args.base)
    return names


def _go_on(out: Path | None, finished: "Finished | None") -> str:
    """What the same command would do after a stop."""
    if not out:
        return "With --out FILE the same command would go on."
    if finished is None:
        return "Nothing was asked yet."
    if finished.answers:
        return "The same command goes on from there."
    return "No answer is whole yet: the same command would begin anew."


HEAD = f"{'task':<26}{'n':>6}{'accuracy':>10}{'std.err.':>10}{'normalised':>12}{'seconds':>9}"
FIRST = ("acc", "exact_match_flexible")
"""The metric that the table calls accuracy; for other tasks of lm-eval it is their first, by name."""


def line(task: str, row: dict) -> str:
    """A task's line of the table."""
    metrics = [name for name in row if f"{name}_stderr" in row]
    metric = next((name for name in FIRST if name in metrics), metrics[0] if metrics else None)
    numbers = [row.get(metric), row.get(f"{metric}_stderr"), row.get("acc_norm")]
    accuracy, error, normalised = ("-" if n is None else f"{n:.4f}" for n in numbers)
    label = task if len(task) < 26 else f"...{task[-22:]}"
    text = f"{label:<26}{row['n']:>6}{accuracy:>10}{error:>10}{normalised:>12}{row['seconds']:>9.1f}"
    return text + "".join(f"  ({note})" for note in _notes(metric, row))


def _notes(metric: str | None, row: dict) -> list[str]:
    notes = [] if metric in FIRST else [f"{metric}"]
    if "exact_match_strict" in row:
        notes.append(f"strict {row['exact_match_strict']:.4f}")
    if silent := round(row.get("without_answer", 0) * row["n"]):
        notes.append(f"{silent} without a final answer")
    if row["cut_contexts"]:
        notes.append(f"{row['cut_contexts']} prompts cut")
    return notes
