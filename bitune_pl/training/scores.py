"""Scores of a validation or test: exactly over its rows, whatever the batches and ranks.

Loss is kept in both weightings, since either alone hides what the other shows. Where rows are questions with choices,
a row is right if the log-likelihood of its right choice, summed over the choice's tokens, is the highest (lm-eval's `acc`).
"""

from torch import Tensor, nn, no_grad
from torchmetrics import CatMetric, MeanMetric

from bitune_pl.evaluation.choices import is_right
from bitune_pl.method.model import Bitune


class Scores(nn.Module):
    """Means that torchmetrics keeps over batches and ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.by_sample = MeanMetric()
        self.by_token = MeanMetric()
        self.right = CatMetric()

    @no_grad()
    def add(self, model: Bitune, batch) -> None:
        """Take in a batch of validation rows."""
        raise NotImplementedError

    def result(self, weighting: str) -> dict[str, Tensor]:
        """`loss` by the run's weighting, `loss_per_token` (the token mean) beside it, `accuracy` where there are choices."""
        by_token = self.by_token.compute()
        result = {"loss": self.by_sample.compute() if weighting == "sample" else by_token, "loss_per_token": by_token}
        return result | ({"accuracy": self.right.compute().mean()} if self.right.update_called else {})

    def reset(self) -> None:
        for metric in (self.by_sample, self.by_token, self.right):
            metric.reset()
