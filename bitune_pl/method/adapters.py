"""Sets of weights on one decoder: LoRA, DoRA, IA3 and whatever else PEFT can do, or full copies; the only file that speaks PEFT.

`causal` and `bidirectional` are two PEFT adapters on the same frozen decoder. Which of them runs where is decided in
`routing.py`; how they are written to files and read, in `adapter_files.py`.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft import set_peft_model_state_dict as load_into
from peft.tuners.ia3.layer import IA3Layer
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from transformers import PreTrainedModel

from .copies import FullCopies
from .low_rank import add_low_rank
from .routing import Routed, route, tuners
from .targets import all_linear, feedforward, linear_layers, matching, paper_targets

Config = PeftConfig | FullCopies | None


def _lora(decoder: PreTrainedModel, attention: Sequence[str], **settings) -> LoraConfig:
    usual = all_linear(decoder)
    if settings.get("layers_to_transform") is not None:  # PEFT takes these with a list of names only
        usual = sorted({name.rpartition(".")[2] for name in linear_layers(decoder)})
    return LoraConfig(**{"r": 8, "lora_alpha": 1, "target_modules": usual, **settings})


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
    return CONFIGS[adapter](decoder, attention, **settings)


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
    if isinstance(adapter, str):
        _check_settings(adapter, settings or {})


TYPES: dict[str, type] = {"lora": LoraConfig, "dora": LoraConfig, "ia3": IA3Config, "full": FullCopies}


def _check_settings(adapter: str, settings: dict) -> None:
    """Whether the adapter takes these settings at all; no decoder is needed to say so."""
    if "r" in settings and not (isinstance(settings["r"], int) and settings["r"] > 0):
        raise ValueError(f"The rank r of an adapter is a whole number above 0, not {settings['r']!r}.")
    try:
        TYPES.get(adapter, dict)(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The adapter {adapter} does not take these settings: {settings} ({error}).") from error
    if settings and adapter == "none":
        raise ValueError(f"The adapter none has no settings, and there are some: {settings}.")


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


def is_kind(config: Config, name: str) -> bool:
    """Whether a configuration can be that of the adapter of this name, which is its kind or `dora`."""
    return getattr(config, "use_dora", False) and name == "dora" or kind_of(config) == name


def attach(decoder: PreTrainedModel, config: Config, weight_sets: Sequence[str], dtype: torch.dtype) -> None:
    """Freeze the decoder and put one adapter for each set of weights on it, all of them trainable and in `dtype`.

    The sets are initialised one after the other from the current random state, so that they differ.
    """
    decoder.requires_grad_(False)
    if config is None:
        return
    _check_start(getattr(config, "init_lora_weights", True))
    _check_parameters(decoder, getattr(config, "target_parameters", None) or ())
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
    for name in weight_sets:
        _check_names(decoder, name)
    route(decoder, _routed)


def _check_parameters(decoder: PreTrainedModel, targets: Sequence[str]) -> None:
    """Refuse target_parameters that match nothing, which PEFT would pass over."""
    names = [name for name, _ in decoder.named_parameters()]
    if unknown := [target for target in targets if not matching(names, [target])]:
        raise ValueError(f"No parameter of this decoder is named like {unknown[0]!r}: correct target_parameters.")


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


def peft_config(decoder: PreTrainedModel, name: str) -> PeftConfig | None:
    """PEFT's configuration of one set of weights; None for full copies, and where there is none."""
    return getattr(decoder, "peft_config", {}).get(name)


def settings_of(decoder: PreTrainedModel, name: str) -> dict[str, str]:
    """The settings of one set of weights in words that are the same in every process; none for full copies."""
    config = peft_config(decoder, name)
    said = config.to_dict() if config else {}
    return {key: str(sorted(value) if isinstance(value, set) else value) for key, value in sorted(said.items())}


def read_peft_config(folder: Path) -> PeftConfig:
    """The configuration in a folder that PEFT wrote."""
    return PeftConfig.from_pretrained(str(folder))


def state(decoder: PreTrainedModel, name: str) -> dict[str, Tensor]:
    """One set of weights under names without the set's, as files hold them."""
    if peft_config(decoder, name):
        return get_peft_model_state_dict(decoder, adapter_name=name, save_embedding_layers=False)
    return {key.replace(f".copies.{name}.", "."): parameter for key, parameter in owned(decoder, name).items()}


@torch.no_grad()
def set_state(decoder: PreTrainedModel, name: str, tensors: dict[str, Tensor]) -> None:
    """Read one set of weights from tensors named as in `state`."""
    if peft_config(decoder, name):
        load_into(decoder, tensors, adapter_name=name)
        return
    for key, parameter in state(decoder, name).items():
        parameter.copy_(tensors[key])


def _check_names(decoder: PreTrainedModel, name: str) -> None:
    """PEFT finds a set's tensors by name; a module of that name would empty or fill up what it writes."""
    written, held = len(state(decoder, name)), len(owned(decoder, name))
    if written != held:
        raise ValueError(
            f"PEFT would write {written} tensors for the {name} weights where the decoder holds {held}: a module of this "
            "decoder is itself called like a set of weights; rename it."
        )
