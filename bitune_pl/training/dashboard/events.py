"""The event files of a run: one record an update, flushed before each checkpoint.

A resumed run goes on in the same folder. Whatever the events say beyond the checkpoint it starts from is purged
(`purge_step`), and nothing before it is lost in a crash, since events are flushed before a checkpoint is written.
"""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from torch.utils.tensorboard import SummaryWriter


class EventLogger(TensorBoardLogger):
    """TensorBoard events and nothing else: what was set is in `config.yaml`, not in a second file."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """All scalars of a step as one record: a sixth of the time and half the bytes of one record each."""
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self.experiment.file_writer.add_summary(Summary(value=values), step)

    def save(self) -> None:
        self.experiment.flush()


class FlushEvents(Callback):
    """Puts all events on disk before a checkpoint is: a run that is killed has no gap up to its checkpoint."""

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        for writer in writers(trainer):
            writer.flush()


def validates_a_training(trainer: Trainer) -> bool:
    """Whether a validation is one of a training: not its sanity check, and not a command of its own."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def log_scalars(trainer: Trainer, scalars: Mapping[str, float]) -> None:
    """Give scalars of the current update to every logger of a run."""
    for logger in trainer.loggers:
        logger.log_metrics(scalars, step=trainer.global_step)


def writers(trainer: Trainer) -> list[SummaryWriter]:
    """Where a run's TensorBoard events are written: none without such a logger, and none on ranks but the first."""
    boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
    return [board.experiment for board in boards] if trainer.is_global_zero else []


def log_text(trainer: Trainer, name: str, markdown: str) -> None:
    """Give a text to TensorBoard, under its own name (`SummaryWriter.add_text` would put another word behind it)."""
    for writer in writers(trainer):
        writer.file_writer.add_summary(text_pb(name, markdown), trainer.global_step)
