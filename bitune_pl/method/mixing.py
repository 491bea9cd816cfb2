"""Mixing of the two readings of a prompt (paper, section 3.1, equations 6-8).

Each block holds two learned numbers, theta for keys and theta for values. They say how much of the second reading of the
prompt goes into what the answer will attend to:

    alpha = |theta| / (theta_init + |theta|)                     (8)
    K     = (1 - alpha_k) K_causal + alpha_k K_bidirectional     (6)
    V     = (1 - alpha_v) V_causal + alpha_v V_bidirectional     (7)

theta starts at theta_init, so alpha starts at 1/2, and d alpha / d theta starts at 1 / (4 theta_init).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def alpha(theta: Float[Tensor, "*layers"], theta_init: float) -> Float[Tensor, "*layers"]:
    """Share of the second reading in the mix, in [0, 1); even in theta (equation 8)."""
    size = theta.abs()
    return size / (theta_init + size)


def mix(
    causal: Float[Tensor, "batch kv_heads prompt head_dim"],
    bidirectional: Float[Tensor, "batch kv_heads prompt head_dim"],
    alpha: Float[Tensor, ""],
) -> Float[Tensor, "batch kv_heads prompt head_dim"]:
    """Mix two readings of the same keys or values (equations 6 and 7).

    Computed in the type of `alpha` or of the inputs, whichever is wider (float32 over a bfloat16 decoder, as in the
    paper, Table 9) and returned in the type of the inputs.
    """
    wide = torch.promote_types(causal.dtype, alpha.dtype)
    return torch.lerp(causal.to(wide), bidirectional.to(wide), alpha.to(wide)).to(causal.dtype)
