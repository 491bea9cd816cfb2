"""`bitune figure alpha|blocks|attention|samples`: the paper's figures from run folders, one command each.

    bitune figure alpha --run RUN1 --run RUN2 --run RUN3 --out alpha.pdf
    bitune figure attention --run RUN --data.source gsm8k --data.root FOLDER --out attention.svg

What is wrong with the arguments is said before anything is loaded. Each figure is drawn by the file it is named after.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bitune_pl.arguments import Arguments
from bitune_pl.data.files import check_place

DEFAULT_SOURCE = "gsm8k"


def main(argv: list[str]) -> None:
    """Draw a figure, write it and say where it is."""
    kind, *rest = argv or ["--help"]
    if kind in ("-h", "--help"):
        print(_help())
        return
    if kind not in KINDS:
        raise ValueError(f"There is no figure {kind!r}; the figures are {', '.join(KINDS)}.")
    about, add_arguments, draw, ending = KINDS[kind]
    parser = Arguments(f"figure {kind}", about)
    parser.add_argument("--run", action="append", default=[], metavar="FOLDER", help="folder of a run; repeat it")
    parser.add_argument("--out", type=Path, default=Path(kind + ending), metavar="FILE", help=_ENDINGS[ending])
    add_arguments(parser)
    for file in draw(parser.parse_args(rest)):
        print(file)


def _alpha(args: Namespace) -> list[Path]:
    return _draw_runs(args, "draw_trajectories")


def _blocks(args: Namespace) -> list[Path]:
    return _draw_runs(args, "draw_blocks")


def _draw_runs(args: Namespace, function: str) -> list[Path]:
    _need_run(args)
    from bitune_pl.reproduction.figures import style  # before anything else that needs matplotlib

    style.files(args.out)
    from bitune_pl.reproduction.figures import alpha
    from bitune_pl.reproduction.figures.trajectories import read

    return style.save(getattr(alpha, function)([read(run) for run in args.run]), args.out)


def _attention(args: Namespace) -> list[Path]:
    _need_run(args)
    if len(args.run) > 1:
        raise ValueError("Attention maps are of one run: give one --run.")
    from bitune_pl.reproduction.figures import style

    style.files(args.out)
    asked = _asked(args)
    from bitune_pl.evaluation.run import open_run
    from bitune_pl.reproduction.figures.attention import draw_attention, read_questions

    model, encoder, _ = open_run(args.run[0])
    return style.save(draw_attention(read_questions(model, encoder, asked)), args.out)


def _samples(args: Namespace) -> list[Path]:
    if not args.run and not args.base:
        raise ValueError(
            "Say whose answers to show: --run FOLDER, or --base NAME for a decoder as pretrained; repeat them."
        )
    from bitune_pl.reproduction.figures import samples

    if args.out.suffix not in samples.FORMATS:
        raise ValueError(f"--out ends in {', '.join(samples.FORMATS)}, not in {args.out.suffix or 'nothing'}.")
    check_place(args.out, "samples.md")
    examples = _examples(args, args.source or DEFAULT_SOURCE, only_worked=True)
    names, answers = zip(*_answered(args, examples), strict=True)
    samples.write(names, samples.rows(examples, answers), args.out)
    return [args.out]


def _answered(args: Namespace, examples: Sequence) -> Iterator[tuple[str, list]]:
    """The name and the answers of each base and run, one after the other, so that only one is in memory."""
    from bitune_pl.evaluation.run import open_base, open_run
    from bitune_pl.method.variants import name_of
    from bitune_pl.reproduction.figures.samples import ask

    for base in args.base:
        yield base, ask(open_base(base), examples, args.max_new_tokens)
    for run in args.run:
        opened = open_run(run)
        method = name_of(opened.model.method) or "custom method"
        name = f"{method}, {opened.model.adapter}, {Path(run).resolve().name}"
        yield name, ask(opened, examples, args.max_new_tokens)


def _need_run(args: Namespace) -> None:
    if not args.run:
        raise ValueError("Say what to draw: --run FOLDER, such as runs/smollm2/<date-time>-<seed>.")


def _asked(args: Namespace) -> list[str]:
    """The prompts that were given, written as GSM8K's are (Table 20), or those of the source."""
    if not args.prompt:
        return [example.prompt for example in _examples(args, args.source or _own_source(args))]
    from bitune_pl.data.templates import WORDED_SUM

    return args.prompt if args.raw else [WORDED_SUM.fill({"question": prompt}) for prompt in args.prompt]


