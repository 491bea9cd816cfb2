"""Log-likelihood of answers, and the training objective (paper, Algorithm 2).

The published objective is the mean over an answer's tokens, then the mean over the answers of an update. The mean over all
learned tokens of an update is another objective; both are here, the paper's is the default.

Logits over a large vocabulary are the biggest thing in memory, so they are made for answer places only, some places at a
time, and never kept: where the output layer is frozen, the gradient with respect to its input is computed together with
the likelihood and stored instead.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Weighting = Literal["sample", "token"]
Head = Callable[[Float[Tensor, "places hidden"]], Float[Tensor, "places vocab"]]

CHUNK = 2**25
"""Most logits that exist at a time (128 MiB in float32)."""

_NOTHING = torch.iinfo(torch.long).min


def log_likelihood(
    hidden: Float[Tensor, "answer hidden"], tokens: Int[Tensor, "answer"], head: Head, frozen_head: bool, vocab: int
) -> Float[Tensor, "answer"]:
    """Log-probability of each answer token, in float32 or wider.

    Args:
        hidden: the decoder's last hidden state at the places that predict an answer token.
        head: the decoder's output layer, with its own scaling and soft-capping.
        frozen_head: whether nothing in `head` is trained.
        vocab: number of logits at each place.
    """
    places = max(1, CHUNK // vocab)
    pieces = zip(hidden.split(places), tokens.split(places), strict=True)
    if not torch.is_grad_enabled() or not hidden.requires_grad:
        scored = [_score(h, t, head) for h, t in pieces]
    elif frozen_head:
        scored = [_ScoreWithGradient.apply(h, t, head) for h, t in pieces]
    else:
        scored = [checkpoint(_score, h, t, head, use_reentrant=False) for h, t in pieces]
    return torch.cat(scored)


@torch.no_grad()
def log_likelihood_and_best(
    hidden: Float[Tensor, "places hidden"],
    predicting: Int[Tensor, "answer"],
    tokens: Int[Tensor, "answer"],
    head: Head,
    vocab: int,
) -> tuple[Float[Tensor, "answer"], Bool[Tensor, "answer"]]:
    """As `log_likelihood`, without gradients, and whether each answer token is the likeliest one at its place.

    Args:
        hidden: the decoder's last hidden state at each place, whose logits are made once.
        predicting: the place of each answer token.
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    scores, best = hidden.new_empty(len(tokens), dtype=dtype), torch.empty_like(tokens, dtype=torch.bool)
    size = max(1, CHUNK // vocab)
    for start in range(0, len(hidden), size):
        here = ((predicting >= start) & (predicting < start + size)).nonzero().squeeze(1)
        logits, rows = head(hidden[start : start + size]).to(dtype), predicting[here] - start
        chosen = logits[rows, tokens[here]]
        scores[here] = chosen - logits.logsumexp(1)[rows]
        best[here] = logits.argmax(1)[rows] == tokens[here]
    return scores, best


def _score(hidden: Tensor, tokens: Tensor, head: Head) -> Tensor:
    logits = head(hidden)
    wide = torch.promote_types(logits.dtype, torch.float32)
    # A token of -100 would count as certain and learned; here nothing is ignored, so that it is an error.
    return -F.cross_entropy(logits.to(wide), tokens, reduction="none", ignore_index=_NOTHING)


class _ScoreWithGradient(torch.autograd.Function):
    """`_score`, whose gradient with respect to `hidden` is computed in the forward pass: each place depends on itself only."""

    @staticmethod
    def forward(ctx, hidden: Tensor, tokens: Tensor, head: Head) -> Tensor:
        leaf = hidden.detach().requires_grad_()
        with torch.enable_grad():
            scores = _score(leaf, tokens, head)
            (slope,) = torch.autograd.grad(scores.sum(), leaf)
        ctx.save_for_backward(slope)
        return scores.detach()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return (slope * grad.unsqueeze(-1)).to(slope.dtype), None, None


def loss(
    answers: list[list[Float[Tensor, "_"]]], weighting: Weighting = "sample", denominator: float | None = None
) -> Float[Tensor, ""]:
    """Negative log-likelihood of answers, averaged over an update.

    Args:
        answers: log-likelihood of each token of each answer of each sample.
        weighting: `sample` adds up each answer's mean over its tokens, `token` adds up all tokens.
        denominator: number of answers (or learned tokens) of the whole update, over accumulated batches and ranks; those
            of `answers` if not given. With it, summing losses over batches gives the update's loss however it was cut.

    Raises:
        ValueError: if the weighting is unknown, or there is no answer token to learn from.
    """
    flat = [tokens for sample in answers for tokens in sample if len(tokens)]
    if not flat:
        raise ValueError("There is no answer token to learn from: every sample of a training batch needs an answer.")
    if weighting == "sample":
        total, count = torch.stack([tokens.mean() for tokens in flat]).sum(), len(flat)
    elif weighting == "token":
        total, count = torch.cat(flat).sum(), sum(map(len, flat))
    else:
        raise ValueError(f"weighting is 'sample' or 'token', not {weighting!r}.")
    return -total / (count if denominator is None else denominator)
