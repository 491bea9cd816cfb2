"""Activation checkpointing: no activations are kept within a block, they are computed again in the backward pass.

A replayed block runs after the forward pass has returned, when its layout is gone; checkpointing turned on in any other
way than here would replay it without one, and train silently wrong. It is refused.
"""

from contextlib import ExitStack, nullcontext

from transformers import PreTrainedModel

from .layout import current, reading


def checkpoint_activations(decoder: PreTrainedModel) -> None:
    """Turn it on for every block."""
    decoder.activation_checkpointing_enable({"use_reentrant": False, "context_fn": _same_reading})


def _same_reading() -> tuple:
    """Contexts of a block's first run and of its replay: the replay sees the reading that was current then."""
    return nullcontext(), _Again(current())


class _Again(ExitStack):
    """`reading(what)`, which can be entered again: a graph that is kept is replayed in each backward pass."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def __enter__(self) -> "_Again":
        self.enter_context(reading(self.what))
        return self


def check_checkpointing(decoder: PreTrainedModel) -> None:
    """Refuse checkpointing that was turned on elsewhere.

    Raises:
        ValueError: if a block would be replayed without its layout.
    """
    for module in decoder.modules():
        if getattr(module, "gradient_checkpointing", False) and hasattr(module, "_gradient_checkpointing_func"):
            settings = getattr(module._gradient_checkpointing_func, "keywords", {})
            if settings.get("context_fn") is not _same_reading or settings.get("use_reentrant") is not False:
                raise ValueError(
                    "Activation checkpointing was turned on in a way that would train silently wrong here: "
                    "turn it on with Bitune.checkpoint_activations()."
                )
            return
