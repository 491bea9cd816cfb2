"""AdamW and its schedule, with optimizer state that knows the names of its parameters.

The settings are the published code's: no weight decay, eps 1e-6, `int(warmup * updates)` updates of linear warm-up (the
first of them at rate 0) and a linear decay to 0, stepped once per optimizer update. PyTorch matches saved state to
parameters by position; here it is matched by name, so that the moments of one adapter can never land on the other.
"""

from collections.abc import Iterable

from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_linear_schedule_with_warmup


def adamw(named: Iterable[tuple[str, nn.Parameter]], **settings) -> AdamW:
    """AdamW over named parameters, whose state is restored by name."""
    optimizer = AdamW(list(named), **settings)
    optimizer.register_load_state_dict_pre_hook(_in_own_order)
    return optimizer


def linear_schedule(optimizer: Optimizer, updates: int, warmup: float) -> LambdaLR:
    """Learning rate at update `u` (from 0): `lr * u / w` while `u < w`, then `lr * (updates - u) / (updates - w)`."""
    return get_linear_schedule_with_warmup(optimizer, int(warmup * updates), updates)


def take_up(schedule: LambdaLR, update: int, updates: int) -> None:
    """Give the next update the rate of this schedule, since a checkpoint brings that of the one it was made under.

    Args:
        update: how many updates were made, of so many `updates`; a rate that is another one is told.
    """
    (group,) = schedule.optimizer.param_groups
    saved = group["lr"]
    schedule.last_epoch -= 1
    schedule.step()
    if group["lr"] != saved:
        rank_zero_info(
            f"The learning rate goes on at {group['lr']:.3g}, that of update {update + 1} of {updates}; in the checkpoint "
            f"it is {saved:.3g}."
        )


def _in_own_order(optimizer: Optimizer, saved: dict) -> dict:
    """The saved state with its parameters in this optimizer's order.

    Raises:
        ValueError: naming the parameters that the saved state lacks or has in excess.
    """
    (own,), (group,) = optimizer.param_groups, saved["param_groups"]
    where = {name: index for name, index in zip(group["param_names"], group["params"], strict=True)}
    new = [name for name in own["param_names"] if name not in where]
    gone = [name for name in where if name not in set(own["param_names"])]
    if new or gone:
        raise ValueError(
            "The optimizer state of the checkpoint belongs to other parameters: "
            + "; ".join(f"{word}: {', '.join(names)}" for word, names in [("new here", new), ("gone", gone)] if names)
            + ". Resume with the settings of the run that wrote it, or start a new run."
        )
    order = [where[name] for name in own["param_names"]]
    state = {new: saved["state"][old] for new, old in enumerate(order) if old in saved["state"]}
    names = list(own["param_names"])
    return saved | {"state": state, "param_groups": [group | {"params": list(range(len(order))), "param_names": names}]}
