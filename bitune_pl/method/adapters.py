"""Sets of weights on one decoder: the only file that speaks PEFT.

`causal` and `bidirectional` are two PEFT adapters on the same frozen decoder. While a row is read, every tuner layer runs
the causal weights left of the layout's split and the bidirectional weights right of it. It pins the adapter on itself for
the length of a call and never calls `set_adapter`, which would freeze the other adapter and lose its gradient without an
error. Outside a reading the causal weights run (decoding), or those that a `Weights` context names.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft import set_peft_model_state_dict as load_into
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .layout import Reading, Weights, current
from .low_rank import add_low_rank

TUNERS = (BaseTunerLayer, AuxiliaryTrainingWrapper)


def _lora(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> LoraConfig:
    return LoraConfig(**{"r": 8, "lora_alpha": 1, "target_modules": "all-linear", **settings})


def _dora(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> LoraConfig:
    return _lora(decoder, attention, **{"use_dora": True, **settings})


def _ia3(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> IA3Config:
    head = decoder.get_output_embeddings()
    linear = [n for n, m in decoder.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
    inside = tuple(f"{name}." for name in attention)
    feedforward = [name for name in linear if not name.startswith(inside)]
    return IA3Config(**{"target_modules": linear, "feedforward_modules": feedforward, **settings})


CONFIGS: dict[str, Callable[..., PeftConfig]] = {"lora": _lora, "dora": _dora, "ia3": _ia3}
"""The paper's settings (Table 12): rank 8 and alpha 1 on all linear layers; IA3's feed-forward modules are those of the MLP."""


def configure(adapter: "str | PeftConfig", decoder: PreTrainedModel, attention: Sequence[str], settings: dict | None = None) -> PeftConfig | None:
    """The PEFT configuration of an adapter named as in the paper; None for `none`.

    Args:
        adapter: `lora`, `dora`, `ia3`, `none`, or a configuration, which is taken as it is.
        attention: names of the decoder's attention modules; a linear layer outside of them is feed-forward.
        settings: PEFT settings to use in place of the paper's.

    Raises:
        ValueError: if the name is unknown, or a setting is.
    """
    if isinstance(adapter, PeftConfig):
        return adapter
    if adapter == "none":
        return None
    if adapter not in CONFIGS:
        raise ValueError(f"There is no adapter {adapter!r}; the adapters are {', '.join([*CONFIGS, 'none'])}, or a PEFT configuration.")
    try:
        return CONFIGS[adapter](decoder, attention, **(settings or {}))
    except TypeError as error:
        raise ValueError(f"PEFT does not take these settings for {adapter}: {settings} ({error}).") from error


def attach(decoder: PreTrainedModel, config: PeftConfig | None, weight_sets: Sequence[str], dtype: torch.dtype) -> None:
    """Freeze the decoder and put one adapter for each set of weights on it, all of them trainable and in `dtype`.

    The sets are initialised one after the other from the current random state, so that they differ.
    """
    decoder.requires_grad_(False)
    if config is None:
        return
    trainable: set[str] = set()
    for name in weight_sets:
        inject_adapter_in_model(config, decoder, adapter_name=name)
        with active(decoder, name):
            for layer in _tuners(decoder):
                layer.set_adapter([name])
        trainable |= {n for n, p in decoder.named_parameters() if p.requires_grad}
    for name, parameter in decoder.named_parameters():
        if name in trainable:
            parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(name in trainable)
    _pin(_tuners(decoder), "causal")
    for layer in _outermost(decoder):
        layer.__class__ = type(f"Routed{type(layer).__name__}", (Routed, type(layer)), {})


def attached(decoder: nn.Module) -> bool:
    """Whether a decoder already carries adapters."""
    return bool(_tuners(decoder))


class Routed:
    """A PEFT layer that runs on either side of the split with that side's weights.

    Mixed into the layer's own class, so that names in state dicts stay as they are and copies stay independent.
    """

    def forward(self, x: Tensor, *args, **kwargs):
        parts = self._parts(x)
        if _is_plain_lora(self, [name for name, _ in parts]):
            return add_low_rank(self.base_layer(x, *args, **kwargs), x, [self._low_rank(*part) for part in parts])
        outputs = []
        for name, rows in parts:
            with active(self, name):
                outputs.append(super().forward(*_cut((x, *args), rows), **_cut(kwargs, rows)))
        return _join(outputs)

    def _parts(self, x: Tensor) -> list[tuple[str, slice]]:
        """Which set of weights runs on which rows (axis -2) of the input."""
        now = current()
        if now is None and torch.is_grad_enabled():
            raise RuntimeError(
                "An adapter layer ran outside of a reading while gradients are on, where it cannot know which weights to train. "
                "Call the Bitune model rather than its decoder, or turn gradients off with torch.no_grad()."
            )
        if not isinstance(now, Reading):
            return [(now.name if isinstance(now, Weights) else "causal", slice(None))]
        rows, split = now.layout.rows, now.layout.split
        if x.shape[-2] != rows:
            raise ValueError(
                f"An adapted {type(self).__name__} saw {x.shape[-2]} tokens where the row has {rows}, so it cannot tell the two "
                "readings apart: exclude this module from the adapter's target modules."
            )
        sides = [("causal", slice(0, split)), ("bidirectional", slice(split, rows))]
        return [(name, part) for name, part in sides if part.stop > part.start]

    def _low_rank(self, name: str, rows: slice) -> tuple:
        return rows, self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]


def _is_plain_lora(layer: Routed, names: Sequence[str]) -> bool:
    """Whether a layer is W x + scale B A x and nothing more, so that `add_low_rank` computes it."""
    return type(layer).__bases__[-1] is LoraLinear and not layer.merged and not layer.disable_adapters and all(
        name in layer.lora_A
        and name not in layer.lora_variant
        and layer.lora_B[name].bias is None
        and (isinstance(layer.lora_dropout[name], nn.Identity) or not layer.training)
        for name in names
    )  # fmt: skip


def _cut(what, rows: slice):
    """Rows (axis -2) of every tensor in a tuple or dict of arguments."""
    if isinstance(what, dict):
        return {key: _cut(value, rows) for key, value in what.items()}
    if isinstance(what, tuple):
        return tuple(_cut(value, rows) for value in what)
    return what[..., rows, :] if isinstance(what, Tensor) else what


def _join(outputs: list):
    """Undo `_cut` on what a layer returned for each part."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], tuple):
        return tuple(_join(list(pieces)) for pieces in zip(*outputs, strict=True))
    return torch.cat(outputs, dim=-2)


