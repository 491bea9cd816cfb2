"""A small random copy of a decoder: its configuration with two layers, and weights in which a wrong method cannot hide.

Of several kinds of layers two different ones are kept. The window is shorter than the prompts of `ladder.py`, the vocabulary
is small, and where that leaves too much for a quick answer, experts, the inner width and the number of heads are reduced,
never the size of a head or the ratios that a family relies on. Nothing is downloaded: the configuration is enough.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

LAYERS, WINDOW, VOCABULARY, EXPERTS, INNER, HEADS, GROUP = 2, 5, 512, 4, 256, 2, 4
ENOUGH = 8_000_000
"""Parameters up to which the sizes of the layers stay as they are."""

INNER_SIZES = ("intermediate_size", "ffn_dim", "n_inner")


class Shrunk:
    """A configuration made small; what was changed is in `changes`, by name: the value before and after."""

    def __init__(self, config: PreTrainedConfig):
        self.config, self.changes = copy.deepcopy(config), {}
        self.text = self.config.get_text_config()
        for step in (self._two_layers, self._window, self._vocabulary, self._nothing_random):
            step()
        for step in (self._experts, self._inner, self._heads):
            if parameters(self.config) > ENOUGH:
                step()

    def _set(self, name: str, value: Any) -> None:
        before = getattr(self.text, name, None)
        if before is not None and before != value:
            setattr(self.text, name, value)
            self.changes[name] = (before, value)

    def _numbers(self, wanted: Callable[[str], bool]) -> dict[str, int]:
        """Whole numbers of the configuration by name."""
        return {n: v for n, v in vars(self.text).items() if type(v) is int and wanted(n)}

    def _two_layers(self) -> None:
        """The first layer, and the first that differs from it in anything the configuration lists layer by layer."""
        layers = self.text.num_hidden_layers
        lists = {n: v for n, v in vars(self.text).items() if isinstance(v, list | tuple) and len(v) == layers}
        differs = [i for i in range(1, layers) if any(v[i] != v[0] for v in lists.values())]
        second = (differs or [min(1, layers - 1)])[0]
        for name, values in lists.items():
            setattr(self.text, name, [values[0], values[second]])
        for part in (getattr(self.config, name, None) for name in self.config.sub_configs):
            if part is not self.text and getattr(part, "num_hidden_layers", 0) > LAYERS:
                part.num_hidden_layers = LAYERS
        self._set("num_hidden_layers", LAYERS)

    def _window(self) -> None:
        if isinstance(getattr(self.text, "sliding_window", None), int):
            self._set("sliding_window", min(WINDOW, self.text.sliding_window))

    def _vocabulary(self) -> None:
        if self.text.vocab_size <= VOCABULARY:
            return
        self._set("vocab_size", VOCABULARY)
        for place, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id")):
            if getattr(self.text, name, None) is not None:
                setattr(self.text, name, place)

    def _nothing_random(self) -> None:
        """No dropout and no noise on routers: one forward pass is to equal another."""
        for name, value in vars(self.text).items():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(self.text, name, 0.0)

    def _experts(self) -> None:
        """Few experts, and as few of them for each token that they still differ."""
        for name, count in self._numbers(lambda n: n.endswith(("num_experts", "local_experts"))).items():
            self._set(name, min(count, EXPERTS))
        for name, count in self._numbers(lambda n: n.endswith(("experts_per_tok", "moe_k"))).items():
            self._set(name, min(count, EXPERTS // 2))

    def _inner(self) -> None:
        for name, size in self._numbers(lambda n: n.endswith(INNER_SIZES)).items():
            self._set(name, min(size, INNER))

    def _heads(self) -> None:
        """Fewer heads, still in groups and of the same size, and the hidden size in proportion."""
        heads, hidden = self.text.num_attention_heads, self.text.hidden_size
        grouped = getattr(self.text, "num_key_value_heads", None)
        groups = min(grouped or heads, HEADS)
        fewer = groups * min(heads // (grouped or heads), GROUP)
        for name in (
            "word_embed_proj_dim",
            "hidden_size",
        ):  # the first is the width of the embedding, where it may differ
            if getattr(self.text, name, None) == hidden:
                self._set(name, hidden // heads * fewer)
        self._set("num_attention_heads", fewer)
        if grouped:
            self._set("num_key_value_heads", groups)


def parameters(config: PreTrainedConfig) -> int:
    """How many a decoder of this configuration has."""
    return sum(parameter.numel() for parameter in _build(config, "meta").parameters())


def _build(config: PreTrainedConfig, device: str) -> PreTrainedModel:
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def random_copy(config: PreTrainedConfig) -> PreTrainedModel:
    """A decoder of this configuration in float32, every weight drawn at random."""
    decoder = _build(config, "cpu").requires_grad_(False).eval()
    draw(decoder.parameters(), 0.25, torch.Generator().manual_seed(1))
    return decoder


@torch.no_grad()
def draw(weights, spread: float, generator: torch.Generator) -> None:
    """Matrices anew, with a standard deviation of `spread` at a width of 32, so that attention is far from uniform however
    wide the decoder is; vectors (norms, biases, factors) around where they are."""
    for weight in weights:
        noise = torch.randn(weight.shape, generator=generator)
        if sum(size > 1 for size in weight.shape) > 1:
            weight.copy_(noise * spread * (32 / max(32, weight.shape[-1])) ** 0.5)
        else:
            weight.add_(noise * spread)


def shuffle(thetas: list[nn.Parameter], generator: torch.Generator) -> None:
    """Thetas of either sign, between half and five times where the paper starts them."""
    with torch.no_grad():
        for theta in thetas:
            size = 0.005 + 0.045 * torch.rand(theta.shape, generator=generator)
            theta.copy_(size * torch.tensor([(-1.0) ** block for block in range(len(theta))]))
