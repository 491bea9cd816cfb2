"""Heat maps of alpha over a run: a few times while it trains, and at its end.

What is remembered is thinned out as a run grows, so that it stays small and goes into every checkpoint: a resumed run
draws its maps from its first update on.
"""

from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from bitune_pl.training.dashboard.events import writers
from bitune_pl.training.dashboard.heat_map import heat_map
from bitune_pl.training.dashboard.scalars import UpdateLog

MOST = 250  # updates that are remembered: about as many as a map has pixels
MAPS = 10  # over a whole run

TITLES = {"alpha_k": "alpha_k (keys)", "alpha_v": "alpha_v (values)"}


class AlphaMaps(Callback):
    """Draws what an `UpdateLog` before it has measured, as the images `heat_map/alpha_k` and `heat_map/alpha_v`."""

    def __init__(self, update_log: UpdateLog) -> None:
        self.update_log = update_log
        self.updates: list[int] = []
        self.rows: list[list[list[float]]] = []
        self.stride = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        total = int(trainer.estimated_stepping_batches)
        self.every, self.seen, self.drawn = max(1, total // MAPS), trainer.global_step, trainer.global_step
        if self.seen == 0 and self.update_log.alphas:
            self._remember(0, list(self.update_log.alphas.values()), trainer.log_every_n_steps)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args) -> None:
        update, alphas = trainer.global_step, self.update_log.alphas
        if update == self.seen or update % trainer.log_every_n_steps or not alphas:
            return
        self.seen = update
        self._remember(update, list(alphas.values()), trainer.log_every_n_steps)
        if update % self.every == 0:
            self._draw(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.seen > self.drawn:
            self._draw(trainer)

    def _remember(self, update: int, row: list[list[float]], logged_every: int) -> None:
        """Add the alphas of an update; when there are too many, keep every other one and the last."""
        self.updates.append(update)
        self.rows.append(row)
        if len(self.updates) > 1 and (self.updates[-2] // logged_every) % self.stride:
            del self.updates[-2], self.rows[-2]  # it was only kept while it was the last
        if len(self.updates) > MOST:
            self.stride *= 2
            kept = [i for i, u in enumerate(self.updates) if (u // logged_every) % self.stride == 0 or u == update]
            self.updates, self.rows = [self.updates[i] for i in kept], [self.rows[i] for i in kept]

    def _draw(self, trainer: Trainer) -> None:
        self.drawn = self.seen
        alphas = np.array(self.rows)  # updates, names, layers
        for writer in writers(trainer):
            for i, name in enumerate(self.update_log.alphas):
                image = heat_map(TITLES[name], self.updates, alphas[:, i])
                writer.add_image(f"heat_map/{name}", image, self.seen, dataformats="HWC")

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "rows": torch.tensor(self.rows), "stride": self.stride}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.rows, self.stride = state["updates"], state["rows"].tolist(), state["stride"]
