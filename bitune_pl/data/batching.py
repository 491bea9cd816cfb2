"""Batching: from a plan to batches, and how far they have been handed out.

Which rows are learned in which update is decided in `plan`. Each micro-batch carries the answers and answer tokens of
its whole update, the loss's denominators. `Loader` hands the batches of a rank out, epoch after epoch, and can be
stopped and resumed anywhere; `InOrder` is for validation.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from bitune_pl.data import identity
from bitune_pl.data.plan import MicroBatch, Plan
from bitune_pl.data.rows import Rows
from bitune_pl.sample import Sample


class Batch:
    """A micro-batch.

    Args:
        samples: prompts with the right answer, which ends in the end token.
        choices: for each sample its prompt with all choices, None where it is no question or they are not scored.
        golds: for each sample the position of the right choice, None where there are no choices.
        answers: how many answers the whole update has, over all micro-batches and ranks.
        tokens: how many answer tokens the whole update has.
    """

    # No dataclass: Lightning would take one apart on its way to the device, and cannot put a Sample together again.
    def __init__(
        self,
        samples: list[Sample],
        choices: list[Sample | None],
        golds: list[int | None],
        answers: int,
        tokens: int,
    ) -> None:
        self.samples, self.choices, self.golds, self.answers, self.tokens = samples, choices, golds, answers, tokens

    def __len__(self) -> int:
        return len(self.samples)

    def to(self, device: torch.device | str, **kwargs: Any) -> "Batch":
        """The same batch on another device."""

        def moved(sample: Sample | None) -> Sample | None:
            return sample and Sample(
                sample.prompt.to(device, **kwargs), [a.to(device, **kwargs) for a in sample.answers]
            )

        return Batch(
            list(map(moved, self.samples)), list(map(moved, self.choices)), self.golds, self.answers, self.tokens
        )


class Assembler:
    """A data set whose items are whole batches: micro-batch in, `Batch` out. Runs in loader workers."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __getitem__(self, planned: MicroBatch) -> Batch:
        samples, choices, golds = zip(*(self.rows[i] for i in planned.rows), strict=True)
        return Batch(list(samples), list(choices), list(golds), planned.answers, planned.tokens)


def assemble(rows: Rows, batches: list[MicroBatch], num_workers: int) -> DataLoader:
    """The batches of a list, made in workers if there are any; draws nothing from the global random state."""
    return DataLoader(
        Assembler(rows),
        sampler=batches,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(0),
    )


class InOrder:
    """Every row of a part once, for validation: ranks take turns, and no row is repeated to even them out."""

    def __init__(self, rows: Rows, batch_size: int, rank: int = 0, world_size: int = 1, num_workers: int = 0) -> None:
        own, tokens = np.arange(rank, len(rows), world_size), rows.answer_tokens
        cut = [own[i : i + batch_size] for i in range(0, len(own), batch_size)]
        self.rows, self.num_workers = rows, num_workers
        self.batches = [MicroBatch(batch, len(batch), int(tokens[batch].sum())) for batch in cut]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(assemble(self.rows, self.batches, self.num_workers))


class Loader:
    """The training batches of a rank, epoch after epoch, resumable in the middle of one.

    It is no `DataLoader`, so that Lightning leaves its order alone. Lightning announces the epoch through `sampler`,
    and saves and restores the state; batches that a worker has made but nobody has asked for do not count.

    Raises:
        ValueError: if a state to go on from belongs to other rows or another plan.
    """

    def __init__(self, rows: Rows, plan: Plan, rank: int = 0, num_workers: int = 0) -> None:
        self.rows, self.plan, self.rank, self.num_workers = rows, plan, rank, num_workers
        self.current_epoch, self.handed_out = 0, 0
        self.go_on_from: tuple[int, int] | None = None
        self.lengths, self.answer_tokens = rows.lengths, rows.answer_tokens
        self.steps = len(self._planned(0))

    @property
    def sampler(self) -> "Loader":
        """Where Lightning looks for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.current_epoch = epoch

    def __len__(self) -> int:
        """Micro-batches of a whole epoch, also while one is resumed."""
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        # The body runs at the first `next`: Lightning makes the iterator before it announces the epoch.
        epoch, skipped = self.go_on_from or (None, 0)
        self.go_on_from = None
        self.handed_out = skipped if epoch == self.current_epoch and skipped < self.steps else 0
        batches = self._planned(self.current_epoch)[self.handed_out :]
        for batch in assemble(self.rows, batches, self.num_workers):
            self.handed_out += 1
            yield batch

    def _planned(self, epoch: int) -> list[MicroBatch]:
        return self.plan.epoch(self.lengths, self.answer_tokens, epoch, self.rank)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.current_epoch, "handed_out": self.handed_out, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        identity.refuse_other(state, self._identity())
        self.go_on_from = state["epoch"], state["handed_out"]

    def _identity(self) -> dict[str, Any]:
        return identity.of_updates(self.plan, self.rows)


def _as_it_is(batch: Batch) -> Batch:
    return batch
