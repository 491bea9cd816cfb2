"""Table 26 (appendix A.12): causal and bidirectional attention maps of questions, averaged over blocks and heads.

A row of the figure is a question, the left map its causal pass and the right one its second pass. The prompt's last token,
the start token, is not read twice and so is in neither. Colours are logarithmic, since a causal decoder puts most of its
attention on the first token; keys that a query cannot see are grey.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import LongTensor

from bitune_pl.data.encoding import Encoder
from bitune_pl.method.model import Bitune
from bitune_pl.method.recorder import attention_maps
from bitune_pl.reproduction.figures.style import PALE, paper
from bitune_pl.sample import Sample

TOKEN = 0.088
"""Inches of a token's label and of its row: letters of 5 points stay apart."""
LETTER, SMALLEST, GAP, BAR = 0.047, 1.8, 0.2, 0.75
"""Inches of a letter of a label, of the smallest map, between maps, and of the colour bar with its numbers."""
MOST = 512
"""Tokens of all questions of a figure: more take gigabytes to draw, and nobody could read them."""
LOWEST, HIGHEST = 1e-3, 1.0
"""Ends of the colours; a weight below the first has its colour."""


@dataclass(frozen=True)
class Question:
    """What a model attends to while it reads a prompt.

    Args:
        tokens: text of each token that is read, the start token left out.
        maps: by what the reading is called, weights of each query (row) on each key, averaged over blocks and heads.
    """

    tokens: list[str]
    maps: dict[str, Float[np.ndarray, "prompt prompt"]]


def read_question(model: Bitune, encoder: Encoder, prompt: str) -> Question:
    """Read one prompt: see `read_questions`."""
    return read_questions(model, encoder, [prompt])[0]


def read_questions(model: Bitune, encoder: Encoder, prompts: Sequence[str]) -> list[Question]:
    """Read prompts and keep what was attended to.

    Raises:
        ValueError: if a prompt is a start token alone, or has more tokens than can be drawn; before the model is asked.
    """
    encoded = [encoder.prompt(prompt) for prompt in prompts]
    for prompt, ids in zip(prompts, encoded, strict=True):
        if len(ids) < 2:
            raise ValueError(
                f"The prompt {prompt!r} is a start token alone, of which nothing is read: give it more text."
            )
    tokens = sum(len(ids) for ids in encoded) * model.method.prompt_copies
    if tokens > MOST:
        raise ValueError(
            f"A figure of attention has room for {MOST} tokens, and these questions have {tokens:,}: ask shorter ones, or fewer."
        )
    return [_read(model, encoder, ids) for ids in encoded]


def _read(model: Bitune, encoder: Encoder, ids: LongTensor) -> Question:
    with attention_maps(model, mean_heads=True) as seen, torch.no_grad():
        model.read([Sample(ids)])
    name = (model.method.second_pass or "").replace("_", "-")
    maps = {"causal pass": seen[0].causal, f"{name} second pass": seen[0].second}
    tokens = [visible(encoder.tokenizer.decode([i])) for i in ids.repeat(model.method.prompt_copies)[:-1].tolist()]
    return Question(tokens, {name: m.mean(0).cpu().numpy() for name, m in maps.items() if m is not None})


def visible(token: str) -> str:
    """A token's text with its line breaks and lone spaces shown, and no space around it."""
    shown = token.replace("\n", "↵").replace("\t", "→")
    return shown.strip() or "␣" * max(1, len(shown))


@paper
def draw_attention(questions: list[Question]) -> Figure:
    """A row for each question, a map for each of its readings; labels are legible at the figure's own size.

    Everything is placed in inches, by the number of tokens: a layout engine takes a minute over a thousand labels.
    """
    columns = max(len(question.maps) for question in questions)
    sides = [max(SMALLEST, TOKEN * len(question.tokens)) for question in questions]
    letters = LETTER * max(len(token) for question in questions for token in question.tokens)
    left, below = letters + 0.3, letters + 0.55
    width, height = left + columns * (max(sides) + GAP) + BAR, sum(sides) + len(sides) * below + 0.1
    figure, norm, top = Figure(figsize=(width, height)), LogNorm(LOWEST, HIGHEST), height - 0.25
    for number, (question, side) in enumerate(zip(questions, sides, strict=True), start=1):
        which = f"question {number}, " if len(questions) > 1 else ""
        for column, (name, weights) in enumerate(question.maps.items()):
            x, y = left + column * (side + GAP), top - side
            axis = figure.add_axes((x / width, y / height, side / width, side / height), title=f"{which}{name}")
            drawn = _map(axis, weights, question.tokens, norm, is_first=not column)
        top -= side + below
    place = (1 - (BAR - 0.05) / width, (height - 0.25 - sides[0]) / height, 0.1 / width, sides[0] / height)
    bar = figure.colorbar(drawn, cax=figure.add_axes(place, label="<colorbar>"))
    bar.set_label("attention weight, mean over blocks and heads")
    bar.outline.set_linewidth(0.4)
    return figure


def _map(axis: Axes, weights: np.ndarray, tokens: list[str], norm: LogNorm, is_first: bool):
    hidden = weights == 0
    axis.set_facecolor(PALE)
    drawn = axis.imshow(np.ma.masked_array(weights, hidden), norm=norm, cmap="viridis", interpolation="nearest")
    places, plain = range(len(tokens)), {"fontsize": 5, "parse_math": False}
    axis.set_xticks(places, tokens, rotation=90, **plain)
    axis.set_yticks(places, tokens if is_first else [""] * len(tokens), va="center_baseline", **plain)
    axis.tick_params(length=0, pad=1.5)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("key")
    if is_first:
        axis.set_ylabel("query")
    return drawn
