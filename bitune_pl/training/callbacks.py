"""What is done beside the training step: one line of scalars per update, and the best model, kept as it appears.

`UpdateLog` measures, `BestModel` writes `model/`, `ValidateAtEnd` makes sure that a run which stops in the middle of an
epoch is validated too, `ResumePoint` that one which is interrupted can go on. The progress display is in `progress.py`.
"""

import os
import shutil
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from bitune_pl.training.model_folder import write_model


class UpdateLog(Callback):
    """Scalars of each optimizer update, on an axis that counts updates and goes on when a run is resumed.

    `loss/train` is the loss of the whole update, micro-batches and ranks together; `alpha_k/layer_03` and the like say
    how much of each block's keys and values comes from the second pass, `alpha_k/mean` is their mean.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.updates, self.latest = trainer.global_step, {}
        self._begin()

    def on_train_batch_end(self, trainer, pl_module, outputs: dict[str, Tensor], batch, batch_idx: int) -> None:
        self.loss += outputs["share"]
        self.tokens += sum(len(s.prompt) + sum(map(len, s.answers)) for s in batch.samples)
        if trainer.global_step == self.updates:
            return
        self.updates = trainer.global_step
        self.latest = self._scalars(trainer, pl_module)
        if self.updates % trainer.log_every_n_steps == 0:
            log_scalars(trainer, self.latest | alphas(pl_module))
        self._begin()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            scores = {n: float(v) for n, v in trainer.callback_metrics.items() if n.endswith("/validation")}
            log_scalars(trainer, scores)
            self._begin()  # the time of a validation is not the time of an update

    def leave_out(self, seconds: float) -> None:
        """Time that was spent on something else than the update under way."""
        self.start += seconds

    def _begin(self) -> None:
        self.loss, self.tokens, self.start = 0.0, 0, time.perf_counter()

    def _scalars(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        seconds = time.perf_counter() - self.start
        tokens = torch.tensor(self.tokens, dtype=torch.float64, device=self.loss.device)
        counted = torch.stack([self.loss.double(), tokens])
        loss, tokens = trainer.strategy.reduce(counted, reduce_op="sum").tolist()
        return {
            "loss/train": loss,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "gradient_norm": float(pl_module.gradient_norm),
            "tokens_per_second": tokens / seconds,
        }


class ValidateAtEnd(Callback):
    """Validation after the last update, also where `max_steps` ends the run in the middle of an epoch."""

    def on_train_batch_end(self, trainer: Trainer, *args) -> None:
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True


class ResumePoint(Callback):
    """Lets an interrupted run go on after its last whole update.

    The weights are those of the last update, but loops and data may stand in the middle of the next one, whose
    gradients are lost. The checkpoint of an interruption therefore takes loops and data as they stood at the update.
    """

    loops: dict[str, Any] | None = None

    def on_train_batch_end(self, trainer: Trainer, *args) -> None:
        if self.loops is None or trainer.global_step != self.updates:
            self.updates, self.loops = trainer.global_step, deepcopy(trainer.fit_loop.state_dict())

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.interrupted and self.loops is not None:
            checkpoint["loops"]["fit_loop"] = self.loops


class BestModel(Callback):
    """Keep `folder` at the best model so far, in the form that `--run` reads.

    Best is what the run's ModelCheckpoint watches, the validation loss where there are no checkpoints; without any
    validation it is the last. The outcomes of the best model on the validation questions stay in `right`, one a question.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.score: float | None = None
        self.right: list[float] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        checkpoint = trainer.checkpoint_callback
        monitor, mode = (checkpoint.monitor, checkpoint.mode) if checkpoint else ("loss/validation", "min")
        if trainer.state.fn != "fit" or trainer.sanity_checking or monitor not in trainer.callback_metrics:
            return
        score = float(trainer.callback_metrics[monitor])
        better = self.score is None or (score < self.score if mode == "min" else score > self.score)
        if better and score == score:
            self.score, self.right = score, pl_module.right
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.score is None:
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            fresh = self.folder.with_name(f".{self.folder.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            write_model(fresh, pl_module.model, trainer.datamodule)
            shutil.rmtree(self.folder, ignore_errors=True)
            os.replace(fresh, self.folder)

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score, "right": self.right}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.score, self.right = state["score"], state["right"]


def alphas(pl_module: LightningModule) -> dict[str, float]:
    """`{"alpha_k/layer_03": 0.5, ..., "alpha_k/mean": 0.5, ...}`; empty for a method without mixing."""
    found = {}
    for name, values in pl_module.model.alphas().items():
        found |= {f"{name}/layer_{layer:02d}": value for layer, value in enumerate(values.tolist())}
        found[f"{name}/mean"] = values.mean().item()
    return found


def log_scalars(trainer: Trainer, scalars: dict[str, float]) -> None:
    """Log on the axis of updates."""
    for logger in trainer.loggers:
        logger.log_metrics(scalars, step=trainer.global_step)
