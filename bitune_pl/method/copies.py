"""Full fine-tuning with two sets of weights: the layers themselves, one copy for each set (paper, Table 7).

As in the published code the linear layers of attention and MLP are trained, embeddings and norms are not.
"""

import copy
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel


class Copies(nn.Module):
    """A layer in as many copies as there are sets of weights; the first copy is the layer itself."""

    adapter_layer_names = ("copies",)
    other_param_names = ()

    def __init__(self, layer: nn.Module, name: str):
        super().__init__()
        self.copies = nn.ModuleDict({name: layer})
        self._active_adapter = [name]

    def forward(self, x: Tensor, *args, **kwargs):
        layer = self.copies[self._active_adapter[0]]
        out = layer(x.to(next(layer.parameters()).dtype), *args, **kwargs)
        return out.to(x.dtype) if isinstance(out, Tensor) else out

    @property
    def weight(self) -> Tensor:
        return self.copies[self._active_adapter[0]].weight


@dataclass(frozen=True)
class FullCopies:
    """Train the linear layers of the blocks, experts included.

    Args:
        target_modules: ends of the names of the layers to train, such as `["q_proj", "v_proj"]`; None for all.
    """

    target_modules: tuple[str, ...] | list[str] | None = None

    def add(self, decoder: PreTrainedModel, name: str) -> None:
        """Add a set of weights, equal to the first one or, if it is the first, to the pretrained layers."""
        wrapped = [module for module in decoder.modules() if isinstance(module, Copies)]
        for module in wrapped:
            module.copies[name] = copy.deepcopy(next(iter(module.copies.values())))
        if wrapped:
            return
        layers = [key for key, module in decoder.named_modules() if self._trains(decoder, key, module)]
        if not layers:
            raise ValueError(
                f"No layer of this decoder is named like {self.target_modules}, so nothing would be trained."
            )
        for key in layers:
            parent, _, child = key.rpartition(".")
            decoder.get_submodule(parent).register_module(child, Copies(decoder.get_submodule(key), name))

    def _trains(self, decoder: PreTrainedModel, key: str, module: nn.Module) -> bool:
        norm = (
            "Norm" in type(module).__name__
        )  # as transformers tells norms; those of each head have weights of two axes
        if module is decoder.get_output_embeddings() or isinstance(module, nn.Embedding) or norm:
            return False
        ends = tuple(f".{end}" for end in self.target_modules or ())
        matrix = any(weight.ndim > 1 for weight in module.parameters(recurse=False))  # of three axes for experts
        return matrix and (not ends or f".{key}".endswith(ends))
