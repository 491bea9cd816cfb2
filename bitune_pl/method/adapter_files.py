"""Sets of weights as files: a PEFT adapter in PEFT's own format, or the copies of the layers that full fine-tuning trains."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from . import adapters
from .copies import FullCopies

COPIES, ADAPTER, PREFIX = "model.safetensors", "adapter_model.safetensors", "base_model.model."


def save(decoder: PreTrainedModel, name: str, folder: Path) -> None:
    """Write one set of weights: a PEFT adapter in PEFT's own format, or the copies of the layers in `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in adapters.state(decoder, name).items()}
    config = adapters.peft_config(decoder, name)
    if config is None:
        layers = sorted({key.partition(".copies.")[0] for key in adapters.owned(decoder, name)})
        save_file(tensors, folder / COPIES, metadata={"format": "pt", "layers": json.dumps(layers)})
        return
    save_file({f"{PREFIX}{key}": t for key, t in tensors.items()}, folder / ADAPTER, metadata={"format": "pt"})
    config.base_model_name_or_path = decoder.name_or_path or None
    config.save_pretrained(folder)


def read_config(folder: Path, kind: str) -> "adapters.Config":
    """The configuration of a set of weights that `save` wrote.

    Raises:
        FileNotFoundError: if the folder or a part of it is missing.
    """
    if kind == "none":
        return None
    for part in (COPIES,) if kind == "full" else ("adapter_config.json", ADAPTER):
        if not (folder / part).is_file():
            raise FileNotFoundError(
                f"{folder} should hold the {folder.name} weights, but {part} is missing: copy the run's whole model folder."
            )
    if kind != "full":
        return adapters.read_peft_config(folder)
    with safe_open(folder / COPIES, "pt") as file:
        layers = (file.metadata() or {}).get("layers")
    return FullCopies(json.loads(layers) if layers else None)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): copy the run's whole model folder again.") from error


def load(decoder: PreTrainedModel, name: str, folder: Path) -> None:
    """Read one set of weights that `save` wrote into one of the same configuration.

    Raises:
        ValueError: if a tensor is missing, too many or of another shape.
    """
    path = folder / (ADAPTER if adapters.peft_config(decoder, name) else COPIES)
    found = {key.removeprefix(PREFIX): tensor for key, tensor in read_tensors(path).items()}
    expected = adapters.state(decoder, name)
    if wrong := sorted(expected.keys() ^ found.keys()):
        raise ValueError(
            f"{folder} holds other tensors than this decoder's {name} weights: {len(expected.keys() - found.keys())} missing, "
            f"{len(found.keys() - expected.keys())} too many, {wrong[0]} among them."
        )
    for key, tensor in expected.items():
        if tensor.shape != found[key].shape:
            raise ValueError(
                f"{key} in {folder} has the shape {tuple(found[key].shape)}, and this decoder's {tuple(tensor.shape)}."
            )
    adapters.set_state(decoder, name, found)