@contextmanager
def active(module: nn.Module, name: str) -> Iterator[None]:
    """Pin an adapter on all tuner layers in a module, touching no gradient flag."""
    tuners = _tuners(module)
    before = [tuner._active_adapter for tuner in tuners]
    _pin(tuners, name)
    try:
        yield
    finally:
        for tuner, was in zip(tuners, before, strict=True):
            tuner._active_adapter = was


def _pin(tuners: Sequence[nn.Module], name: str) -> None:
    for tuner in tuners:
        tuner._active_adapter = [name]


def _tuners(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.modules() if isinstance(child, TUNERS)]


def _outermost(decoder: nn.Module) -> list[nn.Module]:
    tuners = _tuners(decoder)
    nested = {id(child) for tuner in tuners for child in tuner.modules() if child is not tuner}
    return [tuner for tuner in tuners if id(tuner) not in nested]


def owned(decoder: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """Parameters of one set of weights, by their names in the decoder; read off the layers, not guessed from names."""
    homes = {
        f"{prefix}.{attribute}.{name}"
        for prefix, layer in decoder.named_modules()
        if isinstance(layer, TUNERS)
        for attribute in (*layer.adapter_layer_names, *layer.other_param_names)
        if isinstance(getattr(layer, attribute, None), nn.ModuleDict | nn.ParameterDict)
    }
    return {n: p for n, p in decoder.named_parameters() if any(n[:i] in homes for i in (*_dots(n), len(n)))}


def _dots(name: str) -> Iterator[int]:
    return (i for i, character in enumerate(name) if character == ".")


def save(decoder: PreTrainedModel, name: str, folder: Path) -> None:
    """Write one set of weights as a PEFT adapter: `adapter_config.json` and `adapter_model.safetensors`."""
    state = get_peft_model_state_dict(decoder, adapter_name=name, save_embedding_layers=False)
    if len(state) != len(owned(decoder, name)):
        raise RuntimeError(
            f"PEFT would write {len(state)} tensors for the {name} weights where the decoder holds {len(owned(decoder, name))}: "
            "a module of this decoder is probably named like a set of weights."
        )
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"base_model.model.{key}": tensor.detach().cpu().contiguous() for key, tensor in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = decoder.peft_config[name]
    config.base_model_name_or_path = decoder.name_or_path or None
    config.save_pretrained(folder)


def read_config(folder: Path) -> PeftConfig:
    """The configuration that `save` wrote.

    Raises:
        FileNotFoundError: if the folder or a part of it is missing.
    """
    for part in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / part).is_file():
            raise FileNotFoundError(f"{folder} should hold the {folder.name} weights, but {part} is missing: copy the run's whole model folder.")
    return PeftConfig.from_pretrained(str(folder))


def load(decoder: PreTrainedModel, name: str, folder: Path) -> None:
    """Read one set of weights that `save` wrote into an adapter of the same configuration.

    Raises:
        ValueError: if a tensor is missing, too many or of another shape.
    """
    tensors = load_file(folder / "adapter_model.safetensors")
    expected = {key for key in get_peft_model_state_dict(decoder, adapter_name=name, save_embedding_layers=False)}
    found = {key.removeprefix("base_model.model.") for key in tensors}
    if expected != found:
        wrong = sorted(expected ^ found)[0]
        raise ValueError(
            f"{folder} holds other tensors than this decoder's {name} weights: {len(expected - found)} missing, "
            f"{len(found - expected)} too many, {wrong} among them."
        )
    try:
        load_into(decoder, tensors, adapter_name=name)
    except RuntimeError as error:
        raise ValueError(f"The tensors in {folder} do not fit this decoder: {str(error).splitlines()[-1].strip()}") from error
