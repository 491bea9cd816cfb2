"""A sample: the one thing that data and method share.

It holds token ids and nothing else. What a prompt or an answer looks like as text is the business of `bitune_pl.data`;
what is computed from them is the business of `bitune_pl.method`.
"""

from dataclasses import dataclass, field

import torch
from torch import LongTensor


@dataclass(frozen=True, eq=False)
class Sample:
    """One prompt and the answers that hang off it.

    Args:
        prompt: token ids, shape `(prompt,)`. The last one is the **start token**: it is not prefilled but opens every
            answer (paper, section 3.1).
        answers: token ids of each answer, shapes `(answer,)`, the end-of-sequence token included where it is to be
            learned. Each answer is one of the paper's samples. Empty for a prompt that is only to be continued.

    Raises:
        ValueError: if the prompt is empty or anything is not a 1-D tensor of integers.
    """

    prompt: LongTensor
    answers: list[LongTensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, ids in [("prompt", self.prompt), *((f"answer {i}", ids) for i, ids in enumerate(self.answers))]:
            if not isinstance(ids, torch.Tensor) or ids.ndim != 1 or ids.dtype != torch.long:
                is_tensor = isinstance(ids, torch.Tensor)
                found = f"{ids.dtype} of shape {tuple(ids.shape)}" if is_tensor else type(ids).__name__
                raise ValueError(f"A sample's {name} is a 1-D LongTensor of token ids, not {found}.")
        if self.prompt.numel() == 0:
            raise ValueError("A prompt needs at least one token, the start token; this one is empty.")
