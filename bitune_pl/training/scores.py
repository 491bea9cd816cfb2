"""Scores of a validation or test: exactly over its rows, whatever the batches and ranks.

Loss is kept in both weightings, since either alone hides what the other shows. Where rows are questions with choices, a
row is right if the log-likelihood of its right choice, summed over the choice's tokens, is the highest (lm-eval's
`acc`).
"""

from torch import Tensor, nn, no_grad
from torchmetrics import CatMetric, MeanMetric

from bitune_pl.evaluation.choices import pick
from bitune_pl.method.model import Bitune
from bitune_pl.sample import Sample


class Scores(nn.Module):
    """Means that torchmetrics keeps over batches and ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.by_sample = MeanMetric()
        self.by_token = MeanMetric()
        self.right = CatMetric()

    @no_grad()
    def add(self, model: Bitune, batch) -> None:
        """Take in a batch of validation rows; what a row's choices say is read in the same pass as its answer."""
        rows = [
            Sample(s.prompt, [*s.answers, *(c.answers if c else [])])
            for s, c in zip(batch.samples, batch.choices, strict=True)
        ]
        for (answer, *choices), gold in zip(model.log_likelihood(rows), batch.golds, strict=True):
            self.by_sample.update(-answer.mean())
            self.by_token.update(-answer.mean(), weight=len(answer))
            if choices:
                self.right.update(float(pick([float(tokens.sum()) for tokens in choices]) == gold))

    @property
    def outcomes(self) -> list[float]:
        """1 for a question answered right, 0 for one that is not, over all ranks; empty where there are no choices."""
        return self.right.compute().flatten().tolist() if self.right.update_called else []

    def result(self, weighting: str) -> dict[str, Tensor]:
        """`loss` by the run's weighting, `loss_per_token` (the token mean) beside it, `accuracy` of questions."""
        by_token = self.by_token.compute()
        result = {"loss": self.by_sample.compute() if weighting == "sample" else by_token, "loss_per_token": by_token}
        return result | ({"accuracy": self.right.compute().mean()} if self.right.update_called else {})

    def reset(self) -> None:
        for metric in (self.by_sample, self.by_token, self.right):
            metric.reset()
