"""A trained model as a folder: everything but the base.

    causal/           a PEFT adapter in PEFT's own format
    bidirectional/    the same, where the second reading has weights of its own
    theta.safetensors theta_k and theta_v, where the method mixes
    start_token.safetensors  the embedding of the start token, where it is a new one
    bitune.json       method, adapter, theta_init, base and its fingerprint, versions

Nothing is pickled.
"""

import json
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from .. import __version__
from . import adapter_files, adapters, start_token
from .backbone import lasting_name, load_decoder, name_of_dtype
from .fingerprint import differences, fingerprint
from .quantization import quantization_of
from .variants import Method, resolve

if TYPE_CHECKING:
    from .model import Bitune

DESCRIPTION, THETA, START = "bitune.json", "theta.safetensors", "start_token.safetensors"


def save(model: "Bitune", folder: Path) -> None:
    """Write a model, its base excepted."""
    folder.mkdir(parents=True, exist_ok=True)
    if model.adapter != "none":
        for name in model.method.weight_sets:
            adapter_files.save(model.decoder, name, folder / name)
    for part, own in _own_tensors(model).items():
        save_file({name: tensor.detach().cpu() for name, tensor in own.items()}, folder / part)
    description = {
        "method": asdict(model.method),
        "adapter": model.adapter,
        "adapter_dtype": name_of_dtype(_adapter_dtype(model)),
        "theta_init": model.theta_init,
        "start_token": None if model.start_token_id is None else start_token.NAME,
        "base": lasting_name(model.decoder.name_or_path),
        "dtype": name_of_dtype(model.decoder.dtype),
        "quantization": quantization_of(model.decoder),
        "fingerprint": model.base_fingerprint,
        "versions": {"bitune_pl": __version__, **{name: version(name) for name in ("torch", "transformers", "peft")}},
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def _own_tensors(model: "Bitune") -> dict[str, dict[str, Tensor]]:
    """What is trained and belongs to no set of weights, by the file that holds it."""
    parts: dict[str, dict[str, Tensor]] = {}
    if model.method.mixing:
        parts[THETA] = {"theta_k": model.theta_k, "theta_v": model.theta_v}
    if model.start_token_id is not None:
        parts[START] = {"start_token": model.decoder.get_input_embeddings().start_token.weight}
    return parts


def _adapter_dtype(model: "Bitune") -> torch.dtype:
    return next((p.dtype for p in adapters.owned(model.decoder, "causal").values()), torch.float32)


_KINDS = {"method": dict, "adapter": str, "adapter_dtype": str, "theta_init": int | float, "base": str, "dtype": str}
_KINDS |= {"fingerprint": str}
_DTYPES = ("float16", "bfloat16", "float32", "float64")


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
    for name, kind in _KINDS.items():
        if not isinstance(found[name], kind) or (kind is str and "dtype" in name and found[name] not in _DTYPES):
            raise ValueError(f"{path} says {name} is {found[name]!r}: copy the run's whole model folder again.")
    if lacking := [field.name for field in dataclass_fields(Method) if field.name not in found["method"]]:
        raise ValueError(f"{path} lacks {', '.join(lacking)} of the method: copy the run's whole model folder again.")
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
    config = _one_config(folder, method.weight_sets, kind)
    needed = {THETA: method.mixing, START: description.get("start_token") is not None}
    if missing := [part for part, is_needed in needed.items() if is_needed and not (folder / part).is_file()]:
        raise FileNotFoundError(f"{folder} lacks {' and '.join(missing)}: copy the run's whole model folder.")
    if decoder is None:
        kept = getattr(torch, description["dtype"])
        decoder = load_decoder(description["base"], dtype or kept, device, description.get("quantization"))
    elif device is not None:
        decoder = decoder.to(device)
    for parameter in decoder.parameters() if dtype else ():  # not decoder.to(dtype): rotary frequencies stay in float32
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    _check_base(decoder, description, folder)
    model = cls.build(
        decoder,
        method,
        config,
        description["theta_init"],
        getattr(torch, description["adapter_dtype"]),
        start_token=description.get("start_token"),
    )
    model.adapter = kind
    for name in method.weight_sets if kind != "none" else ():
        adapter_files.load(decoder, name, folder / name)
    for part, own in _own_tensors(model).items():
        _load_own(own, folder / part)
    return model.eval()


def _check_base(decoder: PreTrainedModel, description: dict, folder: Path) -> None:
    try:
        other = differences(description["fingerprint"], fingerprint(decoder))
    except ValueError as error:
        raise ValueError(f"{folder} {error}.") from None
    packed, kept, dtype = description.get("quantization"), description["dtype"], name_of_dtype(decoder.dtype)
    if other and packed and packed == quantization_of(decoder) and kept != dtype:
        raise ValueError(
            f"{folder} was trained on a base packed in {packed} from {kept}, and packed from {dtype} it has other {other}: leave "
            "the dtype out."
        )
    if other:
        raise ValueError(
            f"{folder} was trained on {description['base'] or 'another base'}, and this decoder has other {other}: "
            "load that base."
        )


def _one_config(folder: Path, weight_sets: tuple[str, ...], kind: str) -> adapters.Config:
    """The configuration that all sets of weights share."""
    first, *others = (adapter_files.read_config(folder / name, kind) for name in weight_sets)
    if any(other != first for other in others):
        raise ValueError(
            f"{folder} holds sets of weights with different settings: copy the run's whole model folder again."
        )
    return first


@torch.no_grad()
def _load_own(own: dict[str, Tensor], path: Path) -> None:
    """Read tensors of the method's own; one of a single number would otherwise be copied everywhere without a word."""
    found = adapter_files.read_tensors(path)
    for name, tensor in own.items():
        if name not in found or found[name].shape != tensor.shape or not found[name].isfinite().all():
            what = f"has shape {tuple(found[name].shape)}, or holds no numbers" if name in found else "is missing"
            raise ValueError(
                f"{name} in {path} {what}; this decoder needs {tuple(tensor.shape)}: copy the run's whole model folder."
            )
        tensor.copy_(found[name])
