"""A decoder's output layer with its own scale and soft-cap: the decoder's forward, its blocks taken out."""

import copy
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel


def output_layer(
    decoder: PreTrainedModel, output_type: type
) -> Callable[[Float[Tensor, "places hidden"]], Float[Tensor, "places vocab"]]:
    """From hidden states `(places, hidden)` to logits `(places, vocab)`.

    Args:
        decoder: the whole decoder.
        output_type: what the decoder's blocks return.
    """
    inner = decoder.get_decoder()
    path = next(name for name, module in decoder.named_modules() if module is inner).split(".")
    passing = _Passing(output_type)
    head = copy.copy(decoder)
    place = head
    for step in path[:-1]:
        place._modules = {**place._modules, step: copy.copy(place._modules[step])}
        place = place._modules[step]
    place._modules = {**place._modules, path[-1]: passing}

    def logits(hidden: Tensor) -> Tensor:
        passing.hidden = hidden.unsqueeze(0)
        return type(decoder).forward(head, inputs_embeds=passing.hidden, use_cache=False).logits[0]

    return logits


class _Passing(nn.Module):
    """Stands where a decoder's blocks were and returns hidden states that are already there."""

    def __init__(self, output_type: type):
        super().__init__()
        self.output_type = output_type

    def forward(self, *args, **kwargs):
        return self.output_type(last_hidden_state=self.hidden)
