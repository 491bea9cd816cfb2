"""What a run learns from, in few words, so that it goes on with the same rows and updates or not at all.

Each thing goes by the name of its setting. Where data lies does not matter if the rows are the same, so another
`data.source` alone is no difference; it is named beside the rows that are. Nothing is read here.
"""

from collections.abc import Mapping
from typing import Any

from bitune_pl.data.plan import Plan
from bitune_pl.data.rows import Rows

PLACES = {"data.source", "data.validation_source"}


def of_updates(plan: Plan, rows: Rows) -> dict[str, Any]:
    """Which rows are learned in which update."""
    return {
        "data.batch_size": plan.batch_size,
        "data.batch_tokens": plan.batch_tokens,
        "data.seed": plan.seed,
        "trainer.accumulate_grad_batches": plan.accumulate,
        "the number of ranks": plan.world_size,
        "training rows": of_rows(rows),
    }


def of_rows(rows: Rows | None) -> str:
    """ "40 rows (hash 8c2d...)", of all token ids in their order."""
    return "none" if rows is None else f"{len(rows)} rows (hash {rows.digest})"


def refuse_other(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises:
    ValueError: naming everything on which a checkpoint and a run differ.
    """
    found = {name for name in own if name in saved and saved[name] != own[name]}
    if found - PLACES:
        said = (f"{name}: {saved[name]!s} in the checkpoint, {own[name]!s} here" for name in own if name in found)
        raise ValueError(
            f"The checkpoint was trained with other data or batches ({'; '.join(said)}): go on with the same, or start "
            "a new run."
        )
