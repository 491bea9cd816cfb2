"""A start token of its own: a new, learnable `<sep>` in place of the template's last token (paper, section 3.1).

It is the last token of every prompt and the first input of every answer, and its embedding is the one thing about it that
is learned. Its id is the number of rows of the base's embedding, spare rows included, so that no id of the base can meet
it. The base's tables are not resized and stay as they are: the new row lies beside them. As an input token it has no row
in the output layer, so logits have as many columns as the base's, and it is never generated.

Prompts that end in it are written by the encoder (`bitune_pl.data.encoding`), not here.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import LongTensor, Tensor, nn
from transformers import PreTrainedModel

NAME = "<sep>"


class WithStartToken(nn.Module):
    """An embedding of `rows` tokens and one more, whose id is `rows`.

    Args:
        table: the base's embedding; it stays as it is, and goes on to be what a tied output layer shares.
    """

    def __init__(self, table: nn.Module):
        super().__init__()
        self.base_layer = table
        self.start_token = _one_row(table)

    @property
    def weight(self) -> Float[Tensor, "rows hidden"]:
        """The base's table."""
        return self.base_layer.weight

    @property
    def start_token_id(self) -> int:
        return self.base_layer.weight.shape[0]

    def forward(self, ids: Int[Tensor, "*ids"]) -> Float[Tensor, "*ids hidden"]:
        is_start = ids == self.start_token_id
        known = self.base_layer(ids.masked_fill(is_start, 0))
        own = self.start_token(ids.new_zeros(()))
        return torch.where(is_start.unsqueeze(-1), own.to(known.dtype), known)


def _one_row(table: nn.Module) -> nn.Module:
    """An embedding of the same kind (some scale their rows) with one row in float32: the mean of the table's."""
    made = copy.copy(table)
    row = table.weight.detach().mean(0, keepdim=True, dtype=torch.float32)
    made._parameters, made._buffers = {"weight": nn.Parameter(row)}, dict(table._buffers)
    made.num_embeddings, made.padding_idx = 1, None
    return made


def check_start_token(name: str | None) -> None:
    """Raises:
    ValueError: if it is none of the two that there are.
    """
    if name not in (None, NAME):
        raise ValueError(
            f"start_token is null (the last token of the template) or {NAME!r} (a new token that is learned), not {name!r}."
        )


def add_start_token(decoder: PreTrainedModel) -> None:
    """Give a decoder a start token of its own, to be trained."""
    decoder.set_input_embeddings(WithStartToken(decoder.get_input_embeddings()))


def start_token_id_of(decoder: PreTrainedModel) -> int | None:
    """The id of a decoder's own start token; None if it has none."""
    embedding = decoder.get_input_embeddings()
    return embedding.start_token_id if isinstance(embedding, WithStartToken) else None


def check_prompts(decoder: PreTrainedModel, prompts: Sequence[LongTensor]) -> None:
    """Raise a ValueError if a decoder has a start token and a prompt ends in another one."""
    start = start_token_id_of(decoder)
    if start is None or not prompts:
        return
    last = torch.stack([prompt[-1] for prompt in prompts])
    if (last != start).any():
        raise ValueError(
            f"This model was built with a start token of its own, of id {start}, and a prompt ends in the token "
            f"{int(last[last != start][0])}: encode prompts with Encoder(..., start_token=model.start_token_id)."
        )


@contextmanager
def in_logits(decoder: PreTrainedModel) -> Iterator[None]:
    """While it lasts, a decoder's logits have a column for the start token, at minus infinity.

    Transformers looks up scores by the ids of the prompt (repetition penalties, banned n-grams), the start token's among
    them; it can still not be generated.
    """
    if start_token_id_of(decoder) is None:
        yield
        return

    def widen(module: nn.Module, inputs: tuple, output):
        output.logits = F.pad(output.logits, (0, 1), value=float("-inf"))
        return output

    handle = decoder.register_forward_hook(widen)
    try:
        yield
    finally:
        handle.remove()
