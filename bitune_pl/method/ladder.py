"""The equivalence ladder: what must hold for a decoder, a method and an adapter if they are served rightly.

Each rung measures how far two ways to the same values are apart, relative to the largest value compared, or counts what
should not be. The reference is `three_pass.py`, the paper's algorithms written out with transformers' own attention.
"""

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..sample import Sample
from . import adapters, three_pass
from .model import Bitune
from .small_copy import draw, shuffle
from .variants import Method

LENGTHS = ((13, (4,)), (7, (6, 2)), (1, (3,)))
"""Tokens of each prompt and of its answers: a prompt with two answers, and one that is a start token alone."""
STEPS = 6

CLOSE, GRADIENT, SEEN = 1e-5, 1e-4, 1e-4
"""Tolerances in float32: for values, for gradients; and the least change that shows that a token was seen."""


@dataclass(frozen=True)
class Rung:
    """One thing that must hold.

    Args:
        name: what is compared.
        measure: from a subject to the difference, or to a number of things (an int).
        limit: the largest measure that passes, or with `at_least` the smallest.
    """

    name: str
    measure: "Callable[[Subject], float | int]"
    limit: float | int
    at_least: bool = False

    def passes(self, measured: float | int) -> bool:
        """Whether it holds; never for what is not a number."""
        return measured >= self.limit if self.at_least else measured <= self.limit


