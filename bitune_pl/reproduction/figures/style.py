"""How figures look and how they are written: sizes of a paper's column and page, colours, files.

The colours are those of Okabe and Ito, which stay apart for colour-blind eyes; lines differ in their dashes too, so that
they stay apart in grey. Nothing here knows what is drawn.
"""

from collections.abc import Sequence
from pathlib import Path

try:
    import matplotlib
except ImportError as error:
    raise ModuleNotFoundError(
        "Figures are drawn with matplotlib, which is not installed: pip install matplotlib"
    ) from error

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitune_pl.data.files import check_place

COLUMN, PAGE = 3.3, 6.8
"""Widths of a column and of a page, in inches."""

BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000",
)  # fmt: skip
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
KEYS, VALUES = BLUE, VERMILION
GREY, PALE = "#666666", "#e8e8e8"
THETA_INIT = r"$\theta_\mathrm{init}$"

STYLE = {
    "font.size": 7, "axes.labelsize": 7, "axes.titlesize": 7.5, "xtick.labelsize": 6.5, "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5, "legend.frameon": False, "legend.handlelength": 2.4, "legend.columnspacing": 1.2,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.2,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": PALE, "grid.linewidth": 0.5,
    "figure.dpi": 150, "savefig.dpi": 300, "pdf.fonttype": 42, "svg.hashsalt": "bitune_pl",
}  # fmt: skip
paper = matplotlib.rc_context(STYLE)
"""Decorates a function that draws."""

FORMATS = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
"""Endings of files, and what is left out of them so that the same figure is the same file."""


def blank(width: float, height: float, rows: int = 1, columns: int = 1, **settings) -> tuple[Figure, Sequence[Axes]]:
    """An empty figure, in inches, and its axes in reading order."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **settings).ravel()


def files(out: Path) -> list[Path]:
    """What `save` writes: the format that the name ends in; without an ending `.pdf` and `.png`.

    Raises:
        ValueError, OSError: if the ending is of no format, or a file could not be written there.
    """
    if out.suffix and out.suffix not in FORMATS:
        raise ValueError(f"--out ends in {', '.join(FORMATS)}, or in nothing for .pdf and .png, not in {out.suffix}.")
    named = [out] if out.suffix or not out.name else [out.with_suffix(ending) for ending in (".pdf", ".png")]
    for file in named:
        check_place(file, "figure.pdf")
    return named


def save(figure: Figure, out: Path) -> list[Path]:
    """Write a figure, and say into which files."""
    written = files(out)
    with matplotlib.rc_context(STYLE):
        for file in written:
            figure.savefig(file, metadata=FORMATS[file.suffix])
    return written
