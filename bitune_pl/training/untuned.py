"""What the run gained: the pretrained base and the best model on the same validation questions.

The base is scored as it was pretrained, in one causal reading without adapters, before training starts. A start token
that is a new one is left out of its prompts: the base has no such token.
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from bitune_pl.data.batching import Batch
from bitune_pl.evaluation.paired import Gain, paired_gain
from bitune_pl.method.backbone import load_decoder
from bitune_pl.method.model import Bitune
from bitune_pl.sample import Sample
from bitune_pl.training.dashboard.events import log_scalars, validates_a_training
from bitune_pl.training.scores import Scores


class UntunedScore(Callback):
    """Scores the untuned base at the start of a run; a resumed run remembers."""

    def __init__(self) -> None:
        self.right: list[float] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.right:
            return
        rows = trainer.datamodule.rows.get("validation")
        if rows is None or not (rows.golds >= 0).any():
            rank_zero_info("the untuned base is not scored, as no validation row is a question with choices")
            return
        rank_zero_info("scoring the untuned base ...")
        settings = pl_module.hparams
        dtype = getattr(torch, settings.base_dtype)
        decoder = load_decoder(settings.base, dtype=dtype, quantization=settings.quantization)
        model = Bitune.build(decoder, method="plain", adapter="none").to(pl_module.device).eval()
        scores = Scores().to(pl_module.device)
        for batch in trainer.datamodule.val_dataloader():
            batch = batch if pl_module.start_token_id is None else _without_last_token(batch)
            scores.add(model, trainer.datamodule.transfer_batch_to_device(batch, pl_module.device, 0))
        self.right = scores.outcomes
        self._log(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A level beside the run's own curve."""
        if self.right and validates_a_training(trainer):
            self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        log_scalars(trainer, {"accuracy/untuned": sum(self.right) / len(self.right)})

    def gain(self, tuned: list[float]) -> Gain | None:
        """The gain over the base; None where the rows are no questions with choices."""
        return paired_gain(self.right, tuned) if self.right and tuned else None

    def state_dict(self) -> dict[str, list[float]]:
        return {"right": self.right}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.right = state["right"]


def _without_last_token(batch: Batch) -> Batch:
    """The same questions, their prompts one token shorter."""

    def cut(sample: Sample | None) -> Sample | None:
        return sample and Sample(sample.prompt[:-1], sample.answers)

    return Batch(list(map(cut, batch.samples)), list(map(cut, batch.choices)), batch.golds, batch.answers, batch.tokens)
