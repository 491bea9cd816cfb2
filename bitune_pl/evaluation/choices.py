"""Multiple choice: the choice with the highest log-likelihood is the answer (paper, A.3; lm-eval's `acc`)."""

from collections.abc import Sequence


def pick(log_likelihoods: Sequence[float]) -> int:
    """The chosen position, from the log-likelihood of each choice; the first of several that are as good."""
    return max(range(len(log_likelihoods)), key=log_likelihoods.__getitem__)
