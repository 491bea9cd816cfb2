"""Stop strings, exactly: an answer ends where one of them stands in its text, wherever the borders of tokens lie.

What is looked at is the text of the new tokens, never the prompt's, so that an answer which goes on where the prompt ends
("\\n" and then "\\n") is not stopped by what the two are together. The stop string itself is cut off, and with it whatever
its last token says beyond it. Text that only looks like a control token is a stop string like any other; control tokens
end an answer by their ids.
"""

from collections.abc import Sequence

import torch
from torch import LongTensor, Tensor
from transformers import StoppingCriteria

from bitune_pl.data.encoding import Encoder


class TextStops(StoppingCriteria):
    """Says of each row of a batch whether its new text holds a stop string. For one call of `generate`.

    Args:
        encoder: what makes text of ids.
        stops: the stop strings; none of them empty.
    """

    def __init__(self, encoder: Encoder, stops: Sequence[str]) -> None:
        self.encoder, self.stops = encoder, stops
        self.prompt: int | None = None
        # A token is at least a byte of text, and the first tokens of a piece may lose a space or half a character.
        self.back = max(len(stop.encode()) for stop in stops) + 8

    def __call__(self, input_ids: LongTensor, scores: tuple | Tensor | None, **kwargs) -> Tensor:
        length = input_ids.shape[1]
        if self.prompt is None:
            self.prompt = length - 1  # the first call comes after the first new token
        tail = input_ids[:, max(self.prompt, length - self.back) :].tolist()
        met = [any(stop in text for stop in self.stops) for text in map(self.encoder.decode, tail)]
        return torch.tensor(met, device=input_ids.device)


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stop strings.

    >>> cut_at("#### 5\\n\\nQuestion: next", ["Question:"])
    '#### 5\\n\\n'
    """
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
