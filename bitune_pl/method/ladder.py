"""The equivalence ladder: what must hold for a decoder, a method and an adapter if they are served rightly.

Each rung measures how far two ways to the same values are apart, relative to the largest value compared, or counts what
should not be. The reference is `three_pass.py`, the paper's algorithms written out with transformers' own attention.
"""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..sample import Sample
from . import three_pass
from .model import Bitune
from .subject import LENGTHS, Subject, difference, flat, gradient_difference
from .variants import Method

STEPS = 6
"""New tokens of the generated answers."""

CLOSE, GRADIENT, SEEN = 1e-5, 1e-4, 1e-4
"""Tolerances: for values, which are in float32; for gradients; and the least change that shows that a token was seen."""


@dataclass(frozen=True)
class Rung:
    """One thing that must hold.

    Args:
        name: what is compared.
        measure: from a subject to the difference, or to a number of things (an int).
        limit: the largest measure that passes, or with `at_least` the smallest.
    """

    name: str
    measure: Callable[[Subject], float | int]
    limit: float | int
    at_least: bool = False

    def passes(self, measured: float | int) -> bool:
        """Whether it holds; never for what is not a number."""
        return measured >= self.limit if self.at_least else measured <= self.limit


def _logits(subject: Subject) -> float:
    with torch.no_grad():
        return difference(subject.logits, flat(three_pass.answer_logits(subject.model, subject.samples)))


def _loss(subject: Subject) -> float:
    return abs(subject.learned[0] - subject.specified[0]) / abs(subject.specified[0])


def _gradients(subject: Subject) -> float:
    wide = subject.wide
    return gradient_difference(wide.learned[1], wide.specified[1], wide.trained)


def _batch(subject: Subject) -> float:
    return difference(subject.logits, torch.cat([subject.read([sample]) for sample in subject.samples]))


def _one_by_one(subject: Subject) -> float:
    [several] = [sample for sample in subject.samples if len(sample.answers) > 1]
    alone = [subject.read([Sample(several.prompt, [answer])]) for answer in several.answers]
    return difference(subject.read([several]), torch.cat(alone))


def _accumulated(subject: Subject) -> float:
    subject = subject.wide
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
