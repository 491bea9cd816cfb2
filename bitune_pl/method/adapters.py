"""Sets of weights on one decoder: LoRA, DoRA, IA3 and whatever else PEFT can do, or full copies; the only file that speaks PEFT.

`causal` and `bidirectional` are two PEFT adapters on the same frozen decoder. Which of them runs where is decided in
`routing.py`.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft import set_peft_model_state_dict as load_into
from peft.tuners.ia3.layer import IA3Layer
from peft.tuners.lora.layer import Linear as LoraLinear
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from .copies import FullCopies
from .low_rank import add_low_rank
from .routing import Routed, route, tuners
from .targets import feedforward, linear_layers, matching, paper_targets

Config = PeftConfig | FullCopies | None


def _lora(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> LoraConfig:
    return LoraConfig(**{"r": 8, "lora_alpha": 1, "target_modules": "all-linear", **settings})


def _dora(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> LoraConfig:
    return _lora(decoder, attention, **{"use_dora": True, **settings})


def _ia3(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> IA3Config:
    names, ends = linear_layers(decoder), settings.get("target_modules")
    if isinstance(ends, list | tuple):
        names = settings["target_modules"] = matching(names, ends) or list(ends)
    return IA3Config(**{"target_modules": names, "feedforward_modules": feedforward(names, attention), **settings})


def _full(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> FullCopies:
    return FullCopies(**settings)


def _none(decoder: PreTrainedModel, attention: Sequence[str]) -> None:
    return None


CONFIGS: dict[str, Callable[..., Config]] = {"lora": _lora, "dora": _dora, "ia3": _ia3, "full": _full, "none": _none}
"""The paper's settings (Tables 7 and 12): rank 8 and alpha 1 on all linear layers; IA3's feed-forward modules are those of
the MLP; `full` trains the layers themselves, one copy for each set of weights; `none` is the decoder as pretrained."""


def configure(
    adapter: "str | Config",
    decoder: PreTrainedModel,
    attention: Sequence[str],
    settings: dict | None,
    as_published: bool,
) -> Config:
    """The configuration of an adapter named as in the paper.

    Args:
        adapter: a name in `CONFIGS`, or a configuration, which is taken as it is.
        attention: names of the decoder's attention modules; a linear layer outside of them is feed-forward.
        settings: PEFT settings to use in place of the paper's.
        as_published: take the layers that the published code takes.

    Raises:
        ValueError: if the name is unknown, or a setting is, or two settings contradict each other.
    """
    check(adapter, settings, as_published)
    if not isinstance(adapter, str):
        return adapter
    settings = dict(settings or {}) | ({"target_modules": paper_targets(decoder)} if as_published else {})
    try:
        return CONFIGS[adapter](decoder, attention, **settings)
    except TypeError as error:
        raise ValueError(f"The adapter {adapter} does not take these settings: {settings} ({error}).") from error


def check(adapter: "str | Config", settings: dict | None, as_published: bool) -> None:
    """What can be said about an adapter before there is a decoder.

    Raises:
        ValueError: if the name is unknown or the settings contradict it.
    """
    if isinstance(adapter, str) and adapter not in CONFIGS:
        raise ValueError(
            f"There is no adapter {adapter!r}; the adapters are {', '.join(CONFIGS)}, or a PEFT configuration."
        )
    if as_published and (not isinstance(adapter, str) or adapter == "none"):
        raise ValueError("paper_targets chooses the layers of lora, dora, ia3 or full: leave it out here.")
    if as_published and "target_modules" in (settings or {}):
        raise ValueError("paper_targets and target_modules both choose the layers to adapt: give one of them.")
    if settings and not isinstance(adapter, str):
        raise ValueError("adapter_settings go with an adapter's name: put them into the PEFT configuration instead.")
    _check_start((settings or getattr(adapter, "__dict__", {})).get("init_lora_weights", True))


INITS = (True, False, "gaussian", "orthogonal")
"""Initialisations of LoRA that leave the base as it is. PiSSA's and OLoRA's subtract from it, once for each set of weights."""


def _check_start(init: bool | str) -> None:
    if init not in INITS:
        raise ValueError(
            f"init_lora_weights {init!r} takes its start out of the base, which two sets of weights share and a saved model "
            f"leaves as it is, or needs data: choose one of {', '.join(map(repr, INITS))}."
        )


def kind_of(config: Config) -> str:
    """A name for a configuration."""
    return config.peft_type.value.lower() if isinstance(config, PeftConfig) else "full" if config else "none"


def attach(decoder: PreTrainedModel, config: Config, weight_sets: Sequence[str], dtype: torch.dtype) -> None:
    """Freeze the decoder and put one adapter for each set of weights on it, all of them trainable and in `dtype`.

    The sets are initialised one after the other from the current random state, so that they differ.
    """
    decoder.requires_grad_(False)
    if config is None:
        return
    _check_start(getattr(config, "init_lora_weights", True))
    trainable: set[str] = set()
    for name in weight_sets:
        if isinstance(config, FullCopies):
            config.add(decoder, name)
            trainable |= set(owned(decoder, name))
        else:
            trainable |= _inject(decoder, config, name)
    for name, parameter in decoder.named_parameters():
        if name in trainable:
            parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(name in trainable)
    for name in ("get_input_embeddings", "get_output_embeddings"):
        if tuners(getattr(decoder, name)()):
            raise ValueError(
                "The embedding and the output layer see other tokens than the blocks, so no adapter can be routed on them: "
                "leave them out of target_modules and modules_to_save."
            )
    route(decoder, _routed)


def _inject(decoder: PreTrainedModel, config: PeftConfig, name: str) -> set[str]:
    """Add one PEFT adapter; returns the names of the parameters that PEFT would train."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config` attribute")
        try:
            inject_adapter_in_model(config, decoder, adapter_name=name)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"PEFT cannot put this adapter on what the decoder holds ({str(error).splitlines()[0].rstrip('.')}): name other "
                "target_modules or choose another adapter."
            ) from error
    for layer in tuners(decoder):
        layer.set_adapter([name])
    return {n for n, p in decoder.named_parameters() if p.requires_grad}


