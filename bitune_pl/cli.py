"""The command `bitune`: a table of commands, and what a user's mistake looks like.

Nothing is imported before a command is chosen, so that `bitune --help` answers at once. What a command does is in the
function that the table names. A mistake is one sentence on standard error and exit status 2.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("bitune_pl.training.commands:fit", "train a decoder:  bitune fit --config configs/smollm2.yaml"),
    "validate": (
        "bitune_pl.training.commands:validate",
        "loss and accuracy of a run on its validation rows:  --run FOLDER",
    ),
    "test": ("bitune_pl.training.commands:test", "loss and accuracy of a run on its test rows:  --run FOLDER"),
    "predict": (
        "bitune_pl.training.commands:predict",
        "answers of a run to its test rows, as JSON lines:  --run FOLDER",
    ),
    "evaluate": (
        "bitune_pl.evaluation.evaluate:main",
        "score a run or a base on tasks:  --run FOLDER --tasks commonsense_qa",
    ),
    "compare": (
        "bitune_pl.evaluation.compare:main",
        "two results of evaluate, question by question:  A.json B.json",
    ),
    "generate": ("bitune_pl.evaluation.generate:main", 'answer a question:  --run FOLDER --prompt "..."'),
    "data": ("bitune_pl.cli:data", "look at data as the model will see it:  data show|check --config FILE"),
    "distill": (
        "bitune_pl.data.distill:main",
        "ask a teacher for worked answers:  --data.source gsm8k --teacher MODEL",
    ),
    "figure": (
        "bitune_pl.reproduction.figures.command:main",
        "draw a figure of the paper from runs:  figure alpha|blocks|attention|samples --run FOLDER",
    ),
    "reproduce": (
        "bitune_pl.reproduction.runner.command:main",
        "a table of the paper, from runs to verdict:  reproduce table1 --profile smoke",
    ),
    "table": (
        "bitune_pl.reproduction.tables.table:main",
        "one of the paper's tables from the cells of a grid:  table FOLDER --out DIR",
    ),
    "report": ("bitune_pl.training.report.command:main", "one page of a run, curves and alpha included:  RUN"),
    "verify": ("bitune_pl.method.verify:main", "prove the method on a small copy of a decoder:  --base NAME"),
}
"""Command -> the function that does it, and its line of help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal cannot show is spelled out
            stream.reconfigure(errors="backslashreplace")
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        status = _function(command)(rest) or 0
        print(end="", flush=True)
        return status
    except (ValueError, OSError, ImportError, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 128 + signal.SIGPIPE
        if os.environ.get("BITUNE_TRACEBACK"):
            raise
        return _explain(error)


def data(argv: list[str]) -> int:
    """`bitune data`: the one command that needs data and, for a base's tokenizer, method."""
    from bitune_pl.data.inspect import main as inspect
    from bitune_pl.method.backbone import embedding_rows, load_tokenizer

    return inspect(argv, load_tokenizer, embedding_rows)


def _function(command: str) -> Callable[[list[str]], int | None]:
    if command in ("-h", "--help", "help"):
        return lambda _: print(_help())
    if command == "--version":
        from bitune_pl import __version__

        return lambda _: print(f"bitune {__version__}")
    if command not in COMMANDS:
        near = get_close_matches(command, COMMANDS, n=1)
        raise ValueError(
            f"There is no command {command!r}{f'; did you mean {near[0]}?' if near else '.'} "
            f"The commands are {', '.join(COMMANDS)}."
        )
    module, name = COMMANDS[command][0].split(":")
    return getattr(import_module(module), name)


def _explain(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        print(f"bitune: {str(error) or 'Stopped.'}", file=sys.stderr)
        return 130
    print(f"bitune: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def _nobody_reads() -> bool:
    """Whether what standard output went to has ended (`bitune verify | head -3`); if so, the rest is left unsaid."""
    output = select.poll()
    try:
        output.register(sys.stdout, 0)
    except (AttributeError, OSError, ValueError):  # it is no file
        return False
    if not output.poll(0):
        return False
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return True


def _help() -> str:
    lines = [f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: bitune COMMAND [...]",
            "",
            "Decoders that read their prompt in both directions (arXiv 2405.14862).",
            "",
        ]
        + lines
        + [
            "",
            "bitune COMMAND --help lists a command's settings; BITUNE_TRACEBACK=1 shows where an error comes from.",
        ]
    )
