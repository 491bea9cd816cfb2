"""Two sets of weights on one row: which of them runs where.

Every layer that holds sets of weights (a *tuner*) is run once on either side of the layout's split, with the set of that
side pinned on it for the length of the call. PEFT's `set_adapter` is never called: it would freeze the other set and lose
its gradient without an error. Outside a reading the causal weights run (decoding), or those that a `Weights` context names.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .layout import Reading, Weights, current


def route(decoder: nn.Module, routed_class=None) -> None:
    """Make a decoder's tuners route, the outermost of nested ones for all of them.

    Args:
        routed_class: from a tuner to the kind of `Routed` it becomes; `Routed` if not given.
    """
    pin(tuners(decoder), "causal")
    for layer in _outermost(decoder):
        kind = routed_class(layer) if routed_class else Routed
        layer.__class__ = type(f"Routed{type(layer).__name__}", (kind, type(layer)), {})


class Routed:
    """A tuner that runs on either side of the split with that side's weights.

    Mixed into the layer's own class, so that names in state dicts stay as they are and copies stay independent.
    """

    def forward(self, x: Tensor, *args, **kwargs):
        outputs = []
        for name, rows in self._parts(x):
            with active(self, name):
                outputs.append(super().forward(*_cut((x, *args), rows), **_cut(kwargs, rows)))
        return _join(outputs)

    def _parts(self, x: Tensor) -> list[tuple[str, slice]]:
        """Which set of weights runs on which rows (axis -2) of the input."""
        now = current()
        if now is None and torch.is_grad_enabled():
            raise RuntimeError(
                "An adapter layer ran outside of a reading while gradients are on, where it cannot know which weights to train. "
                "Call the Bitune model rather than its decoder, or turn gradients off with torch.no_grad()."
            )
        if not isinstance(now, Reading):
            return [(now.name if isinstance(now, Weights) else "causal", slice(None))]
        rows, split = now.layout.rows, now.layout.split
        if x.shape[-2] != rows:
            raise ValueError(
                f"An adapted {type(self).__name__} saw {x.shape[-2]} tokens where the row has {rows}, so it cannot tell the two "
                "readings apart: exclude this module from the adapter's target modules."
            )
        sides = [("causal", slice(0, split)), ("bidirectional", slice(split, rows))]
        return [(name, part) for name, part in sides if part.stop > part.start]


def _cut(what, rows: slice):
    """Rows (axis -2) of every tensor in a tuple or dict of arguments."""
    if isinstance(what, dict):
        return {key: _cut(value, rows) for key, value in what.items()}
    if isinstance(what, tuple):
        return tuple(_cut(value, rows) for value in what)
    return what[..., rows, :] if isinstance(what, Tensor) else what


def _join(outputs: list):
    """Undo `_cut` on what a layer returned for each part."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], tuple):
        return tuple(_join(list(pieces)) for pieces in zip(*outputs, strict=True))
    return torch.cat(outputs, dim=-2)


@contextmanager
def active(module: nn.Module, name: str) -> Iterator[None]:
    """Pin an adapter on all tuner layers in a module, touching no gradient flag."""
    held = tuners(module)
    before = [tuner._active_adapter for tuner in held]
    pin(held, name)
    try:
        yield
    finally:
        for tuner, was in zip(held, before, strict=True):
            tuner._active_adapter = was


def pin(layers: Sequence[nn.Module], name: str) -> None:
    """Pin a set of weights on tuners for good."""
    for tuner in layers:
        tuner._active_adapter = [name]


def tuners(module: nn.Module) -> list[nn.Module]:
    """All layers in a module that hold sets of weights, as PEFT marks them."""
    return [child for child in module.modules() if hasattr(child, "_active_adapter")]


def _outermost(decoder: nn.Module) -> list[nn.Module]:
    held = tuners(decoder)
    nested = {id(child) for tuner in held for child in tuner.modules() if child is not tuner}
    return [tuner for tuner in held if id(tuner) not in nested]
