"""Settings that cannot be, refused before anything is loaded.

Each check is about settings alone: what only the end of a run would notice, or nothing at all. Those of a user's data
are in `data`, those of adapters in `method`; the words of jsonargparse's own errors are in `parsing`.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback

from bitune_pl.method.variants import Method, resolve

SCORES = ("loss/validation", "loss_per_token/validation", "accuracy/validation")
"""What a validation measures; accuracy where its rows are questions with choices."""


EMPTY = "The section {} of the config is empty: give settings under it, or leave it out."


def check_sections(config: Any) -> None:
    """Refuse a section that a config names and leaves empty, and a seed that numpy does not take.

    Raises:
        ValueError: naming the section or the setting.
    """
    for name, key in {"model": "model.base", "data": "data.source", "trainer": "trainer.max_steps"}.items():
        if key not in config:
            raise ValueError(EMPTY.format(name))
    if not 0 <= config.seed_everything < 2**32:
        raise ValueError(f"seed_everything is a whole number from 0 to {2**32 - 1}, not {config.seed_everything}.")


def check_devices(accelerator: Any, devices: Any) -> None:
    """Refuse more processes than a machine without accelerators has cores.

    Raises:
        ValueError: naming both numbers.
    """
    is_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
    ranks, cores = int(devices) if str(devices).isdecimal() else 1, os.cpu_count() or 1
    if is_cpu and ranks > cores:
        raise ValueError(f"trainer.devices asks for {ranks} processes, and this machine has {cores} CPU cores.")


def check_intervals(given: Any) -> None:
    """Refuse intervals of nothing.

    Raises:
        ValueError: naming the setting.
    """
    wanted = {
        "log_every_n_steps": "a number of updates, at least 1 (trainer.logger false logs none)",
        "check_val_every_n_epoch": "a number of epochs, at least 1, or null",
        "val_check_interval": "a number of batches or a share of an epoch, above 0 (limit_val_batches 0 validates never)",
    }
    interval, step = given.get("val_check_interval"), given.get("accumulate_grad_batches") or 1
    if type(interval) is int and interval > 0 and interval % step:
        raise ValueError(
            f"trainer.val_check_interval is {interval} batches, and an update takes {step} of them (accumulate_grad_batches): "
            "give a multiple, or a resumed run would lose part of an update."
        )
    for name, what in wanted.items():
        value = given.get(name)
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"trainer.{name} is {what}, not {value}.")


def check_monitors(callbacks: Sequence[Callback]) -> None:
    """Refuse callbacks that watch what nothing measures; a user's own callbacks may measure anything.

    Raises:
        ValueError: naming what there is.
    """
    if not all(type(callback).__module__.startswith("lightning.") for callback in callbacks):
        return
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and monitor not in (*SCORES, "step", "epoch"):
            raise ValueError(
                f"{type(callback).__name__} monitors {monitor!r}, which nothing measures; a validation measures "
                f"{', '.join(SCORES)}."
            )


def check_strategy(strategy: Any) -> None:
    """Refuse strategies that cut parameters in pieces: layers that are routed need both sets of weights whole.

    Raises:
        ValueError: naming those that work.
    """
    name = strategy if isinstance(strategy, str) else str(getattr(strategy, "class_path", strategy))
    if any(word in name.lower() for word in ("fsdp", "deepspeed", "modelparallel")):
        raise ValueError(
            f"trainer.strategy is {name}, which cuts a base, adapters and theta of different types into pieces together: "
            "choose auto or ddp, and for a large base model.quantization 4bit or model.activation_checkpointing."
        )


def check_length(given: Any, compares: bool) -> None:
    """Refuse what only part of a run would notice, before anything is loaded.

    Raises:
        ValueError: naming the settings.
    """
    if given.max_steps == 0 or given.max_epochs == 0:
        raise ValueError("A run of no updates trains nothing: give trainer.max_steps or max_epochs above 0.")
    if given.accumulate_grad_batches < 1:
        raise ValueError(
            f"trainer.accumulate_grad_batches is a number of batches, at least 1, not {given.accumulate_grad_batches}."
        )
    if given.max_steps == -1 and given.max_epochs in (None, -1):
        raise ValueError(
            "The learning rate falls to 0 at the end of a run, so a run needs one: give trainer.max_steps or "
            "trainer.max_epochs, beside trainer.max_time too."
        )
    if given.limit_train_batches == 0:
        raise ValueError("trainer.limit_train_batches is 0, so nothing would be trained: leave it out.")
    part, step = given.limit_train_batches, given.accumulate_grad_batches
    if step > 1 and part is not None and not (isinstance(part, int) and part % step == 0):
        raise ValueError(
            "trainer.limit_train_batches could cut an update of several batches in two: choose rows with "
            "data.train_rows, or stop after trainer.max_steps."
        )
    in_part = isinstance(given.limit_val_batches, int) or given.limit_val_batches not in (None, 1.0)
    if compares and (in_part or given.fast_dev_run or given.overfit_batches):
        raise ValueError(
            "compare_untuned scores the base on all validation rows, and the trainer is told to score some of them: "
            "choose how many with data.validation_rows."
        )


def whole_method(method: str | dict[str, Any]) -> Method:
    """A method from its name or its fields; one field of a named variant cannot be changed alone.

    `--model.method bitune --model.method.mixing false` reaches us as `{mixing: false}`: the name is lost on the way,
    and the other fields would silently be Bitune's.
    """
    needed = ("second_pass", "separate_weights", "mixing")
    if isinstance(method, dict) and (lacking := [field for field in needed if field not in method]):
        raise ValueError(
            f"model.method has {', '.join(method) or 'no field'} but not {', '.join(lacking)}: one field of a named "
            "variant cannot be changed alone; give its name, or all of " + ", ".join(needed) + "."
        )
    return resolve(method)


def check_rates(theta_init: float, lr: float, warmup: float) -> None:
    if theta_init <= 0 or lr <= 0:
        raise ValueError(f"model.theta_init and model.lr are above 0; they are {theta_init} and {lr}.")
    if not 0 <= warmup < 1:
        raise ValueError(f"model.warmup is a share of the updates, from 0 to below 1, not {warmup}.")


def check_adamw(weight_decay: float, eps: float, betas: tuple[float, float]) -> None:
    if weight_decay < 0 or eps < 0 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(
            "model.weight_decay and model.eps are at least 0 and both model.betas from 0 to below 1; they are "
            f"{weight_decay}, {eps} and {list(betas)}."
        )


def check_precision(precision: str) -> None:
    """Lightning's half precisions cast theta, whose steps bfloat16 cannot hold.

    Raises:
        ValueError: if a trainer runs in anything but 32-true.
    """
    if precision not in ("32-true", "32", 32, None):
        raise ValueError(
            f"trainer.precision is {precision!r}, which would cast theta too: leave it out, and choose the type of "
            "the base with model.base_dtype."
        )
