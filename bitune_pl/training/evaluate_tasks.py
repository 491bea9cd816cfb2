"""Scores of tasks while a run goes on: `eval/<task>/acc` beside the curves of the training.

The live model is asked, by way of lm-eval, after whole updates only. A run is bit for bit the same with and without
it: modes, gradients and random states are left as they were. What can be checked before the base is loaded (names of
tasks, their data) is an error there, and a question that has no room is one before the first update. An evaluation that
fails later is told, and the run goes on, since the weights are what it is for. The scores are those of the weights at that
update, while `model/` keeps the best by validation.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from traceback import format_exc
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng

from bitune_pl.training.callbacks import LastCheckpoint
from bitune_pl.training.checkpoints import read_checkpoint, remember
from bitune_pl.training.dashboard.events import log_scalars
from bitune_pl.training.dashboard.scalars import UpdateLog


class EvaluateTasks(Callback):
    """Evaluate every so many updates, and after the last one.

    `latest` has the last scores by tag (`eval/piqa/acc`), `evaluated` the update that they are of.

    Args:
        tasks: what `bitune evaluate --tasks` takes, as a list or separated by commas; none turns it off.
        every: number of updates from one evaluation to the next; null evaluates after the last one only.
        limit: only the first so many rows of each task (of each subject of MMLU); null takes all.
        part: which rows of a task are scored.
        root: folder with local copies of the data sets; that of the training data if not given.

    Raises:
        ValueError: if a setting cannot be; before anything is read.
    """

    def __init__(
        self,
        tasks: list[str] | str | None = None,
        every: int | None = 100,
        limit: int | None = 200,
        part: Literal["test", "validation", "train"] = "test",
        root: str | None = None,
    ) -> None:
        self.tasks = _names(tasks)
        self.every, self.limit, self.part, self.root = every, limit, part, root
        self.latest: dict[str, float] = {}
        self.evaluated: int | None = None
        self.live, self.told = None, set()
        for name, value in (("every", every), ("limit", limit)):
            if value is not None and value < 1:
                raise ValueError(f"evaluate.{name} is a whole number, at least 1, or null, not {value}.")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Read the tasks, which is before the base is loaded."""
        if stage == "fit" and self.tasks and self.live is None:
            from bitune_pl.evaluation.live import LiveTasks  # lm-eval takes seconds to import

            root = getattr(trainer.datamodule, "root", None) if self.root is None else self.root
            with isolate_rng():
                self.live = LiveTasks(self.tasks, root, self.part, self.limit)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What has no room is refused, and a run that was interrupted in an evaluation makes up for it."""
        if self.tasks:
            with isolate_rng():
                self.live.check(pl_module.model, trainer.datamodule.encoder)
        self.updates = trainer.global_step
        if self.updates and self.evaluated != self.updates and self._is_due(self.updates):
            self._evaluate(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args) -> None:
        if trainer.global_step == self.updates:
            return
        self.updates = trainer.global_step
        if self._is_due(self.updates):
            self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.is_owed(trainer):
            self._evaluate(trainer, pl_module)
            self._tell_the_last_checkpoint(trainer)

    def _tell_the_last_checkpoint(self, trainer: Trainer) -> None:
        """It was written before this evaluation, and a run that is resumed from it would owe it."""
        for callback in trainer.checkpoint_callbacks if trainer.is_global_zero else ():
            path = Path(callback.best_model_path)
            if isinstance(callback, LastCheckpoint) and path.is_file():
                if read_checkpoint(path)["global_step"] == trainer.global_step:
                    remember(path, [self])

    def is_owed(self, trainer: Trainer) -> bool:
        """Whether the weights as they are have not been evaluated."""
        return bool(self.tasks) and self.evaluated != trainer.global_step

    def _is_due(self, update: int) -> bool:
        return bool(self.tasks and self.every) and update % self.every == 0

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        start = time.perf_counter()
        scores, problem = self._scores(trainer, pl_module)
        self.evaluated = trainer.global_step
        if problem is None:
            self.latest = {f"eval/{task}/{name}": value for task, own in scores.items() for name, value in _scored(own)}
            log_scalars(trainer, self.latest)
            seconds = f"{time.perf_counter() - start:.0f} s"
            _tell(trainer, f"evaluation after update {self.evaluated}: {_text(scores)}, {seconds}")
        elif problem not in self.told:
            self.told.add(problem)
            _warn(trainer, f"The evaluation after update {self.evaluated} failed, and the run goes on: {problem}")
        for callback in trainer.callbacks:
            if isinstance(callback, UpdateLog) and trainer.training:
                callback.leave_out(time.perf_counter() - start)

    def _scores(self, trainer: Trainer, pl_module: LightningModule) -> tuple[dict[str, dict[str, float]], str | None]:
        """Scores by task, or what went wrong, as the first rank has it."""
        scores, problem = {}, None
        with isolate_rng():
            try:
                scores = self.live.scores(pl_module.model, trainer.datamodule.encoder, _shows_bars(trainer))
            except Exception as error:
                problem = " ".join(str(error).split()) or type(error).__name__
                problem += f"\n{format_exc()}" if os.environ.get("BITUNE_TRACEBACK") else ""
        return trainer.strategy.broadcast((scores, problem))

    def state_dict(self) -> dict[str, Any]:
        return {"latest": self.latest, "evaluated": self.evaluated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.latest, self.evaluated = state["latest"], state["evaluated"]


def _names(tasks: Sequence[str] | str | None) -> list[str]:
    said = tasks.split(",") if isinstance(tasks, str) else tasks or []
    names = [name.strip() for name in said if name.strip()]
    if said and not names:
        raise ValueError("evaluate.tasks names no task: give some, separated by commas, such as categories,sums.")
    return list(dict.fromkeys(names))


def _scored(own: dict[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in own.items() if name not in ("n", "cut_contexts")]


def _text(scores: dict[str, dict[str, float]]) -> str:
    """ "piqa acc 0.560, acc_norm 0.565 (200 questions)", for each task."""
    said = []
    for task, own in scores.items():
        values = ", ".join(f"{name} {value:.3f}" for name, value in _scored(own))
        cut = f", {own['cut_contexts']} prompts cut" if own.get("cut_contexts") else ""
        said.append(f"{task} {values} ({own['n']:.0f} questions{cut})")
    return "; ".join(said)


def _shows_bars(trainer: Trainer) -> bool:
    return bool(trainer.is_global_zero and trainer.progress_bar_callback and sys.stderr.isatty())


def _tell(trainer: Trainer, text: str) -> None:
    """A line above the bar, if there is one."""
    if trainer.progress_bar_callback:
        trainer.progress_bar_callback.print(text)


def _warn(trainer: Trainer, text: str) -> None:
    if trainer.progress_bar_callback:
        trainer.progress_bar_callback.print(f"note: {text}")
    else:
        rank_zero_warn(text)
