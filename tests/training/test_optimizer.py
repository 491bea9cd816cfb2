import pytest
import torch
from torch import nn

from bitune_pl.training.optimizer import adamw, linear_schedule

NAMES = ("causal", "bidirectional", "theta")


def parameters(names=NAMES):
    return {name: nn.Parameter(torch.zeros(3)) for name in names}


def stepped(names=NAMES):
    """An optimizer that has seen a gradient of 1 on causal, 2 on bidirectional, 3 on theta."""
    own = parameters(names)
    optimizer = adamw(own.items(), lr=0.1)
    for size, name in enumerate(NAMES, start=1):
        own[name].grad = torch.full((3,), float(size))
    optimizer.step()
    return optimizer


def moments(optimizer):
    (group,) = optimizer.param_groups
    return {
        n: optimizer.state[p]["exp_avg"][0].item() for n, p in zip(group["param_names"], group["params"], strict=True)
    }


def test_state_is_matched_by_name_not_by_position():
    """F03: the moments of `causal` never land on `bidirectional`, whatever the order."""
    saved = stepped()
    other = adamw(parameters(NAMES[::-1]).items(), lr=0.5)
    other.load_state_dict(saved.state_dict())
    assert moments(other) == moments(saved) == pytest.approx({"causal": 0.1, "bidirectional": 0.2, "theta": 0.3})
    assert other.param_groups[0]["param_names"] == list(NAMES[::-1]) and other.param_groups[0]["lr"] == 0.1


def test_a_real_change_names_what_is_new_and_what_is_gone():
    """F03: an option that trains the separator row, and an adapter that is no longer there."""
    other = adamw(parameters(("causal", "theta", "separator")).items(), lr=0.1)
    with pytest.raises(ValueError, match="new here: separator; gone: bidirectional"):
        other.load_state_dict(stepped().state_dict())


def test_the_schedule_counts_updates():
    """F05: 6 updates, warm-up of 2: up from 0 in two updates, then down, 0 after the last."""
    optimizer = adamw(parameters().items(), lr=1.0)
    schedule, rates = linear_schedule(optimizer, updates=6, warmup=0.34), []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25])
    assert optimizer.param_groups[0]["lr"] == 0
