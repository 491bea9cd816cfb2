"""What is done beside the training step: where a run ends, where it can go on, and the best model, kept as it appears.

`BestModel` writes `model/`, `ValidateAtEnd` makes sure that a run which stops in the middle of an epoch is validated too,
`ResumePoint` and `LastCheckpoint` that one which is interrupted can go on, `ConfigOfResumed` that its config says how.
What TensorBoard shows is in `dashboard/`, the progress display in `progress.py`.
"""

import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from bitune_pl.training.dashboard.events import validates_a_training
from bitune_pl.training.model_folder import write_model


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


class LastCheckpoint(ModelCheckpoint):
    """The last checkpoint, also of a run that is interrupted; what fails before training starts leaves it as it was."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.save_on_exception = True


class ConfigOfResumed(Callback):
    """Calls `save(updates)` once a resumed run really goes on."""

    def __init__(self, save: Callable[[int], None]) -> None:
        self.save = save

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.save(trainer.global_step)


class BestModel(Callback):
    """Keep `folder` at the best model so far, in the form that `--run` reads.

    Best is what the run's ModelCheckpoint watches, the validation loss where there are no checkpoints; without any
    validation it is the last, as always with `keep="last"`. `update` is the update after which it was best, `compared`
    the number of validations so far, `validated` the update of the last one. Its outcomes on the validation questions
    stay in `right`, one a question.
    """

    def __init__(self, folder: Path, keep: Literal["best", "last"] = "best") -> None:
        self.folder, self.keeps_last, self.compared = folder, keep == "last", 0
        self.score: float | None = None
        self.update: int | None = None
        self.validated: int | None = None
        self.right: list[float] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        monitor, mode = self.watched(trainer)
        if validates_a_training(trainer) and monitor in trainer.callback_metrics:
            self.take(trainer, pl_module, float(trainer.callback_metrics[monitor]), mode)

    def watched(self, trainer: Trainer) -> tuple[str | None, str]:
        """The score that says which model is best, and whether the lowest or the highest is."""
        checkpoint = trainer.checkpoint_callback
        return (checkpoint.monitor, checkpoint.mode) if checkpoint else ("loss/validation", "min")

    def take(self, trainer: Trainer, pl_module: LightningModule, score: float, mode: str) -> None:
        """Take note of a validation, and keep the model if it is better than all before."""
        self.compared, self.validated = self.compared + 1, trainer.global_step
        if self.keeps_last:  # written at the end
            self.right = pl_module.right
            return
        better = self.score is None or (score < self.score if mode == "min" else score > self.score)
        if better and score == score:
            self.score, self.update, self.right = score, trainer.global_step, pl_module.right
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.keep_last(trainer, pl_module)

    def keep_last(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the last model where that is wanted, or none is known to be better."""
        if self.score is None or self.keeps_last or not self.folder.is_dir():
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            fresh = self.folder.with_name(f".{self.folder.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            write_model(fresh, pl_module.model, trainer.datamodule)
            old = self.folder.with_name(f".{self.folder.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            if self.folder.is_dir():
                os.replace(self.folder, old)
            os.replace(fresh, self.folder)
            shutil.rmtree(old, ignore_errors=True)

    def state_dict(self) -> dict[str, Any]:
        names = ("score", "update", "right", "compared", "validated")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.score, self.right, self.compared = state["score"], state["right"], state.get("compared", 0)
        self.validated = state.get("validated")
        self.update = None if self.keeps_last else state.get("update")
