"""What `bitune verify` looks at: a model whose trained weights are all drawn at random, samples, and what they give.

Freshly made adapters are zero and theta is where it started, which hides much of what can be wrong. Values that several
rungs of `ladder.py` compare are computed once.
"""

import copy
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import LongTensor, Tensor
from transformers import PreTrainedModel

from ..sample import Sample
from . import adapters, three_pass
from .model import Bitune
from .small_copy import draw, shuffle
from .variants import Method

LENGTHS = ((13, (4,)), (7, (6, 2)), (1, (3,)))
"""Tokens of each prompt and of its answers: a prompt with two answers, and one that is a start token alone."""


class Subject:
    """Puts the method on a decoder, which it takes over, and draws all that is trained, in the decoder's type."""

    def __init__(self, decoder: PreTrainedModel, method: str | Method, adapter: str, **settings):
        self.base, self.made_with = copy.deepcopy(decoder), (method, adapter, settings)
        dtype = decoder.dtype
        self.model = Bitune.build(decoder, method, adapter, adapter_dtype=dtype, **settings).to(dtype).eval()
        generator = torch.Generator().manual_seed(2)
        draw(self.owned.values(), 0.3, generator)
        shuffle([theta for theta in (self.model.theta_k, self.model.theta_v) if theta is not None], generator)
        ids = lambda n: torch.randint(3, decoder.get_input_embeddings().weight.shape[0], (n,), generator=generator)  # noqa: E731
        self.samples = [Sample(self._ended(ids(prompt)), [ids(n) for n in answers]) for prompt, answers in LENGTHS]

    def _ended(self, prompt: LongTensor) -> LongTensor:
        """A prompt whose last token is the start token, where that is a new one."""
        if self.model.start_token_id is not None:
            prompt[-1] = self.model.start_token_id
        return prompt

    @property
    def owned(self) -> dict[str, torch.nn.Parameter]:
        """The sets of weights, frozen ones too, by name."""
        sets = (adapters.owned(self.model.decoder, name) for name in self.model.method.weight_sets)
        return {f"decoder.{name}": weight for each in sets for name, weight in each.items()}

    @property
    def trained(self) -> set[str]:
        return {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @cached_property
    def wide(self) -> "Subject":
        """The same in float64. In the gradient of theta, a sum over all tokens and heads, so much cancels that in float32 the
        rounding depends on the CPU (2e-4 was seen, and 1e-5 here). Experts have no grouped product in this type."""
        decoder = copy.deepcopy(self.base).to(torch.float64)
        decoder.set_experts_implementation("eager")
        method, adapter, settings = self.made_with
        return Subject(decoder, method, adapter, **settings)

    @cached_property
    def logits(self) -> Tensor:
        return self.read(self.samples)

    @cached_property
    def learned(self) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradients by one pass."""
        return self.learn(self.model.loss(self.samples))

    @cached_property
    def specified(self) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradients by three passes, where every weight of every set asks for one."""
        frozen = [weight for weight in self.owned.values() if not weight.requires_grad]
        for weight in frozen:
            weight.requires_grad_(True)
        try:
            return self.learn(three_pass.loss(self.model, self.samples))
        finally:
            for weight in frozen:
                weight.requires_grad_(False)

    @torch.no_grad()
    def read(self, samples: Sequence[Sample]) -> Tensor:
        """All answer logits of a batch, one under the other."""
        return flat(self.model.answer_logits(samples))

    def learn(self, loss: Tensor) -> tuple[float, dict[str, Tensor]]:
        """A loss and the gradients that are not zero all over."""
        self.model.zero_grad()
        if loss.requires_grad:
            loss.backward()
        found = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None and p.grad.any()}
        self.model.zero_grad()
        return loss.item(), found


def flat(nested: list[list[Tensor]]) -> Tensor:
    return torch.cat([answer for sample in nested for answer in sample])


def difference(actual: Tensor, expected: Tensor) -> float:
    """Relative to the largest value compared."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def gradient_difference(actual: dict[str, Tensor], expected: dict[str, Tensor], names: set[str]) -> float:
    """The worst of all weights, each relative to its own largest gradient; one far below all others counts as noise."""
    largest = max(expected[name].abs().max() for name in names & expected.keys())
    worst = 0.0
    for name in names & (actual.keys() | expected.keys()):
        ours, theirs = (side.get(name, torch.zeros(())) for side in (actual, expected))
        off = (ours - theirs).abs().max() / torch.maximum(theirs.abs().max(), 1e-3 * largest)
        worst = max(worst, off.item())
    return worst
