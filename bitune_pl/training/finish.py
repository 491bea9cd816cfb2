"""A run that was stopped after its last update, before or in its last validation or evaluation: what is left is done.

Lightning trains nothing then, and so validates nothing either. The events, the last checkpoint and `model/` become those
of a run that was not stopped.
"""

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from bitune_pl.training.callbacks import BestModel
from bitune_pl.training.checkpoints import remember
from bitune_pl.training.dashboard.events import EventLogger, log_scalars
from bitune_pl.training.evaluate_tasks import EvaluateTasks


def is_unfinished(trainer: Trainer, best: BestModel) -> bool:
    """Whether the weights of the last update are still to be validated, kept, or evaluated."""
    return not best.folder.is_dir() or _owes_validation(trainer, best) or bool(_owed(trainer))


def finish(trainer: Trainer, pl_module: LightningModule, best: BestModel, checkpoint: Path) -> None:
    """Validate the weights of the checkpoint that was resumed, the last update's, keep them if they are the best, and
    evaluate them."""
    owed, has_events = _owed(trainer), any(isinstance(logger, EventLogger) for logger in trainer.loggers)
    scores: dict[str, float] = {}
    if _owes_validation(trainer, best):
        trainer.validate(pl_module, trainer.datamodule, verbose=False)
        scores = {name: float(value) for name, value in trainer.callback_metrics.items()}
        monitor, mode = best.watched(trainer)
        if monitor in scores:
            best.take(trainer, pl_module, scores[monitor], mode)
    best.keep_last(trainer, pl_module)
    events = EventLogger(best.folder.parent, name="", version="", default_hp_metric=False)
    trainer.loggers = [events] if has_events else []  # those of the training are closed
    if scores:
        log_scalars(trainer, scores)
    for evaluate in owed:
        evaluate.on_train_end(trainer, pl_module)
    if has_events:
        events.finalize("success")
    if trainer.is_global_zero:
        remember(checkpoint, [best, *owed])


def _owed(trainer: Trainer) -> list[EvaluateTasks]:
    found = [callback for callback in trainer.callbacks if isinstance(callback, EvaluateTasks)]
    return [callback for callback in found if callback.is_owed(trainer)]


def _owes_validation(trainer: Trainer, best: BestModel) -> bool:
    return _validates(trainer) and best.validated != trainer.global_step


def _validates(trainer: Trainer) -> bool:
    return trainer.limit_val_batches != 0 and bool(trainer.datamodule.rows.get("validation"))
