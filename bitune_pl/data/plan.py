"""The plan: which rows are learned in which update, by which rank, in which micro-batch.

An update is `batch_size x accumulate x world_size` rows, or, with a token budget, as many as fit into `accumulate x
world_size` micro-batches of `batch_tokens` tokens. The last update of an epoch takes what is left. Within an update the
longest rows are dealt first, each to the micro-batch with the fewest tokens so far: ranks then wait little for each
other and need about the same memory, and what an update learns stays the same. (Rows of one length need not go
together: nothing is padded.)

    update 1                          update 2 (what is left)
    [ rank 0: a b | c d ]             [ rank 0: i | j ]
    [ rank 1: e f | g h ]             [ rank 1: k | l ]        batch_size 2, accumulate 2, world_size 2, 12 rows

Every row is learned once an epoch, all ranks make the same number of steps, and an epoch has the same number of steps
each time. The plan depends on the rows' lengths and (seed, epoch) alone.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np


class MicroBatch(NamedTuple):
    """Rows of a micro-batch, by number, and the answers and answer tokens of its whole update."""

    rows: np.ndarray
    answers: int
    tokens: int


@dataclass(frozen=True)
class Plan:
    """How rows become updates.

    Args:
        batch_size: rows of a micro-batch. One may have one more where the rows of an update do not divide evenly.
        accumulate: micro-batches that a rank adds up before an update.
        world_size: number of ranks.
        seed: of the order.
        batch_tokens: most tokens of a micro-batch, in place of a number of rows.

    Raises:
        ValueError: if one of the numbers is below 1.
    """

    batch_size: int
    accumulate: int = 1
    world_size: int = 1
    seed: int = 0
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "world_size", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}.")

    def updates(self, lengths: np.ndarray, epoch: int) -> list[np.ndarray]:
        """The rows of each update of an epoch, for all ranks together."""
        rows = len(lengths)
        if rows < self.world_size:
            raise ValueError(f"There are {rows} rows for {self.world_size} ranks: each rank needs at least one.")
        order = np.random.default_rng([self.seed, epoch]).permutation(rows)
        return np.split(
            order, self._starts(rows) if self.batch_tokens is None else self._starts_by_tokens(lengths[order])
        )

    def epoch(self, lengths: np.ndarray, answer_tokens: np.ndarray, epoch: int, rank: int) -> list[MicroBatch]:
        """What a rank does in an epoch.

        Args:
            lengths: tokens of each row, prompt and answer together.
            answer_tokens: those of them that are learned.
        """
        return [
            MicroBatch(rows, len(update), int(answer_tokens[update].sum()))
            for update in self.updates(lengths, epoch)
            for rows in self._micro_batches(update, lengths, rank)
        ]

    def _starts(self, rows: int) -> list[int]:
        size = self.batch_size * self.accumulate * self.world_size
        starts = list(range(size, rows, size))
        if starts and rows - starts[-1] < self.world_size:
            starts.pop()  # too few for every rank: they join the update before
        return starts

    def _starts_by_tokens(self, lengths: np.ndarray) -> np.ndarray:
        """Where updates of about equally many tokens start, so that their micro-batches keep to the budget.

        Take k micro-batches of at most b tokens and rows of at most m, b >= 2 m. An update of T tokens is dealt into
        micro-batches of at most T / k + m (1 - 1 / k). Cut at equal shares of all tokens, T is at most a share and m,
        so shares of at most k (b - m) keep every micro-batch within b. An update needs k rows: a border that leaves
        fewer is moved, and an update of k rows keeps within m. Where rows are too few for that many updates, they are
        cut into updates of k to 2 k - 1 rows, which keep within 2 m.
        """
        k, longest = self.accumulate * self.world_size, int(lengths.max())
        if self.batch_tokens < 2 * longest:
            raise ValueError(
                f"data.batch_tokens is {self.batch_tokens}, but the longest row has {longest} tokens: give at least "
                "twice as many, or lower data.max_length."
            )
        before = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        updates = -(-total // (k * (self.batch_tokens - longest)))
        if updates * k > len(lengths):
            updates = max(1, len(lengths) // k)
            return np.cumsum([len(part) for part in np.array_split(before, updates)])[:-1]
        number = np.arange(1, updates)
        starts = np.searchsorted(before, number * (total / updates))
        starts = np.maximum.accumulate(np.maximum(starts, k * number) - k * number) + k * number
        last = len(lengths) - k * (updates - number)
        return np.minimum(starts, last)

    def _micro_batches(self, update: np.ndarray, lengths: np.ndarray, rank: int) -> list[np.ndarray]:
        """The rank's micro-batches of an update."""
        per_rank = len(update) // self.world_size
        if self.batch_tokens is None:
            steps = -(-per_rank // self.batch_size)
            shares = [np.array_split(part, steps) for part in np.array_split(update, self.world_size)]
            room = [len(share) for part in shares for share in part]
        else:
            steps = min(self.accumulate, per_rank)
            room = [len(update)] * (steps * self.world_size)
        return _deal(update, lengths, room)[rank * steps : (rank + 1) * steps]


def _deal(update: np.ndarray, lengths: np.ndarray, room: list[int]) -> list[np.ndarray]:
    """The rows of an update, the longest first, each to the micro-batch with the fewest tokens that has room."""
    if len(room) == 1:
        return [update]
    hands: list[list[int]] = [[] for _ in room]
    waiting = [(0, i) for i in range(len(room))]
    for row in update[np.argsort(-lengths[update], kind="stable")]:
        tokens, i = heappop(waiting)
        hands[i].append(row)
        if len(hands[i]) < room[i]:
            heappush(waiting, (tokens + int(lengths[row]), i))
    return [np.array(hand) for hand in hands]
