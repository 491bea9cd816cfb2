"""What the run gained: the pretrained base and the best model on the same validation questions.

The base is scored as it was pretrained, in one causal reading without adapters, before training starts.
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from bitune_pl.evaluation.paired import Gain, paired_gain
from bitune_pl.method.backbone import load_decoder
from bitune_pl.method.model import Bitune
from bitune_pl.training.scores import Scores


class UntunedScore(Callback):
    """Scores the untuned base at the start of a run; a resumed run remembers."""

    def __init__(self) -> None:
        self.right: list[float] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.right:
            return
        rank_zero_info("scoring the untuned base ...")
        base, dtype = pl_module.hparams.base, getattr(torch, pl_module.hparams.base_dtype)
        model = (
            Bitune.build(load_decoder(base, dtype=dtype), method="plain", adapter="none").to(pl_module.device).eval()
        )
        scores = Scores().to(pl_module.device)
        for batch in trainer.datamodule.val_dataloader():
            scores.add(model, trainer.datamodule.transfer_batch_to_device(batch, pl_module.device, 0))
        self.right = scores.outcomes

    def gain(self, tuned: list[float]) -> Gain | None:
        """The gain over the base; None where the rows are no questions with choices."""
        return paired_gain(self.right, tuned) if self.right and tuned else None

    def state_dict(self) -> dict[str, list[float]]:
        return {"right": self.right}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.right = state["right"]
