"""A trained model as a folder: everything but the base.

    causal/           a PEFT adapter in PEFT's own format
    bidirectional/    the same, where the second reading has weights of its own
    theta.safetensors theta_k and theta_v, where the method mixes
    bitune.json       method, adapter, theta_init, base and its fingerprint, versions

Nothing is pickled.
"""

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from .. import __version__
from . import adapters
from .backbone import fingerprint, load_decoder
from .variants import resolve

if TYPE_CHECKING:
    from .model import Bitune

DESCRIPTION, THETA = "bitune.json", "theta.safetensors"


def save(model: "Bitune", folder: Path) -> None:
    """Write a model, its base excepted."""
    folder.mkdir(parents=True, exist_ok=True)
    if model.adapter != "none":
        for name in model.method.weight_sets:
            adapters.save(model.decoder, name, folder / name)
    if model.method.mixing:
        thetas = {"theta_k": model.theta_k, "theta_v": model.theta_v}
        save_file({name: theta.detach().cpu() for name, theta in thetas.items()}, folder / THETA)
    description = {
        "method": asdict(model.method),
        "adapter": model.adapter,
        "adapter_dtype": str(_adapter_dtype(model)).removeprefix("torch."),
        "theta_init": model.theta_init,
        "base": model.decoder.name_or_path,
        "dtype": str(model.decoder.dtype).removeprefix("torch."),
        "fingerprint": model.base_fingerprint,
        "versions": {"bitune_pl": __version__, **{name: version(name) for name in ("torch", "transformers", "peft")}},
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def _adapter_dtype(model: "Bitune") -> torch.dtype:
    return next((p.dtype for p in adapters.owned(model.decoder, "causal").values()), torch.float32)


def describe(folder: Path) -> dict:
    """What `bitune.json` says.

    Raises:
        FileNotFoundError: if the folder holds no model.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no Bitune model: {DESCRIPTION} is missing. Give the model folder of a run."
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): copy the run's whole model folder again.") from error
    needed = ("method", "adapter", "adapter_dtype", "theta_init", "base", "dtype", "fingerprint")
    if not isinstance(found, dict) or (lacking := [name for name in needed if name not in found]):
        what = ", ".join(lacking) if isinstance(found, dict) else "an object"
        raise ValueError(f"{path} lacks {what}: copy the run's whole model folder again.")
    return found


def load(
    cls: "type[Bitune]",
    folder: Path,
    decoder: PreTrainedModel | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> "Bitune":
    """Open a folder that `save` wrote, in evaluation mode.

    Args:
        decoder: the base; loaded by the name in the folder if not given.
        dtype: type of the base; if not given, that of the decoder, or the one it had when the folder was written.
        device: where to put the model; the decoder's own if not given.

    Raises:
        FileNotFoundError: if a part is missing.
        ValueError: if the base is another one, or a tensor does not fit.
    """
    description = describe(folder)
    method, kind = resolve(description["method"]), description["adapter"]
    config = [adapters.read_config(folder / name, kind) for name in method.weight_sets][0]
    if method.mixing and not (folder / THETA).is_file():
        raise FileNotFoundError(f"{folder} lacks {THETA}: copy the run's whole model folder.")
    if decoder is None:
        decoder = load_decoder(description["base"], dtype or getattr(torch, description["dtype"]), device)
    elif device is not None:
        decoder = decoder.to(device)
    for parameter in decoder.parameters() if dtype else ():  # not decoder.to(dtype): rotary frequencies stay in float32
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    if fingerprint(decoder) != description["fingerprint"]:
        raise ValueError(
            f"{folder} was trained on {description['base'] or 'another base'}, and this decoder has other weights: "
            "load that base."
        )
    model = cls.build(decoder, method, config, description["theta_init"], getattr(torch, description["adapter_dtype"]))
    model.adapter = kind
    for name in method.weight_sets if kind != "none" else ():
        adapters.load(decoder, name, folder / name)
    if method.mixing:
        _load_theta(model, folder / THETA)
    return model.eval()


@torch.no_grad()
def _load_theta(model: "Bitune", path: Path) -> None:
    """Read theta; a tensor of one number would otherwise be copied to all blocks without a word."""
    thetas = adapters.read_tensors(path)
    for name in ("theta_k", "theta_v"):
        theta = getattr(model, name)
        if name not in thetas or thetas[name].shape != theta.shape:
            found = f"has shape {tuple(thetas[name].shape)}" if name in thetas else "is missing"
            raise ValueError(
                f"{name} in {path} {found}, and this decoder needs {tuple(theta.shape)}: copy the run's whole model folder."
            )
        theta.copy_(thetas[name])
