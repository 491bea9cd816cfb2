"""Which layers an adapter is put on, where PEFT is not left to decide: by names, told from the decoder itself.

The paper says all linear layers of attention and MLP (Table 12). The published code takes those whose name contains
`_proj`, which for Phi-2 are the projections to queries, keys and values only (`dense`, `fc1` and `fc2` are left out);
`paper_targets` repeats that choice.
"""

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

PAPER = "_proj"


def linear_layers(decoder: PreTrainedModel) -> list[str]:
    """Names of the linear layers of the blocks: not the output layer, nor what reads pictures or sounds beside them."""
    blocks = set(decoder.get_decoder().modules())
    return [name for name, layer in _linear(decoder) if layer in blocks]


def all_linear(decoder: PreTrainedModel) -> str | list[str]:
    """All linear layers of the blocks: in PEFT's word where it means just these, else by name."""
    names = linear_layers(decoder)
    return "all-linear" if len(names) == len(_linear(decoder)) else names


def _linear(decoder: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    head = decoder.get_output_embeddings()
    return [(n, m) for n, m in decoder.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]


def paper_targets(decoder: PreTrainedModel) -> list[str]:
    """Ends of the names of the layers that the published code adapts.

    Raises:
        ValueError: if the decoder names none so.
    """
    ends = {name.rpartition(".")[2] for name in linear_layers(decoder)}
    if not (found := sorted(end for end in ends if PAPER in end)):
        raise ValueError(
            f"paper_targets asks for linear layers with {PAPER} in their names, and this decoder ({decoder.config.model_type}) "
            f"has {', '.join(sorted(ends))}: leave paper_targets out, and all of them are adapted."
        )
    return found


def matching(names: Sequence[str], ends: Sequence[str]) -> list[str]:
    """Those names that end in one of the given ends, whole words only."""
    return [name for name in names if f".{name}".endswith(tuple(f".{end}" for end in ends))]


def feedforward(names: Sequence[str], attention: Sequence[str]) -> list[str]:
    """Those names that lie outside of all attention modules."""
    return [name for name in names if not name.startswith(tuple(f"{module}." for module in attention))]
