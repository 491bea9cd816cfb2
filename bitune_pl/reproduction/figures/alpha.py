"""Figures 2 and 3: alpha against update, and the final alpha of each block, for keys and values.

The paper's Figure 2 shows one curve for each theta_init, most likely of keys alone; here keys and values have a panel each.
"""

from math import ceil
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bitune_pl.reproduction.figures.style import COLOURS, COLUMN, DASHES, GREY, KEYS, THETA_INIT, VALUES, blank, paper
from bitune_pl.reproduction.figures.trajectories import PARTS, Trajectory, labelled

START = 0.5
"""Where alpha starts, whatever theta_init (equation 8)."""
STEPS = (1, 2, 5, 10)
LETTERS, SHORT = 55, 16
"""Letters of a label that fit into the width of a figure, and into a third of it."""


@paper
def draw_trajectories(trajectories: list[Trajectory]) -> Figure:
    """Figure 2: alpha averaged over blocks against update, a curve for each theta_init (or whatever runs differ in).

    Runs that differ in their seeds alone are averaged, and a band goes from the lowest to the highest of them.
    """
    groups = {fill(label, LETTERS): runs for label, runs in labelled(trajectories).items()}
    columns = min(3, len(groups)) if all(len(label.replace(THETA_INIT, "θinit")) <= SHORT for label in groups) else 1
    rows = sum(label.count("\n") + 1 for label in groups) / columns
    figure, axes = blank(COLUMN, 1.65 + 0.13 * ceil(rows), columns=2, sharex=True, sharey=True)
    for axis, (part, name) in zip(axes, PARTS.items(), strict=True):
        axis.axhline(START, color=GREY, linewidth=0.6, zorder=1)
        for i, (label, runs) in enumerate(groups.items()):
            _curve(axis, part, runs, label, COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)])
        axis.set(title=name, xlabel="update")
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=STEPS))
    axes[0].set_ylabel("mean α over blocks")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=columns)
    return figure


def _curve(axis: Axes, part: str, runs: list[Trajectory], label: str, colour: str, dashes) -> None:
    at = [dict(zip(run.updates, run.mean[part], strict=True)) for run in runs]
    updates = sorted(set.intersection(*map(set, at)))
    columns = [[values[update] for values in at] for update in updates]
    mean = [sum(column) / len(column) for column in columns]
    if len(runs) > 1:
        axis.fill_between(updates, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.2, lw=0)
        label = f"{label} ({_counted(runs)})"
    marker = "o" if len(updates) == 1 else ""
    axis.plot(updates, mean, color=colour, linestyle=dashes, marker=marker, markersize=3, label=label)


def _counted(runs: list[Trajectory]) -> str:
    seeds = len({str(run.seed) for run in runs})
    told = f"{seeds} seed{'s' * (seeds > 1)}"
    return told if seeds == len(runs) else f"{len(runs)} runs, {told}"


@paper
def draw_blocks(trajectories: list[Trajectory]) -> Figure:
    """Figure 3: final alpha of each block, keys and values, with their means as lines; a panel for each run."""
    shown = [
        (f"{label}, seed {run.seed}" if len(runs) > 1 else label, run)
        for label, runs in labelled(trajectories).items()
        for run in runs
    ]
    figure, axes = blank(COLUMN, 0.2 + 1.75 * len(shown), rows=len(shown), sharey=True)
    for axis, (label, run) in zip(axes, shown, strict=True):
        _blocks(axis, run)
        title = fill(f"{label}, after update {run.updates[-1]}", LETTERS)
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, title=title, title_fontsize=7)
    highest = max(alpha for _, run in shown for alphas in run.final.values() for alpha in (START, *alphas))
    axes[-1].set(xlabel="block", ylim=(-0.03 * highest, 1.05 * highest))
    return figure


def _blocks(axis: Axes, run: Trajectory) -> None:
    """Two points for each block, tied by a thin line, and a line across at the mean of either kind.

    Values are hollow and larger, so that keys of the same alpha are seen inside them.
    """
    looks = {"alpha_k": (KEYS, "o", 3.2, KEYS, "-"), "alpha_v": (VALUES, "s", 4.8, "none", DASHES[1])}
    blocks = range(len(run.final["alpha_k"]))
    axis.axhline(START, color=GREY, linewidth=0.6, zorder=1)
    axis.vlines(blocks, run.final["alpha_k"], run.final["alpha_v"], color=GREY, linewidth=0.5, zorder=1.5)
    for part, (colour, marker, size, inside, dashes) in looks.items():
        mean = sum(run.final[part]) / len(blocks)
        label = f"{PARTS[part]} (mean {mean:.3f})"
        look = {"marker": marker, "markersize": size, "markerfacecolor": inside, "markeredgewidth": 0.8}
        axis.plot(blocks, run.final[part], color=colour, linestyle="", label=label, **look)
        axis.axhline(mean, color=colour, linewidth=0.8, linestyle=dashes, zorder=1)
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=STEPS))
    axis.set(ylabel="final α", xlim=(-0.8, len(blocks) - 0.2))
    axis.grid(False, axis="x")
