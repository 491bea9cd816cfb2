"""Charts as SVG text, drawn by hand so that a page needs nothing else; colours are the page's, light or dark."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from PIL import Image

from bitune_pl.training.dashboard.heat_map import colours, span, ticks
from bitune_pl.training.report.record import Curve

WIDE, HIGH = 360, 220
LEFT, TOP, RIGHT, BOTTOM = 50, 30, 12, 40
POINTS = 400  # of a line, at most: more than it has pixels

Place = tuple[float, float, float, float]
"""First and last value of the x axis, then of the y axis."""


def line_chart(
    title: str, lines: Mapping[str, Curve], band: Mapping[str, tuple[Curve, Curve]] | None = None, log: bool = False
) -> str:
    """Lines over updates, each with its name in its colour.

    Args:
        title: what stands above them.
        lines: by name; values that are no numbers are left out.
        band: the lowest and highest around some of them.
        log: whether the y axis counts powers of ten.
    """
    lines = {name: _drawable(curve, log) for name, curve in lines.items()}
    band = {name: (_drawable(low, log), _drawable(high, log)) for name, (low, high) in (band or {}).items()}
    every = [curve for curve in (*lines.values(), *(edge for edges in band.values() for edge in edges)) if curve[0]]
    if not every:
        return _svg(title, [_title(title), _number(WIDE / 2, HIGH / 2, "no finite values", "middle")])
    place = _place(every, log)
    parts = [_frame(title, place, ticks(int(place[0]), int(place[1])), "update", log), _legend(list(lines))]
    for i, name in enumerate(lines):
        parts += [_band(place, *band[name], i)] if name in band else []
        parts += [_line(place, lines[name], i)]
    return _svg(title, parts)


def _drawable(curve: Curve, log: bool) -> Curve:
    """What can be drawn of a curve, as powers of ten with `log`: every nth point and the last."""
    points = [(x, y) for x, y in zip(*curve, strict=True) if math.isfinite(y) and (y > 0 or not log)]
    stride = math.ceil(len(points) / POINTS) or 1
    points = points[::stride] + ([points[-1]] if (len(points) - 1) % stride else [])
    return [x for x, _ in points], [math.log10(y) if log else y for _, y in points]


def _place(curves: Sequence[Curve], log: bool) -> Place:
    """Axes that hold all curves, from update 0 on; the y axis starts at 0 where that costs little room."""
    low, high = min(min(ys) for _, ys in curves), max(max(ys) for _, ys in curves)
    last = max(xs[-1] for xs, _ in curves)
    if log:
        return 0, max(last, 1), math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 0.1
    return 0, max(last, 1), 0.0 if 0 <= low < high / 3 else low - margin, high + margin


def dot_chart(title: str, dots: Mapping[str, Sequence[float]]) -> str:
    """One dot for each block and name, from 0 to 1."""
    layers = len(next(iter(dots.values())))
    place = (-0.5, layers - 0.5, 0.0, 1.0)
    parts = [_frame(title, place, ticks(0, layers - 1), "block", False), _legend(list(dots))]
    for i, (name, values) in enumerate(dots.items()):
        for block, value in enumerate(values):
            x, y = _at(place, block, value)
            said = f"<title>block {block}: {escape(name)} {value:.3f}</title>"
            parts.append(f'<circle class="s{i}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{said}</circle>')
    return _svg(title, parts)


def heat_map(title: str, updates: Sequence[int], alphas: np.ndarray) -> str:
    """Ratios of shape `(updates, layers)`: blocks from the bottom up, white at 1/2."""
    width, layers = span(alphas), alphas.shape[1]
    at = np.linspace(updates[0], updates[-1], min(POINTS, len(updates)))
    columns = alphas[np.searchsorted(updates, at, side="right") - 1].T[::-1]
    bar = np.linspace(0.5 + width, 0.5 - width, 64)[:, None]
    right, bottom = WIDE - 62, HIGH - BOTTOM
    place = (updates[0], max(updates[-1], updates[0] + 1), -0.5, layers - 0.5)
    parts = [
        _title(title),
        _picture(columns, width, LEFT, TOP, right - LEFT, bottom - TOP),
        _picture(bar, width, right + 10, TOP, 12, bottom - TOP),
        *_x_axis(place, ticks(updates[0], updates[-1]), "update", right),
        *(_number(LEFT - 6, _at(place, 0, layer)[1] + 4, str(layer), "end") for layer in ticks(0, layers - 1)),
        f'<text x="{LEFT - 34}" y="{(TOP + bottom) / 2}" class="middle" transform="rotate(-90 {LEFT - 34} '
        f'{(TOP + bottom) / 2})">block</text>',
    ]
    for value, y in ((0.5 + width, TOP + 9), (0.5, (TOP + bottom) / 2 + 4), (0.5 - width, bottom)):
        parts.append(_number(right + 27, y, f"{value:.2f}", "start"))
    return _svg(title, parts)


def _svg(title: str, parts: list[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(title)}">\n{body}\n</svg>'


def _title(text: str) -> str:
    return f'<text class="title" x="{LEFT}" y="18">{escape(text)}</text>'


def _frame(title: str, place: Place, x_ticks: list[int], x_name: str, log: bool) -> str:
    """Title, grid, and both axes' numbers."""
    parts = [_title(title)]
    for value in _round_values(place[2], place[3]):
        if log and value != int(value):
            continue
        y = _at(place, place[0], value)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_number(LEFT - 6, y + 4, f"{10**value if log else value:.6g}", "end"))
    return "\n".join([*parts, *_x_axis(place, x_ticks, x_name, WIDE - RIGHT)])