def _routed(layer: nn.Module) -> type[Routed]:
    return RoutedLora if type(layer) is LoraLinear else RoutedIA3 if isinstance(layer, IA3Layer) else Routed


class RoutedIA3(Routed):
    """An IA3 layer that returns the type it was given: over a 4-bit layer PEFT's returns float32."""

    def forward(self, x: Tensor, *args, **kwargs) -> Tensor:
        return super().forward(x, *args, **kwargs).to(x.dtype)


class RoutedLora(Routed):
    """A plain LoRA layer: the base layer runs once on the whole row, and each side's low-rank update is added to it."""

    def forward(self, x: Tensor, *args, **kwargs):
        parts = self._parts(x)
        if not all(self._is_plain(name) for name, _ in parts):
            return super().forward(x, *args, **kwargs)
        updates = [
            (rows, self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]) for name, rows in parts
        ]
        return add_low_rank(self.base_layer(x, *args, **kwargs), x, updates)

    def _is_plain(self, name: str) -> bool:
        """Whether the layer is W x + scale B A x and nothing more."""
        return (
            name in self.lora_A
            and name not in self.lora_variant
            and self.lora_B[name].bias is None
            and (isinstance(self.lora_dropout[name], nn.Identity) or not self.training)
            and not self.merged
            and not self.disable_adapters
        )


def owned(decoder: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """Parameters of one set of weights, by their names in the decoder; read off the layers, not guessed from names."""
    homes = {
        f"{prefix}.{attribute}.{name}"
        for prefix, layer in decoder.named_modules()
        if hasattr(layer, "_active_adapter")
        for attribute in (*layer.adapter_layer_names, *layer.other_param_names)
        if isinstance(getattr(layer, attribute, None), nn.ModuleDict | nn.ParameterDict)
    }
    return {n: p for n, p in decoder.named_parameters() if any(n[:i] in homes for i in (*_dots(n), len(n)))}


def _dots(name: str) -> Iterator[int]:
    return (i for i, character in enumerate(name) if character == ".")


def save(decoder: PreTrainedModel, name: str, folder: Path) -> None:
    """Write one set of weights: a PEFT adapter in PEFT's own format, or the copies of the layers in `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    state, mine = _state(decoder, name), owned(decoder, name)
    if len(state) != len(mine):
        raise RuntimeError(
            f"PEFT would write {len(state)} tensors for the {name} weights where the decoder holds {len(mine)}: a module of "
            "this decoder is named like a set of weights."
        )
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}
    if name not in _peft(decoder):
        layers = sorted({key.partition(".copies.")[0] for key in mine})
        save_file(tensors, folder / COPIES, metadata={"format": "pt", "layers": json.dumps(layers)})
        return
    save_file({f"{PREFIX}{key}": t for key, t in tensors.items()}, folder / ADAPTER, metadata={"format": "pt"})
    config = _peft(decoder)[name]
    config.base_model_name_or_path = decoder.name_or_path or None
    config.save_pretrained(folder)


COPIES, ADAPTER, PREFIX = "model.safetensors", "adapter_model.safetensors", "base_model.model."


def _peft(decoder: PreTrainedModel) -> dict[str, PeftConfig]:
    return getattr(decoder, "peft_config", {})


def _state(decoder: PreTrainedModel, name: str) -> dict[str, Tensor]:
    """One set of weights under names without the set's."""
    if name in _peft(decoder):
        return get_peft_model_state_dict(decoder, adapter_name=name, save_embedding_layers=False)
    return {key.replace(f".copies.{name}.", "."): parameter for key, parameter in owned(decoder, name).items()}


def read_config(folder: Path, kind: str) -> Config:
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
        return PeftConfig.from_pretrained(str(folder))
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
    path = folder / (ADAPTER if name in _peft(decoder) else COPIES)
    found, expected = {key.removeprefix(PREFIX): t for key, t in read_tensors(path).items()}, _state(decoder, name)
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
    if name in _peft(decoder):
        load_into(decoder, found, adapter_name=name)
        return
    with torch.no_grad():
        for key, parameter in expected.items():
            parameter.copy_(found[key])
