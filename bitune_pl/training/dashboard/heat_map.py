"""A heat map of alpha drawn with numpy and Pillow: blocks from the bottom up, updates from left to right.

Alpha starts at 1/2, which is white here: orange blocks take more from the second pass, blue ones more from the causal pass.
"""

from collections.abc import Sequence
from itertools import count

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

SPANS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
"""How far the colours reach from 1/2, to either side: the smallest that holds all values is taken."""

_STOPS = [(5, 48, 97), (67, 147, 195), (247, 247, 247), (244, 165, 96), (140, 45, 4)]
"""Colours from the lowest alpha to the highest, evenly apart."""

SIZE = (350, 210)
"""Width and height in pixels: what TensorBoard gives a picture, so that it is shown as it was drawn."""

LEFT, TOP, RIGHT, BOTTOM = 46, 26, 58, 40
"""Room around the map, in pixels, for the axes' numbers and names."""


def span(alphas: Float[np.ndarray, "layers updates"]) -> float:
    """How far the colours reach from 1/2."""
    farthest = float(np.abs(alphas - 0.5).max())
    return next((width for width in SPANS if width >= farthest), SPANS[-1])


def colours(alphas: Float[np.ndarray, "layers updates"], width: float) -> UInt8[np.ndarray, "layers updates 3"]:
    """A colour for each value from `0.5 - width` to `0.5 + width`."""
    share = np.clip((alphas - 0.5 + width) / (2 * width), 0, 1)
    stops = np.linspace(0, 1, len(_STOPS))
    channels = [np.interp(share, stops, [stop[i] for stop in _STOPS]) for i in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def heat_map(
    title: str, updates: Sequence[int], alphas: Float[np.ndarray, "updates layers"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw alpha of all blocks at some updates.

    Args:
        title: what stands above the map.
        updates: which updates, rising; each is drawn until the next one.
        alphas: those of their blocks.
    """
    width, (wide, high) = span(alphas), SIZE
    image = Image.new("RGB", SIZE, "white")
    box = (LEFT, TOP, wide - RIGHT, high - BOTTOM)
    bar = (box[2] + 10, TOP, box[2] + 22, box[3])
    image.paste(_cells(updates, alphas, width, (box[2] - box[0], box[3] - box[1])), box[:2])
    image.paste(Image.fromarray(colours(_falling(width, bar[3] - bar[1], bar[2] - bar[0]), width)), bar[:2])
    draw = ImageDraw.Draw(image)
    for outline in (box, bar):
        draw.rectangle(outline, outline="#555555")
    _label(draw, box, title, updates, alphas.shape[1], width)
    image.paste(_upright("block"), (2, (box[1] + box[3]) // 2 - 20))
    return np.asarray(image)


def _falling(width: float, high: int, wide: int) -> np.ndarray:
    """All values of the colour bar, the highest on top."""
    return np.linspace(0.5 + width, 0.5 - width, high)[:, None].repeat(wide, axis=1)


def _upright(text: str) -> Image.Image:
    """A word that is read from the bottom up."""
    word = Image.new("RGB", (40, 18), "white")
    ImageDraw.Draw(word).text((20, 9), text, "black", ImageFont.load_default(13), anchor="mm")
    return word.transpose(Image.Transpose.ROTATE_90)


def _cells(updates: Sequence[int], alphas: np.ndarray, width: float, size: tuple[int, int]) -> Image.Image:
    """The map itself: the column of a pixel is that of the last update before it."""
    at = np.linspace(updates[0], updates[-1], size[0])
    columns = alphas[np.searchsorted(updates, at, side="right") - 1].T[::-1]
    return Image.fromarray(colours(columns, width)).resize(size, Image.Resampling.NEAREST)


def _label(
    draw: ImageDraw.ImageDraw, box: tuple, title: str, updates: Sequence[int], layers: int, width: float
) -> None:
    (left, top, right, bottom), ink, font = box, "black", ImageFont.load_default(13)
    draw.text((left, top - 7), f"{title}, colours: {0.5 - width:.2f} to {0.5 + width:.2f}", ink, font, anchor="ls")
    draw.text(((left + right) / 2, bottom + 34), "update", ink, font, anchor="ms")
    cell = (bottom - top) / layers
    for layer in ticks(0, layers - 1):
        draw.text((left - 5, bottom - (layer + 0.5) * cell), str(layer), ink, font, anchor="rm")
    first, last = updates[0], updates[-1]
    for update in ticks(first, last):
        x = left + (right - left) * (update - first) / max(1, last - first)
        draw.line((x, bottom, x, bottom + 4), ink)
        draw.text((x, bottom + 18), str(update), ink, font, anchor="ms")
    for share, y in zip((0.5 - width, 0.5, 0.5 + width), (bottom - 5, (top + bottom) / 2, top + 5), strict=True):
        draw.text((right + 26, y), f"{share:.2f}", ink, font, anchor="lm")


def ticks(first: int, last: int, most: int = 6) -> list[int]:
    """Round numbers from the first to the last, at most so many, the first one with them.

    >>> ticks(1, 1000)
    [1, 200, 400, 600, 800, 1000]
    """
    steps = (base * 10**power for power in count() for base in (1, 2, 5))
    step = next(step for step in steps if (last - first) / step <= most - 1)
    round_ones = range((first // step + 1) * step, last + 1, step)
    return [first, *(tick for tick in round_ones if tick - first >= step / 2)]
