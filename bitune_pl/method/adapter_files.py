"""Sets of weights as files: a PEFT adapter in PEFT's own format, or the copies of the layers that full fine-tuning trains."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from . import adapters
from .backbone import lasting_name
from .copies import FullCopies

COPIES, PREFIX = "model.safetensors", "base_model.model."
CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"


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
    config.base_model_name_or_path = lasting_name(decoder.name_or_path) or None
    config.save_pretrained(folder)


def read_config(folder: Path, kind: str) -> "adapters.Config":
    """The configuration of a set of weights that `save` wrote.

    Raises:
        FileNotFoundError: if the folder or a part of it is missing.
        ValueError: if the configuration cannot be read, or is another adapter's.
    """
    if kind == "none":
        return None
    for part in (COPIES,) if kind == "full" else (CONFIG, ADAPTER):
        if not (folder / part).is_file():
            raise FileNotFoundError(
                f"{folder} should hold the {folder.name} weights, but {part} is missing: copy the run's whole model folder."
            )
    path = folder / (COPIES if kind == "full" else CONFIG)
    with _intact(path):
        config = _copies(path) if kind == "full" else adapters.read_peft_config(folder)
    if not adapters.is_kind(config, kind):
        raise ValueError(
            f"{path} is of {adapters.kind_of(config)}, and the folder's description says {kind}: copy the run's whole model "
            "folder again."
        )
    return config


def _copies(path: Path) -> FullCopies:
    with safe_open(path, "pt") as file:
        layers = (file.metadata() or {}).get("layers")
    return FullCopies(json.loads(layers) if layers else None)


@contextmanager
def _intact(path: Path) -> Iterator[None]:
    """What a library raises over a file that it cannot make sense of, as one sentence that names the file."""
    try:
        yield
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is damaged ({reason}): copy the run's whole model folder again.") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        ValueError: if the file is damaged.
    """
    with _intact(path):
        return load_file(path)


def load(decoder: PreTrainedModel, name: str, folder: Path) -> None:
    """Read one set of weights that `save` wrote into one of the same configuration.

    Raises:
        ValueError: if a tensor is missing, too many, of another shape or not finite.
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
        if not found[key].isfinite().all():
            raise ValueError(
                f"{key} in {path} holds numbers that are not finite: copy the run's whole model folder again."
            )
    adapters.set_state(decoder, name, found)
