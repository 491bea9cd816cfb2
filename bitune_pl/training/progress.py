"""What a run shows while it runs: a bar that counts optimizer updates, with loss, tokens per second and time left.

On a terminal it is a tqdm bar; where the output goes to a file or a pipe, ten plain lines over the run.
"""

import sys
import time

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from bitune_pl.training.dashboard.scalars import UpdateLog

LINES = 10  # over a whole run, where there is no terminal
SILENCE = 30  # seconds after which an update is told in any case


class UpdateProgress(ProgressBar):
    """Shows the scalars that an `UpdateLog` before it has measured."""

    def __init__(self, update_log: UpdateLog) -> None:
        super().__init__()
        self.update_log = update_log
        self.enabled = True

    def disable(self) -> None:
        """Lightning calls this on all ranks but the first."""
        self.enabled = False

    def enable(self) -> None:
        self.enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.total, self.done = int(trainer.estimated_stepping_batches), trainer.global_step
        self.first, self.start = self.done, time.monotonic()
        self.said = self.start - SILENCE  # the first update is told as well: it says how long the run will take
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in pl_module.parameters()]
        trained, whole = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
        self._line(f"training {trained:,} of {whole:,} parameters, {self.total} updates", everywhere=True)
        self.bar = self._open("updates", self.total, self.done)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args) -> None:
        if trainer.global_step == self.done:
            return
        self.done = trainer.global_step
        latest = self.update_log.latest
        text = f"loss {latest['loss/train']:.3f}, {latest['tokens_per_second']:,.0f} tokens/s"
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()
        silent = time.monotonic() - self.said
        if self.done == self.total or self.done % max(1, self.total // LINES) == 0 or silent > SILENCE:
            self.said = time.monotonic()
            pace = (time.monotonic() - self.start) / (self.done - self.first)
            self._line(f"update {self.done}/{self.total}: {text}, {pace * (self.total - self.done):.0f} s left")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pass_bar = self._open("validation", sum(trainer.num_val_batches))

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pass_bar = self._open("test", sum(trainer.num_test_batches))

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pass_bar = self._open("prediction", sum(trainer.num_predict_batches))

    def _step(self, *args) -> None:
        self.pass_bar.update()

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _step

    def _close(self, *args) -> None:
        self.pass_bar.close()

    on_test_end = on_predict_end = _close

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()
        scores = {
            n.removesuffix("/validation"): float(v)
            for n, v in trainer.callback_metrics.items()
            if n.endswith("/validation")
        }
        if trainer.state.fn == "fit" and scores:
            text = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items())
            self._line(f"validation after update {trainer.global_step}: {text}", everywhere=True)

    def print(self, *args, **kwargs) -> None:
        """A line that leaves the bar whole."""
        self._line(" ".join(map(str, args)), everywhere=True)

    def _open(self, label: str, total: int, initial: int = 0) -> tqdm:
        hidden = not (self.enabled and sys.stderr.isatty())
        return tqdm(
            desc=label, total=total, initial=initial, disable=hidden, leave=label == "updates", dynamic_ncols=True
        )

    def _line(self, text: str, everywhere: bool = False) -> None:
        """A plain line where there is no terminal, or `everywhere`."""
        if self.enabled and (everywhere or not sys.stderr.isatty()):
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()
