"""Token ids are rows of the decoder's embedding; what else comes is told before the decoder fails on it."""

from collections.abc import Sequence

import torch
from torch import LongTensor
from transformers import PreTrainedModel

from .start_token import start_token_id_of


def check_ids(decoder: PreTrainedModel, prompts: Sequence[LongTensor], answers: Sequence[LongTensor] = ()) -> None:
    """Refuse ids that the decoder does not have; a start token of its own stands in prompts only.

    Raises:
        IndexError: with the id, and how many there are.
    """
    rows = decoder.get_input_embeddings().weight.shape[0]
    has_start = start_token_id_of(decoder) is not None
    for what, texts, known in (("A prompt", prompts, rows + has_start), ("An answer", answers, rows)):
        ids = torch.cat([text.to(decoder.device) for text in texts]) if len(texts) else torch.empty(0)
        for worst in torch.stack(ids.aminmax()).tolist() if len(ids) else ():  # one wait for the device, not one a text
            if not 0 <= worst < known:
                raise IndexError(
                    f"{what} holds the token id {worst}, and this decoder has the ids 0 to {known - 1}: encode texts with "
                    "the tokenizer of the base."
                )
