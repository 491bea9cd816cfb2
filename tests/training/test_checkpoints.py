import pytest
import torch
from torch import nn

from bitune_pl.training.checkpoints import disagreements, refuse_disagreements, restore, trained_tensors


def half_frozen():
    module = nn.ModuleDict({"base": nn.Linear(2, 2), "adapter": nn.Linear(2, 3)})
    module["base"].requires_grad_(False)
    return module


def test_only_trained_tensors_are_kept_and_come_back():
    saved = {name: value.detach().clone() for name, value in trained_tensors(half_frozen()).items()}
    assert set(saved) == {"adapter.weight", "adapter.bias"}
    other = half_frozen()
    restore(other, saved)
    assert all(torch.equal(value, saved[name]) for name, value in trained_tensors(other).items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.pop("adapter.bias"), r"it lacks adapter\.bias"),
        (lambda saved: saved.update(extra=torch.ones(1)), "this run has no extra"),
        (
            lambda saved: saved.update({"adapter.bias": torch.ones(4)}),
            r"adapter\.bias has shape \(4,\), this model's \(3,\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    saved = dict(trained_tensors(half_frozen()))
    change(saved)
    with pytest.raises(ValueError, match=message):
        restore(half_frozen(), saved)


def test_settings_that_differ_are_named():
    saved = {"lr": 1e-3, "adapter_settings": {"r": 16}, "betas": (0.9, 0.999), "activation_checkpointing": True}
    own = {"lr": 3e-4, "adapter_settings": None, "betas": [0.9, 0.999], "activation_checkpointing": False}
    assert disagreements(saved, own) == [
        "lr: 0.001 in the checkpoint, 0.0003 here",
        "adapter_settings: {'r': 16} in the checkpoint, None here",
    ]
    with pytest.raises(ValueError, match="other settings .lr: 0.001 in the checkpoint"):
        refuse_disagreements(saved, own)
