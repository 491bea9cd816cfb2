import pytest
import torch

from bitune_pl import Sample


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ([1, 2], "not list"),
        (torch.ones(2), "not torch.float32 of shape"),
        (torch.zeros(0, 2).long(), "of shape .0, 2."),
    ],
)
def test_what_is_no_row_of_token_ids_is_refused(prompt, found):
    with pytest.raises(ValueError, match=f"1-D LongTensor of token ids, .*{found}"):
        Sample(prompt, [])


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        Sample(torch.zeros(0, dtype=torch.long), [])
