"""`bitune reproduce`: a table of the paper, from nothing to its last line.

Without --profile it is `paper` where a GPU is seen, else `smoke`. The table is written and printed by `table`.
"""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from bitune_pl.arguments import Arguments
from bitune_pl.reproduction.runner import places
from bitune_pl.reproduction.runner.experiment import PROFILES, Grid, tables


def main(argv: list[str]) -> int:
    """Do a table, print it; the status is 1 if a cell failed."""
    args = _parser().parse_args(argv)
    gpus = _gpus() if args.profile in (None, "paper") else 0
    profile = args.profile or ("paper" if gpus else "smoke")
    args.jobs = _jobs(profile, gpus) if args.jobs is None else args.jobs
    grid = Grid(args.table, profile, _numbers(args.seeds), _names(args.only), _names(args.models), args.search)
    _check(args, grid)
    print(_opening(args, profile, gpus), flush=True)
    if args.dry_run:
        print(_dry_run(grid, args))
        return 0
    try:
        records = _runner(args, gpus).table(grid)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped. What is finished is kept; the same command goes on from there.") from None
    print(_table(grid, Path(args.out)))
    failed = [record for record in records if record["status"] != "done"]
    if failed:
        print(f"{len(failed)} of {len(records)} cells failed; the same command tries them again.")
    return int(bool(failed))


def _parser() -> Arguments:
    parser = Arguments("reproduce", "Train, evaluate and print a table of the paper.")
    parser.add_argument("table", metavar="TABLE", help=f"one of {', '.join(tables())}")
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="smoke: tiny random decoders, minutes; cpu: SmolLM2 on real data, an hour or more; paper: its models, a GPU",
    )
    parser.add_argument("--data.root", dest="root", metavar="FOLDER", help="local copies of the data sets")
    parser.add_argument("--seeds", metavar="A,B", help="seeds in place of the table's, such as 42,43")
    parser.add_argument("--only", metavar="METHOD", help="rows of the table, separated by commas, such as LoRA,Bitune")
    parser.add_argument("--models", metavar="A,B", help="models in place of the table's, such as smollm2,gemma3-270m")
    parser.add_argument("--search", action="store_true", help="search the learning rate where the paper gives one too")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time; each has its share of the cores")
    parser.add_argument("--launcher", choices=["local", "slurm"], default="local", help="where runs happen (local)")
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of sbatch: partition=gpu, timeout_min=600, ...",
    )
    parser.add_argument("--dry-run", action="store_true", help="only list the cells, with time and memory")
    parser.add_argument(
        "--out", default="reproduction", metavar="FOLDER", help="where runs and results go (reproduction)"
    )
    parser.add_argument("--from", dest="taken", metavar="FOLDER", help="take over the finished cells of another --out")
    return parser


def _check(args: Namespace, grid: Grid) -> None:
    """What can be said before anything long starts.

    Raises:
        ValueError, FileNotFoundError: as sentences.
    """
    if args.jobs < 1:
        raise ValueError(f"--jobs is a number of runs at a time, at least 1, not {args.jobs}.")
    if args.root and not Path(args.root).is_dir():
        raise FileNotFoundError(f"There is no folder {args.root} to read data from.")
    sources = [run.settings.get("data", {}).get("source", "") for cell in grid.cells({}) for run in cell.runs]
    local = sorted({source for source in sources if "{root}" in source})
    if local and not args.root and not args.dry_run:
        raise ValueError(f"This profile reads {local[0].replace('{root}', 'FOLDER')}: give --data.root FOLDER.")
    if wrong := [pair for pair in args.slurm if "=" not in pair]:
        raise ValueError(f"--slurm takes NAME=VALUE, such as partition=gpu, not {wrong[0]!r}.")
    if args.launcher == "slurm":
        from bitune_pl.reproduction.runner.launch import check_slurm

        check_slurm()


def _opening(args: Namespace, profile: str, gpus: int) -> str:
    """What will be done, and why in this profile."""
    chosen = "" if args.profile else (f" ({gpus} GPUs are seen)" if gpus else " (no GPU is seen)")
    return f"{args.table}, profile {profile}{chosen}, in {args.out}"


def _dry_run(grid: Grid, args: Namespace) -> str:
    from bitune_pl.reproduction.runner.estimate import Costs, listing
    from bitune_pl.reproduction.runner.grid import winner

    folder, searches = places.Places(Path(args.out)), grid.searches()
    tried = {name: [places.read(folder.cell(cell)) for cell in cells] for name, cells in searches.items()}
    rates = {name: None if None in records else winner(records) for name, records in tried.items()}
    cells = [cell for cells in searches.values() for cell in cells] + grid.cells(rates)
    records = [record for path in folder.folder.glob(f"*/{grid.profile}/*.json") if (record := places.read(path))]
    finished = [record for record in records if record["status"] == "done"]
    costs = Costs.of(grid.common, grid.profile, finished)
    return listing(cells, costs, {record["key"] for record in finished}, args.jobs)


def _runner(args: Namespace, gpus: int):
    from bitune_pl.reproduction.runner.grid import Runner
    from bitune_pl.reproduction.runner.launch import Local, Slurm

    folder = Path(args.out)
    options: dict[str, Any] = dict(pair.partition("=")[::2] for pair in args.slurm)
    options = {name: int(value) if value.isdigit() else value for name, value in options.items()}
    launch = Local(args.jobs, gpus) if args.launcher == "local" else Slurm(folder / "slurm", args.jobs, options)
    taken = places.finished_elsewhere(Path(args.taken)) if args.taken else {}
    return Runner(folder, launch, args.root, taken, lambda text: print(text, flush=True))


def _table(grid: Grid, out: Path) -> str:
    """The table as text; it is also written in other forms."""
    from bitune_pl.reproduction.tables import table  # reads cells, and knows the published numbers

    text = table.write(out / grid.table / grid.profile, out / "tables", grid.all_seeds)
    return f"\n{text}\nThe table is in {out / 'tables'} too, as txt, md, csv, tex and html."


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _jobs(profile: str, gpus: int) -> int:
    """A run for each GPU; many small ones at a time; else one, whose times mean something."""
    return min(4, os.cpu_count() or 1) if profile == "smoke" else max(1, gpus)


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


def _numbers(text: str | None) -> list[int] | None:
    try:
        return [int(name) for name in _names(text) or []] or None
    except ValueError:
        raise ValueError(f"--seeds are whole numbers separated by commas, not {text!r}.") from None
