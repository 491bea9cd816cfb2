"""How many positions a decoder can tell apart when samples share a row.

Two things end them: a table with one entry a position (learned embeddings, stored angles), which has nothing beyond its
last entry, and rotary angles that are scaled by the longest position in the row, with which samples would change each
other. Angles computed position by position have no end here, whatever length a decoder was pretrained with.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from .layout import Layout, Reading, reading

TABLES: dict[Callable, tuple[int, int]] = {F.embedding: (1, 0), torch.Tensor.__getitem__: (0, 1)}
"""Functions that look up entries of a table; which of their arguments is the table, and which the index."""

INTEGERS = (torch.int32, torch.int64)
SCALED_BY_THE_ROW = ("dynamic", "longrope")


class Lookups(TorchFunctionMode):
    """While it lasts, notes the tables that are looked up by position.

    Args:
        position_ids: of the tokens that a forward pass reads meanwhile.
    """

    def __init__(self, position_ids: Tensor):
        super().__init__()
        self.position_ids = position_ids
        self.limits: list[int] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in TABLES and len(args) > 1:
            table, index = (args[place] for place in TABLES[function])
            self._note(table, index)
        return function(*args, **(kwargs or {}))

    def _note(self, table: Tensor, index) -> None:
        if not isinstance(index, Tensor) or index.shape != self.position_ids.shape or index.dtype not in INTEGERS:
            return
        offset = index - self.position_ids
        if (offset == offset[0, 0]).all():
            self.limits.append(table.shape[0] - int(offset[0, 0]))


@dataclass(frozen=True)
class Reach:
    """How many positions a decoder has.

    Args:
        table: entries of its smallest table of positions; None if it has none.
        rotary: positions up to which a token's rotary angle depends on nothing but itself; None if always.
    """

    table: int | None
    rotary: int | None

    def check(self, longest: int, what: str = "A sample", remedy: str = "drop or shorten longer samples") -> None:
        """Raise a ValueError if what reaches so many positions cannot be read."""
        if self.table is not None and longest > self.table:
            raise ValueError(
                f"{what} reaches {longest} positions, but this decoder's table of positions ends at {self.table}: {remedy}."
            )
        if self.rotary is not None and longest > self.rotary:
            raise ValueError(
                f"{what} reaches {longest} positions, but beyond {self.rotary} this decoder's rotary embedding depends "
                f"on the longest sample of a batch: {remedy}."
            )


def reach(decoder: PreTrainedModel, layout: Layout) -> Reach:
    """How many positions a decoder has, found by reading a row whose positions restart."""
    with torch.no_grad(), reading(Reading(layout)), Lookups(layout.position_ids) as lookups:
        decoder.get_decoder()(input_ids=layout.input_ids, position_ids=layout.position_ids, use_cache=False)
    return Reach(min(lookups.limits, default=None), rotary_limit(decoder))


def rotary_limit(decoder: PreTrainedModel) -> int | None:
    """See `Reach`."""
    config = decoder.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [rope] if "rope_type" in rope else [p for p in rope.values() if isinstance(p, dict)]
    scaled = [p for p in nested if p.get("rope_type") in SCALED_BY_THE_ROW]
    limits = [
        p.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        for p in scaled
    ]
    return min((limit or config.max_position_embeddings for limit in limits), default=None)
