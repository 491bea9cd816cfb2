"""Drawings that explain the method rather than a run: the row, who attends to whom in it, and the mixing curve.

They are drawn from the real layout and the real equation, and belong to no figure of the paper. The notebooks show them.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from bitune_pl.method.layout import Layout
from bitune_pl.method.mixing import alpha
from bitune_pl.reproduction.figures.style import COLOURS, DASHES, GREY, PAGE, THETA_INIT, blank, paper

REGIONS = {"causal pass": "#9ecae8", "answers": "#bfbfbf", "second pass": "#f2b48a"}
"""The three regions of the row, in order, and their colours."""
SEEN = ("not seen", "causal pass", "second pass", "answer over the mixed prompt", "answer over itself")
SHADES = ("#ffffff", "#56a0cf", "#e58b4f", "#8c6bb1", "#8f8f8f")
ACROSS, NAME, LINE = 116.0, 14.0, 1.85
"""Letters in one line of the drawing of a row and in the name before it; heights of a token from line to line."""


@paper
def draw_layout(layout: Layout, tokens: Sequence[str]) -> Figure:
    """The row of a batch: each token in the colour of its region, with its position below it.

    The row is one line; here every region begins a new one, and long ones are wrapped. A black bar stands where a prompt
    or its answers begin, and where an answer does not go on from the place before it.

    Args:
        tokens: text of each token of the row.

    Raises:
        ValueError: if there are not as many texts as tokens.
    """
    if len(tokens) != layout.rows:
        raise ValueError(f"The row has {layout.rows} tokens, and texts are given for {len(tokens)}: give one for each.")
    places = _places(layout, tokens)
    lines = 1 + max(line for line, *_ in places)
    right = max(x + width for _, x, width, _ in places) + 0.5
    figure, [axis] = blank(PAGE * (NAME + right) / (NAME + ACROSS), 0.1 + 0.36 * lines)
    axis.set(xlim=(-NAME, right), ylim=(lines * LINE, -0.2))
    axis.set_axis_off()
    starts, named = _starts(layout), set()
    for place, (line, x, width, region) in enumerate(places):
        name, colour = list(REGIONS.items())[region]
        if name not in named:
            axis.text(-0.8, line * LINE + 0.5, name, ha="right", va="center", fontsize=7)
        named.add(name)
        _token(axis, tokens[place], layout.position_ids[0, place].item(), x, line * LINE, width, colour)
        if place in starts:
            axis.plot([x, x], [line * LINE - 0.1, line * LINE + 1.1], color="black", lw=1.2, solid_capstyle="butt")
    return figure


def _token(axis: Axes, text: str, position: int, x: float, y: float, width: float, colour: str) -> None:
    axis.add_patch(Rectangle((x, y), width, 1, facecolor=colour, edgecolor="white", lw=0.8))
    middle = {"ha": "center", "va": "center", "parse_math": False}
    axis.text(x + width / 2, y + 0.5, text, fontsize=6.5, **middle)
    axis.text(x + width / 2, y + 1.32, str(position), fontsize=5, color=GREY, **middle)


def _places(layout: Layout, tokens: Sequence[str]) -> list[tuple[int, float, float, int]]:
    """Line, left edge, width and region of each token, in letters."""
    places, line, x, before = [], 0, 0.0, None
    for text, region in zip(tokens, regions(layout), strict=True):
        width = max(len(text), 2) + 1.5
        if places and (region != before or x + width > ACROSS):
            line, x = line + 1, 0.0
        places.append((line, x, width, region))
        x, before = x + width, region
    return places


def regions(layout: Layout) -> list[int]:
    """0, 1 or 2 for each token of the row: causal pass, answers, second pass."""
    return [region for region, length in enumerate(layout.regions) for _ in range(length)]


def _starts(layout: Layout) -> set[int]:
    """Places where a prompt or its answers begin, and where an answer leaves what others share with it."""
    first, answers, _ = layout.regions
    prompts = [0, *accumulate(layout.first)], [*accumulate(layout.second, initial=first + answers)]
    left = {
        own.start + place
        for tree, own in zip(layout.trees, _slices(layout.places, first), strict=True)
        for place, before in enumerate(tree.before or [-1])
        if before != place - 1 or not place
    }
    return {*prompts[0], *prompts[1], *left} - {layout.rows}


def attended(layout: Layout) -> Int[Tensor, "row row"]:
    """What each token of the row (axis 0) attends to: positions in `SEEN`.

    An answer attends to the mix of both readings of its prompt, so to either of them.
    """
    seen = torch.zeros(layout.rows, layout.rows, dtype=torch.long)
    first, answers, _ = layout.regions
    at = {"first": _slices(layout.first, 0), "second": _slices(layout.second, first + answers)}
    for own in at["first"]:
        seen[own, own] = torch.ones_like(seen[own, own]).tril() * SEEN.index("causal pass")
    for own in at["second"]:
        seen[own, own] = _second(layout, own.stop - own.start) * SEEN.index("second pass")
    for i, own in enumerate(_slices(layout.places, first)):
        if own.start == own.stop:
            continue
        mask, read = layout.trees[i].mask(layout.prompts[i], None).long(), layout.prompts[i]
        seen[own, own] = mask[:, read:] * SEEN.index("answer over itself")
        for readings in at.values():
            if readings:
                seen[own, readings[i]] = mask[:, :read] * SEEN.index("answer over the mixed prompt")
    return seen


def _second(layout: Layout, length: int) -> Tensor:
    ones = torch.ones(length, length, dtype=torch.long)
    return {"causal": ones.tril(), "anti_causal": ones.triu(), "bidirectional": ones}[layout.method.second_pass]


def _slices(lengths: Sequence[int], start: int) -> list[slice]:
    ends = list(accumulate(lengths, initial=start))
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


@paper
def draw_attended(layout: Layout) -> Figure:
    """Which tokens of the row attend to which: queries downward, keys to the right."""
    figure, [axis] = blank(0.5 * PAGE, 0.5 * PAGE + 0.3)
    seen = attended(layout)
    axis.imshow(seen.numpy(), cmap=ListedColormap(SHADES), vmin=0, vmax=len(SEEN) - 1, interpolation="nearest")
    for place in sorted({*_starts(layout)} - {0}):
        axis.axhline(place - 0.5, color=GREY, lw=0.3)
        axis.axvline(place - 0.5, color=GREY, lw=0.3)
    centres = [sum(layout.regions[:i]) + length / 2 - 0.5 for i, length in enumerate(layout.regions)]
    shown = [(centre, name) for centre, name, length in zip(centres, REGIONS, layout.regions, strict=True) if length]
    axis.set_xticks(*zip(*shown, strict=True))
    axis.set_yticks(*zip(*shown, strict=True), rotation=90, va="center")
    axis.set(xlabel="key", ylabel="query")
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(True)
    handles = [Patch(color=SHADES[i], label=SEEN[i]) for i in sorted(set(seen.flatten().tolist()) - {0})]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


@paper
def draw_mixing(theta_inits: Sequence[float] = (0.1, 0.01, 0.001), widest: float = 0.15) -> Figure:
    """Equation 8: alpha against theta, a curve for each theta_init, which is where theta starts (the dot)."""
    figure, [axis] = blank(0.55 * PAGE, 2.0)
    theta = torch.cat([-torch.linspace(0, widest, 401).flip(0), torch.linspace(0, widest, 401)[1:]])
    for theta_init, colour, dashes in zip(theta_inits, COLOURS, DASHES, strict=False):
        axis.plot(
            theta.numpy(),
            alpha(theta, theta_init).numpy(),
            color=colour,
            ls=dashes,
            label=f"{THETA_INIT} = {theta_init:g}",
        )
        if theta_init <= widest:
            axis.plot([theta_init], [0.5], "o", color=colour, markersize=4)
    axis.set(xlabel="θ", ylabel=f"α = |θ| / ({THETA_INIT} + |θ|)", ylim=(-0.02, 1))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
