"""Tensors that lie on a GPU, checked without one: fake tensors know which device they are on."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bitune_pl.method.layout import _row


def test_a_row_is_made_where_its_samples_are():
    """Lightning moves a batch before the step."""
    with FakeTensorMode():
        ids = torch.zeros(3, dtype=torch.long, device="cuda")
        assert _row([ids, ids], None).device.type == "cuda"
    assert _row([], None).shape == (1, 0)
