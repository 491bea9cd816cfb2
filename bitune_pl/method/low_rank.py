"""Low-rank updates for a row that two sets of weights share: y = W x + scale B A x, with A and B chosen by the split.

What it replaces is the plain LoRA layer run once on either side of the split. The base layer runs once over the whole row
and both updates are added in place, so neither a cut nor a joined copy of the row is made and only the low-rank
projections are kept for the backward pass.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Part = tuple[slice, Float[Tensor, "rank in"], Float[Tensor, "out rank"], float]
"""Rows of one set of weights, its A and B, and the scale of the update."""


def add_low_rank(
    base: Float[Tensor, "*batch row out"], x: Float[Tensor, "*batch row in"], parts: Sequence[Part]
) -> Tensor:
    """Add `scale B A x` to each part's rows of `base`, in place, and return it.

    Computed in the type of A and B, rounded once to the type of `base`. Leading axes are of length 1.
    """
    slices, downs, ups, scales = zip(*parts, strict=True)
    return _AddLowRank.apply(base, x, slices, scales, *downs, *ups)


class _AddLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx, base: Tensor, x: Tensor, slices: tuple, scales: tuple, *weights: Tensor) -> Tensor:
        downs, ups = weights[: len(slices)], weights[len(slices) :]
        out, rows = base.view(-1, base.shape[-1]), x.reshape(-1, x.shape[-1])
        projected = []
        for part, down, up, scale in zip(slices, downs, ups, scales, strict=True):
            h = rows[part].to(down.dtype) @ down.t()
            if out.dtype == up.dtype:
                out[part].addmm_(h, up.t(), alpha=scale)
            else:
                out[part].add_((h @ up.t()).mul_(scale))
            projected.append(h)
        ctx.slices, ctx.scales = slices, scales
        ctx.save_for_backward(x, *downs, *ups, *projected)
        ctx.mark_dirty(base)
        return base

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        x, *saved = ctx.saved_tensors
        n = len(ctx.slices)
        downs, ups, projected = saved[:n], saved[n : 2 * n], saved[2 * n :]
        rows, out = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        grad_x = torch.empty_like(rows) if ctx.needs_input_grad[1] else None
        grad_downs, grad_ups = [], []
        for part, down, up, h, scale in zip(ctx.slices, downs, ups, projected, ctx.scales, strict=True):
            g = out[part].to(up.dtype)
            grad_h = (g @ up).mul_(scale)
            grad_ups.append((g.t() @ h).mul_(scale))
            grad_downs.append(grad_h.t() @ rows[part].to(down.dtype))
            if grad_x is not None:
                grad_x[part] = grad_h @ down
        return grad, None if grad_x is None else grad_x.view_as(x), None, None, *grad_downs, *grad_ups
