"""`bitune table`: from a folder of cells to a table in all formats (paper, Tables 1-8 and 14-17).

`write` is what the grid calls when it is through, and what a notebook calls; `rows_of` gives the same as objects. Nothing
is trained or evaluated here.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bitune_pl.reproduction.tables import formats
from bitune_pl.reproduction.tables.cells import read
from bitune_pl.reproduction.tables.page import page
from bitune_pl.reproduction.tables.rows import Row, rows

FORMATS = {
    "txt": formats.terminal,
    "md": formats.markdown,
    "csv": formats.as_csv,
    "tex": formats.latex,
    "html": page,
}


def rows_of(cells: Path, seeds: Sequence[int] | None = None) -> list[Row]:
    """The rows of the table whose cells lie in a folder.

    Args:
        seeds: those that every trained method should have; None takes all that some trained method of a model has.

    Raises:
        FileNotFoundError: if the folder is missing, or has no cells.
        ValueError: if a file is no cell, or cells do not belong together; the message names them.
    """
    return rows(read(Path(cells)), seeds)


def write(cells: Path, out: Path, seeds: Sequence[int] | None = None) -> str:
    """Write `<table>-<profile>` as txt, md, csv, tex and html into a folder; returns the table for the terminal.

    Raises:
        FileNotFoundError, ValueError: as `rows_of`.
    """
    made = rows_of(cells, seeds)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for ending, show in FORMATS.items():
        (out / f"{made[0].table}-{made[0].profile}.{ending}").write_text(show(made), encoding="utf-8")
    return formats.terminal(made)


def main(argv: list[str]) -> None:
    """`bitune table FOLDER --out DIR`: print the table and write it in all formats."""
    parser = argparse.ArgumentParser("bitune table", description="A table of the paper from the cells of a grid.")
    parser.add_argument("cells", metavar="FOLDER", help="holds the cells, as reproduction/table1/cpu")
    parser.add_argument("--out", metavar="DIR", help="where to write; the default is the folder of the cells' table")
    parser.add_argument(
        "--seeds", metavar="A,B", help="seeds that each method should have; the default is what there is"
    )
    said = parser.parse_args(argv)
    seeds = _seeds(said.seeds)
    out = Path(said.out) if said.out else Path(said.cells).parent
    print(write(Path(said.cells), out, seeds))
    print(f"Written to {out}, as txt, md, csv, tex and html.")


def _seeds(said: str | None) -> list[int] | None:
    try:
        return [int(seed) for seed in said.split(",")] if said else None
    except ValueError:
        raise ValueError(f"--seeds got {said!r}; seeds are whole numbers with commas between, as 42,43,44.") from None