def _own_source(args: Namespace) -> str:
    """What the run was trained on, where that is embedded and no other data is named."""
    from bitune_pl.arguments import read_config
    from bitune_pl.data.table import SOURCES

    run = Path(args.run[0])
    configs = [path for path in (run / "config.yaml", run.parent / "config.yaml") if path.is_file()]
    data = read_config(configs[0]).get("data") if configs and not args.root else None
    source = str(data.get("source", DEFAULT_SOURCE)) if isinstance(data, dict) else DEFAULT_SOURCE
    return source if source in SOURCES and SOURCES[source].make else DEFAULT_SOURCE


def _examples(args: Namespace, source: str, only_worked: bool = False) -> Sequence:
    """The first test questions of a source."""
    if args.questions < 1:
        raise ValueError(f"--questions is a number of questions, at least 1, not {args.questions}.")
    from bitune_pl.data.sources import find, load

    if only_worked and not find(source).generated:
        raise ValueError(f"{source} is answered by choosing: take a source of worked answers, gsm8k or sums.")
    try:
        return load(source, "test", args.root, limit=args.questions).examples
    except ConnectionError as error:
        reason = str(error).partition("; connect to")[0]
        raise ConnectionError(
            f"{reason}: give --data.source sums, which needs no network, or --data.root FOLDER, which holds {source}."
        ) from error


def _no_more(parser: Arguments) -> None:
    pass


def _question_arguments(parser: Arguments, questions: int, sources: str) -> None:
    parser.add_argument("--data.source", dest="source", metavar="NAME", help=sources)
    parser.add_argument(
        "--data.root", dest="root", metavar="FOLDER", help="local copies of the data sets; without it, the hub"
    )
    parser.add_argument(
        "--questions", type=int, default=questions, metavar="N", help=f"first N test questions ({questions})"
    )


def _attention_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="a question in place of the source's; repeat it"
    )
    parser.add_argument("--raw", action="store_true", help="take --prompt as it is, not as a question")
    _question_arguments(parser, 2, "any source; by default the run's own where it is categories or sums, else gsm8k")


def _samples_arguments(parser: Arguments) -> None:
    parser.add_argument("--base", action="append", default=[], metavar="NAME", help="a decoder as pretrained")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="longest answer (256)")
    _question_arguments(parser, 20, "gsm8k (default) or sums")


_ENDINGS = {"": ".pdf, .svg or .png; without an ending, .pdf and .png", ".md": ".md, .html or .txt"}

KINDS: dict[str, tuple[str, Callable, Callable[[Namespace], list[Path]], str]] = {
    "alpha": ("Mean alpha against update, for keys and values (Figure 2).", _no_more, _alpha, ""),
    "blocks": ("Final alpha of each block, for keys and values (Figure 3).", _no_more, _blocks, ""),
    "attention": (
        "Causal and bidirectional attention maps of questions (Table 26).",
        _attention_arguments,
        _attention,
        "",
    ),
    "samples": ("Answers of several runs side by side (Table 27).", _samples_arguments, _samples, ".md"),
}
"""Figure -> its line of help, its further arguments, what draws it, and the ending of its file where none is named."""


def _help() -> str:
    lines = [f"  {name:<11}{about}" for name, (about, *_) in KINDS.items()]
    rest = ["", "bitune figure FIGURE --help lists a figure's settings."]
    return "\n".join(["usage: bitune figure FIGURE --run FOLDER [--run FOLDER ...] [--out FILE]", "", *lines, *rest])
