"""`bitune report RUN`: write one page of a run."""

from pathlib import Path

from bitune_pl.arguments import Arguments
from bitune_pl.data.files import check_place, put


def main(argv: list[str]) -> None:
    """Write the page and say where it is."""
    args = _parser().parse_args(argv)
    folder = Path(args.run)
    out = Path(args.out) if args.out else folder / "report.html"
    if args.out:
        check_place(out, "report.html")

    from bitune_pl.training.report.page import page
    from bitune_pl.training.report.record import read

    record = read(folder)
    text = page(record, None if args.without_checks else _checks(record))
    put(out, text.encode("utf-8", "backslashreplace").decode())  # a name on the disk may be no text
    print(f"The page is in {out}.")


def _parser() -> Arguments:
    parser = Arguments("report", "One page of a run: settings, curves, alpha, answers, cost, checks; needs no network.")
    parser.add_argument("run", metavar="RUN", help="folder of a run, finished or not")
    parser.add_argument("--out", metavar="FILE", help="where to write it (RUN/report.html)")
    parser.add_argument(
        "--without-checks", action="store_true", help="leave out the equivalence checks, which take seconds"
    )
    return parser


def _checks(record):
    """The rungs of `bitune verify` for the run's decoder and method, or why they cannot be climbed."""
    from bitune_pl.training.report.proof import climb

    model = record.section("model")
    base, method, adapter = (
        model.get(name, default) for name, default in (("base", "smollm2"), ("method", "bitune"), ("adapter", "lora"))
    )
    try:
        return climb(base, method, adapter)
    except Exception as error:  # what a decoder's configuration raises depends on the family; the page is worth having
        return f"The checks could not be made: {' '.join(str(error).split()) or type(error).__name__}"
