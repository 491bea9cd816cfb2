"""What a decoder must pass before it is trained: tests of behaviour, with no list of families.

Some decoders accept a custom attention function and never call it, or let state run from one sample of the row into the
next: trained so, they would be silently causal or silently wrong. Each probe reads a few tokens with the decoder as it is
loaded and refuses what Bitune cannot serve, in a sentence that says why.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ..sample import Sample
from .attention import NAME
from .layout import Layout, Reading, reading
from .positions import Reach, reach
from .variants import VARIANTS, Method

LENGTHS = (7, 4)
"""Tokens of the two probe prompts, start token included."""


def prepare(decoder: PreTrainedModel) -> tuple[list[str], Reach]:
    """Give a decoder Bitune's attention, and refuse it if it cannot be served.

    Returns:
        the names of its attention modules, in the order of the blocks, and how many positions it has.

    Raises:
        ValueError: if the decoder cannot be served; the sentence says why.
    """
    with refusing(decoder):
        decoder.set_attn_implementation(NAME)
    with evaluating(decoder), refusing(decoder):
        modules = _calls_attention_once_a_block(decoder)
        _is_what_it_says(decoder, modules)
        _keeps_samples_apart(decoder)
        _caches_what_attention_sees(decoder)
        _follows_the_pattern(decoder)
        positions = reach(decoder, Layout.build(samples(decoder), VARIANTS["plain"], decoder.device))
    names = {id(module): name for name, module in decoder.named_modules()}
    return [names[id(module)] for module in modules], positions


@contextmanager
def refusing(decoder: PreTrainedModel) -> Iterator[None]:
    """Say which decoder is refused, whatever the reason."""
    try:
        yield
    except Exception as error:
        kind = decoder.config.model_type
        reason = str(error).strip().rstrip(".").splitlines()
        raise ValueError(
            f"This decoder ({kind}) cannot be served: {reason[0] if reason else type(error).__name__}."
        ) from error


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients, and back to what was."""
    training = {m: m.training for m in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for m, was in training.items():
            m.training = was


def samples(decoder: PreTrainedModel, shift: int = 0) -> list[Sample]:
    """Two short samples; with `shift`, the last prefilled token of the first prompt is another one."""
    vocab = decoder.get_input_embeddings().weight.shape[0]
    prompts = [(torch.arange(length) * 7 + 3) % vocab for length in LENGTHS]
    prompts[0][-2] = (prompts[0][-2] + shift) % vocab
    return [Sample(prompt, [(prompt[:3] + 1) % vocab]) for prompt in prompts]


class Trace:
    """What one forward pass showed: the last hidden state, and the keys and values that attention saw in each block."""

    def __init__(self, decoder: PreTrainedModel, batch: list[Sample], method: Method):
        self.modules: list[nn.Module] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.layout = Layout.build(batch, method, decoder.device)
        half = torch.full((decoder.config.get_text_config().num_hidden_layers,), 0.5, device=decoder.device)
        with reading(Reading(self.layout, half, half, self._record)):
            output = decoder.get_decoder()(
                input_ids=self.layout.input_ids, position_ids=self.layout.position_ids, use_cache=False
            )
        self.hidden = output[0]

    def _record(self, module: nn.Module, key: Tensor, value: Tensor, *_: Tensor) -> None:
        self.modules.append(module)
        self.keys.append(key)
        self.values.append(value)


def _calls_attention_once_a_block(decoder: PreTrainedModel) -> list[nn.Module]:
    modules = Trace(decoder, samples(decoder), VARIANTS["plain"]).modules
    blocks = decoder.config.get_text_config().num_hidden_layers
    if [getattr(module, "layer_idx", None) for module in modules] != list(range(blocks)):
        raise ValueError(
            f"attention was looked up in transformers' interface {len(modules)} times in {blocks} blocks, so the second "
            "reading would be causal, or not attention, in the others"
        )
    return modules


def _is_what_it_says(decoder: PreTrainedModel, modules: list[nn.Module]) -> None:
    if not getattr(decoder.get_decoder(), "_supports_flash_attn", False):
        raise ValueError("its attention cannot do without masks of its own, which say more than the keywords it passes")
    if decoder.get_decoder() is decoder:
        raise ValueError("its get_decoder() does not tell the blocks from the output layer")
    if any(getattr(module, "is_causal", True) is False for module in modules):
        raise ValueError("it was pretrained with attention that sees later tokens, so it has no causal pass")


def _keeps_samples_apart(decoder: PreTrainedModel) -> None:
    both = samples(decoder)
    together = Trace(decoder, both, VARIANTS["plain"])
    first, answers, _ = together.layout.regions
    alone = [Trace(decoder, [sample], VARIANTS["plain"]) for sample in both]
    apart = torch.cat([trace.hidden[0, trace.layout.regions[0] :] for trace in alone])
    off = distance(together.hidden[0, first : first + answers], apart)
    if off > tolerance(decoder):
        raise ValueError(f"samples that share a row change each other (relative difference {off:.1e})")


def _caches_what_attention_sees(decoder: PreTrainedModel) -> None:
    sample, cache = samples(decoder)[0], DynamicCache()
    seen = Trace(decoder, [sample], VARIANTS["plain"])
    read = seen.layout.input_ids[:, : LENGTHS[0] - 1]
    decoder.get_decoder()(input_ids=read, cache=cache, use_cache=True)
    wrong = "it caches other keys and values than its attention sees, so mixed ones cannot be decoded from"
    if len(cache.layers) != len(seen.keys) or not all(layer.is_initialized for layer in cache.layers):
        raise ValueError(wrong)
    for layer, key, value in zip(cache.layers, seen.keys, seen.values, strict=True):
        for cached, row in ((layer.keys, key), (layer.values, value)):
            row = row[:, :, : read.shape[1]]
            if cached.shape != row.shape or distance(cached, row) > tolerance(decoder):
                raise ValueError(wrong)


def _follows_the_pattern(decoder: PreTrainedModel) -> None:
    """The leak test: a later token reaches earlier ones in the second pass, and never in the causal pass."""
    one, other = (Trace(decoder, samples(decoder, shift)[:1], VARIANTS["bitune"]) for shift in (0, 1))
    first, answers, _ = one.layout.regions
    before = LENGTHS[0] - 2  # tokens before the one that changed
    causal, second = slice(0, before), slice(first + answers, first + answers + before)
    for block, (a, b) in enumerate(zip(one.keys, other.keys, strict=True)):
        if distance(a[:, :, causal], b[:, :, causal]) > tolerance(decoder):
            raise ValueError(f"its causal pass sees later tokens (block {block})")
        if block and torch.equal(a[:, :, second], b[:, :, second]):
            raise ValueError(
                f"its second pass does not see later tokens (block {block}): it ignores the attention pattern"
            )


def distance(a: Tensor, b: Tensor) -> float:
    """Relative difference of two tensors of one shape, by their norms."""
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def tolerance(decoder: PreTrainedModel) -> float:
    """What rounding may do to a deep decoder in its own type."""
    return 0.05 if torch.finfo(decoder.dtype).bits <= 16 else 1e-4