class Subject:
    """What is verified: a model whose trained weights are all drawn at random, and what several rungs look at."""

    def __init__(self, decoder: PreTrainedModel, method: str | Method, adapter: str):
        self.base = copy.deepcopy(decoder)
        self.model = Bitune.build(decoder, method, adapter).eval()
        generator = torch.Generator().manual_seed(2)
        draw(self.owned.values(), 0.3, generator)
        shuffle([theta for theta in (self.model.theta_k, self.model.theta_v) if theta is not None], generator)
        ids = lambda n: torch.randint(3, decoder.get_input_embeddings().weight.shape[0], (n,), generator=generator)  # noqa: E731
        self.samples = [Sample(ids(prompt), [ids(n) for n in answers]) for prompt, answers in LENGTHS]

    @property
    def owned(self) -> dict[str, torch.nn.Parameter]:
        """The sets of weights, frozen ones too, by name."""
        sets = (adapters.owned(self.model.decoder, name) for name in self.model.method.weight_sets)
        return {f"decoder.{name}": weight for each in sets for name, weight in each.items()}

    @property
    def trained(self) -> set[str]:
        return {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @cached_property
    def logits(self) -> Tensor:
        return self.read(self.samples)

    @cached_property
    def learned(self) -> "tuple[float, dict[str, Tensor]]":
        """Loss and gradients by one pass."""
        return self.learn(self.model.loss(self.samples))

    @cached_property
    def specified(self) -> "tuple[float, dict[str, Tensor]]":
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


# -- the rungs -----------------------------------------------------------------------------------------------------------


def _logits(subject: Subject) -> float:
    with torch.no_grad():
        return difference(subject.logits, flat(three_pass.answer_logits(subject.model, subject.samples)))


def _loss(subject: Subject) -> float:
    return abs(subject.learned[0] - subject.specified[0]) / abs(subject.specified[0])


def _gradients(subject: Subject) -> float:
    return gradient_difference(subject.learned[1], subject.specified[1], subject.trained)


def _batch(subject: Subject) -> float:
    return difference(subject.logits, torch.cat([subject.read([sample]) for sample in subject.samples]))


def _one_by_one(subject: Subject) -> float:
    [several] = [sample for sample in subject.samples if len(sample.answers) > 1]
    alone = [subject.read([Sample(several.prompt, [answer])]) for answer in several.answers]
    return difference(subject.read([several]), torch.cat(alone))


def _accumulated(subject: Subject) -> float:
    singles = [Sample(sample.prompt, [answer]) for sample in subject.samples for answer in sample.answers]
    loss = sum(subject.model.loss([single], denominator=len(singles)) for single in singles)
    value, found = subject.learn(loss)
    return max(
        abs(subject.learned[0] - value) / abs(value), gradient_difference(subject.learned[1], found, subject.trained)
    )


def _checkpointed(subject: Subject) -> float:
    model = subject.model
    model.checkpoint_activations()
    model.train()
    try:
        value, found = subject.learn(model.loss(subject.samples))
    finally:
        model.eval()
        model.decoder.gradient_checkpointing_disable()
    return max(
        abs(value - subject.learned[0]) / abs(subject.learned[0]),
        gradient_difference(found, subject.learned[1], subject.trained),
    )


def _generated(subject: Subject) -> float:
    """How far the greedy tokens from the cache are from being the likeliest of three passes."""
    prompts = [sample.prompt for sample in subject.samples]
    new = subject.model.generate(prompts, max_new_tokens=STEPS, do_sample=False, eos_token_id=None)
    answered = [Sample(prompt, [tokens]) for prompt, tokens in zip(prompts, new, strict=True)]
    with torch.no_grad():
        logits = flat(three_pass.answer_logits(subject.model, answered))
    behind = logits.max(-1).values - logits.gather(1, torch.cat(new)[:, None])[:, 0]
    return (behind.max() / logits.abs().max()).item()


def _saved(subject: Subject) -> float:
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        again = Bitune.from_pretrained(folder, copy.deepcopy(subject.base))
    with torch.no_grad():
        return difference(flat(again.answer_logits(subject.samples)), subject.logits)


def _without_gradient(subject: Subject) -> int:
    return len(subject.trained - subject.learned[1].keys())


def _other_gradients(subject: Subject) -> int:
    """Weights that one pass trains and three passes do not reach, or the other way round."""
    return len(subject.trained ^ subject.specified[1].keys()) + len(subject.learned[1].keys() - subject.trained)


def _keys_seen(second: bool, changed: int, watched: slice, smallest: bool) -> Callable[[Subject], float]:
    """How much the keys of some prompt tokens change, from the second block on, when another token does.

    Args:
        second: whether in the second pass or in the causal pass.
        changed: the token that is another one, counted from the prompt's start or end.
        watched: the tokens whose keys are compared.
        smallest: whether the smallest change of all blocks is returned, or the largest.
    """

    def measure(subject: Subject) -> float:
        sample = Sample(subject.samples[0].prompt, subject.samples[0].answers)
        other = Sample(sample.prompt.clone(), sample.answers)
        other.prompt[changed] = sample.prompt[changed] - 1
        one, two = (_keys(subject.model, s, second) for s in (sample, other))
        changes = [difference(b[:, :, watched], a[:, :, watched]) for a, b in zip(one, two, strict=True)][1:]
        return min(changes) if smallest else max(changes)

    return measure


@torch.no_grad()
def _keys(model: Bitune, sample: Sample, second: bool) -> list[Tensor]:
    keys: list[Tensor] = []
    layout, *_ = model.read([sample], lambda module, key, *_: keys.append(key))
    first, answers, _ = layout.regions
    return [key[:, :, first + answers :] if second else key[:, :, :first] for key in keys]


def _leaks(method: Method) -> list[Rung]:
    """What each reading of the prompt may see and what it must. A prompt that is written twice is watched in its first copy."""
    before = slice(0, LENGTHS[0][0] - 2)
    causal, pattern = method.second_pass is None or method.mixing, method.second_pass
    rungs = []
    if causal:
        rungs.append(Rung("causal pass: no token sees a later one", _keys_seen(False, -2, before, False), CLOSE))
    if pattern == "causal":
        rungs.append(Rung("second pass: no token sees a later one", _keys_seen(True, -2, before, False), CLOSE))
    elif pattern is not None:
        seen = _keys_seen(True, -2, slice(0, 1), True)
        rungs.append(Rung("second pass: the first token sees the last", seen, SEEN, at_least=True))
    if pattern == "anti_causal":
        rungs.append(
            Rung("second pass: no token sees an earlier one", _keys_seen(True, 0, slice(1, None), False), CLOSE)
        )
    return rungs


def rungs(method: Method, trains: bool) -> list[Rung]:
    """The ladder of a method; without trained weights nothing is said about gradients."""
    learning = [
        Rung("one pass = three passes: every gradient", _gradients, GRADIENT),
        Rung("a batch = accumulated single answers: gradients", _accumulated, GRADIENT),
        Rung("activations recomputed = kept: gradients", _checkpointed, GRADIENT),
        Rung("trained weights without a gradient", _without_gradient, 0),
        Rung("trained weights other than three passes reach", _other_gradients, 0),
    ]
    return [
        Rung("one pass = three passes: logits", _logits, CLOSE),
        Rung("one pass = three passes: loss", _loss, CLOSE),
        *(learning if trains else []),
        Rung("a batch = its samples one by one: logits", _batch, CLOSE),
        Rung("answers to one prompt = one by one: logits", _one_by_one, CLOSE),
        Rung("generation from the cache = three passes", _generated, CLOSE),
        *_leaks(method),
        Rung("saved and loaded: logits", _saved, 0),
    ]
