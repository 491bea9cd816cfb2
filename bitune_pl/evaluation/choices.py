"""Multiple choice: the choice with the highest log-likelihood is the answer (paper, A.3; lm-eval's `acc`)."""

from collections.abc import Sequence

from torch import Tensor


def pick(choices: Sequence[Tensor]) -> int:
    """The chosen position, from the log-likelihood of each token of each choice."""
    sums = [float(tokens.sum()) for tokens in choices]
    return max(range(len(sums)), key=sums.__getitem__)
