"""Settings that cannot be, refused before anything is loaded.

Each check is about settings alone: what only the end of a run would notice, or nothing at all. Those of a user's data
are in `data`, those of adapters in `method`; the words of jsonargparse's own errors are in `parsing`.
"""

from typing import Any

from bitune_pl.method.variants import Method, resolve


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