def _x_axis(place: Place, numbers: list[int], name: str, right: float) -> list[str]:
    bottom, shift = HIGH - BOTTOM, (right - LEFT) / (place[1] - place[0])
    parts = [f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>']
    parts += [_number(LEFT + (n - place[0]) * shift, bottom + 16, str(n), "middle") for n in numbers]
    return [*parts, f'<text class="middle" x="{(LEFT + right) / 2}" y="{HIGH - 6}">{name}</text>']


def _number(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{anchor}" x="{x:.1f}" y="{y:.1f}">{text}</text>'


def _legend(names: list[str]) -> str:
    """Names in their lines' colours, right-aligned beside the title."""
    words = "".join(f'<tspan class="s{i}" dx="10">{escape(name)}</tspan>' for i, name in enumerate(names))
    return f'<text class="end legend" x="{WIDE - RIGHT}" y="18">{words}</text>' if len(names) > 1 else ""


def _line(place: Place, curve: Curve, i: int) -> str:
    points = [_at(place, x, y) for x, y in zip(*curve, strict=True)]
    if not points:
        return ""
    if len(points) == 1:
        return f'<circle class="s{i}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3.5"/>'
    return f'<polyline class="line s{i}" points="{_path(points)}"/>'


def _band(place: Place, low: Curve, high: Curve, i: int) -> str:
    below, above = (list(zip(*edge, strict=True)) for edge in (low, high))
    edges = [_at(place, x, y) for x, y in below + above[::-1]]
    return f'<polygon class="band s{i}" points="{_path(edges)}"/>'


def _path(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _at(place: Place, x: float, y: float) -> tuple[float, float]:
    x_first, x_last, y_first, y_last = place
    across = LEFT + (x - x_first) / (x_last - x_first) * (WIDE - RIGHT - LEFT)
    return across, HIGH - BOTTOM - (y - y_first) / (y_last - y_first) * (HIGH - BOTTOM - TOP)


def _round_values(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two values."""
    power = 10 ** math.floor(math.log10((high - low) / most))
    step = next(power * base for base in (1, 2, 5, 10) if (high - low) / (power * base) <= most)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _picture(alphas: np.ndarray, width: float, x: float, y: float, wide: float, high: float) -> str:
    file = io.BytesIO()
    Image.fromarray(colours(alphas, width)).save(file, "png", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    place = f'x="{x}" y="{y}" width="{wide}" height="{high}"'
    return f'<image {place} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
