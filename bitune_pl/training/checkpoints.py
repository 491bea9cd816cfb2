"""What a checkpoint holds and how one is taken back: trained tensors only, plain settings, no surprise.

A checkpoint holds the tensors that are trained (both adapters, theta), never the base. So a missing or unexpected
tensor is an error here, while Lightning itself is told to be lenient. Settings are plain values, and where those of a
checkpoint and those of the run disagree, the disagreement is named: neither is silently preferred.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

# These change how a model is computed, not what it is.
FREE_TO_CHANGE = {"activation_checkpointing"}


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint, without its tensors' bytes where the system allows.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the file is something else.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}; a run keeps its own in runs/.../checkpoints/.")
    try:
        found = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}); it may be cut short."
        ) from error
    if not isinstance(found, dict) or not {"hyper_parameters", "state_dict", "global_step"} <= set(found):
        raise ValueError(f"{path} is a file of tensors, but not a checkpoint of `bitune fit`.")
    return found


def remember(path: Path, callbacks: Iterable[Callback]) -> None:
    """Let a checkpoint know what callbacks have come to since it was written."""
    checkpoint = torch.load(path, weights_only=True)
    for callback in callbacks:
        checkpoint["callbacks"][callback.state_key] = callback.state_dict()
    new = path.with_name(f".{path.name}.new")
    torch.save(checkpoint, new)
    os.replace(new, path)


def trained_tensors(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def restore(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into the trained parameters of a module.

    Raises:
        ValueError: naming each tensor that is missing, unexpected, or of another shape.
    """
    own = trained_tensors(module)
    missing, unexpected = [n for n in own if n not in saved], [n for n in saved if n not in own]
    if missing or unexpected:
        parts = [("it lacks", missing), ("this run has no", unexpected)]
        raise ValueError(
            "The checkpoint does not fit this model: "
            + "; ".join(f"{word} {_some(names)}" for word, names in parts if names)
            + ". Use the settings of the run that wrote it."
        )
    for name, parameter in own.items():
        if saved[name].shape != parameter.shape:
            raise ValueError(
                f"The checkpoint's {name} has shape {tuple(saved[name].shape)}, this model's {tuple(parameter.shape)}: "
                "use the settings of the run that wrote it."
            )
        parameter.copy_(saved[name])


def disagreements(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Each setting on which a checkpoint and a run differ, as `lr: 0.001 in the checkpoint, 0.0003 here`."""
    return [
        f"{name}: {saved[name]} in the checkpoint, {own[name]} here"
        for name in own
        if name in saved and name not in FREE_TO_CHANGE and plain(saved[name]) != plain(own[name])
        if not (name == "base_dtype" and own[name] is None)  # which leaves it open
    ]


def refuse_disagreements(saved: Mapping[str, Any], own: Mapping[str, Any], known_only: bool = False) -> None:
    """Raises:
    ValueError: naming every setting that differs, and with `known_only` those that the checkpoint does not have.
    """
    if known_only and (unknown := [name for name in own if name not in saved]):
        raise ValueError(f"There is no setting {', '.join(unknown)}; a checkpoint has {', '.join(saved)}.")
    if found := disagreements(saved, own):
        raise ValueError(
            f"The checkpoint was written with other settings ({'; '.join(found)}): give those of the checkpoint, or "
            "none, or start a new run."
        )


def plain(value: Any) -> Any:
    """Lists for tuples, dicts for mappings: a form in which what was saved equals what was given."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
