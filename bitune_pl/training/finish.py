"""A run that was stopped after its last update, before or in its last validation: what is left to do is done.

Lightning trains nothing then, and so validates nothing either. The events, the last checkpoint and `model/` become those
of a run that was not stopped.
"""

import os
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer

from bitune_pl.training.callbacks import BestModel
from bitune_pl.training.dashboard.events import EventLogger


def is_unfinished(trainer: Trainer, best: BestModel) -> bool:
    """Whether the weights of the last update are still to be validated, or kept."""
    return not best.folder.is_dir() or (_validates(trainer) and best.validated != trainer.global_step)


def finish(trainer: Trainer, pl_module: LightningModule, best: BestModel, checkpoint: Path) -> None:
    """Validate the weights of the checkpoint that was resumed, the last update's, and keep them if they are the best."""
    update = trainer.global_step
    if _validates(trainer):
        trainer.validate(pl_module, trainer.datamodule, verbose=False)
        monitor, mode = best.watched(trainer)
        if monitor in trainer.callback_metrics:
            best.take(trainer, pl_module, float(trainer.callback_metrics[monitor]), mode)
        if trainer.is_global_zero and any(isinstance(logger, EventLogger) for logger in trainer.loggers):
            events = EventLogger(best.folder.parent, name="", version="", default_hp_metric=False)
            events.log_metrics({name: float(value) for name, value in trainer.callback_metrics.items()}, update)
            events.finalize("success")
    best.keep_last(trainer, pl_module)
    if trainer.is_global_zero:
        _remember(checkpoint, best)


def _validates(trainer: Trainer) -> bool:
    return trainer.limit_val_batches != 0 and bool(trainer.datamodule.rows.get("validation"))


def _remember(path: Path, best: BestModel) -> None:
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["callbacks"][best.state_key] = best.state_dict()
    new = path.with_name(f".{path.name}.new")
    torch.save(checkpoint, new)
    os.replace(new, path)
