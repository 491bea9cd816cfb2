"""Continuing a prompt (paper, Algorithm 1): read it twice, mix, then decode causally from the mixed cache.

The cache is an ordinary one of transformers, so that its own `generate` does the rest: sampling, beams, stop strings. The
last prompt token, the start token, is not prefilled; it is the first input of the answer.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import LongTensor, Tensor
from transformers import DynamicCache, GenerationConfig, StoppingCriteria, StoppingCriteriaList, StopStringCriteria

from ..sample import Sample
from . import probes, start_token
from .vocabulary import check_ids

if TYPE_CHECKING:
    from .model import Bitune


_ASSISTED = (
    "cannot be used with Bitune.generate: transformers decodes wrongly from a cache that is already filled when it is "
    "assisted."
)


_MADE = ("attention_mask", "inputs", "input_ids", "inputs_embeds", "position_ids", "past_key_values", "cache")
"""What `decoder.generate` is given here and not by the caller."""

_NO_TOKEN = 2**31 - 1
"""An id that no decoder generates: what follows a finished beam, so that it is told from an end token of its own."""


def prefill(model: "Bitune", prompts: Sequence[LongTensor]) -> tuple[DynamicCache, Int[Tensor, "batch prompt"]]:
    """Read prompts and keep their mixed keys and values.

    Args:
        prompts: token ids of each, 1-D, the start token (which is not read) last.

    Returns:
        a cache of `max(len(prompt)) - 1` tokens for each prompt, shorter ones padded on the left, and the mask that says which
        of them are real.

    To decode a step by hand, the decoder takes the tokens `(batch, 1)`, the start tokens first, as `input_ids`, the cache as
    `cache`, and

        attention_mask  the mask and a column of ones for each token since, this one included: `(batch, prompt + t + 1)`
        position_ids    mask.sum(1, keepdim=True) + t, of the mask as returned here, at step t from 0: `(batch, 1)`

    Without `position_ids` transformers counts the padding too, and shorter prompts are continued wrongly.

    Raises:
        ValueError: if every prompt is a start token alone, which leaves nothing to keep.
    """
    if all(len(prompt) * model.method.prompt_copies == 1 for prompt in prompts):
        raise ValueError(
            "Every prompt is a start token alone, so there is nothing to prefill: decode from the start tokens."
        )
    with probes.evaluating(model):
        blocks: list[tuple[Tensor, Tensor]] = []
        layout, *_ = model.read([Sample(prompt) for prompt in prompts], lambda *seen: blocks.append(seen[3:]))
    cache, device = DynamicCache(), model.decoder.device  # made without a config, sliding layers keep the whole prompt
    for block, (key, value) in enumerate(blocks):
        cache.update(_pad(key, layout.prompts), _pad(value, layout.prompts), block)
    width = max(layout.prompts)
    mask = torch.stack([torch.arange(width) >= width - length for length in layout.prompts])
    return cache, mask.long().to(device)


def _pad(row: Tensor, lengths: list[int]) -> Tensor:
    """Cut `(1, kv_heads, tokens, head_dim)` into one left-padded entry of a batch per prompt."""
    padded = row.new_zeros(len(lengths), row.shape[1], max(lengths), row.shape[3])
    for entry, piece in zip(padded, row[0].split(lengths, dim=1), strict=True):
        entry[:, padded.shape[2] - piece.shape[1] :] = piece
    return padded


def generate(model: "Bitune", prompts: Sequence[LongTensor], **generate_kwargs) -> list[LongTensor]:
    """Continue prompts with any generation option of transformers that a filled cache allows.

    Args:
        prompts: token ids of each, 1-D, the start token last.
        generate_kwargs: as for `decoder.generate`.

    Returns:
        the new tokens of each prompt, 1-D, the end-of-sequence token included; with several return sequences those of the
        first prompt come first.

    Raises:
        ValueError: if a prompt is empty or too long with its new tokens, or an option asks for something else than token ids.
    """
    if not len(prompts):
        return []
    if generate_kwargs.get("return_dict_in_generate"):
        raise ValueError("Bitune.generate returns token ids only: leave out return_dict_in_generate.")
    if generate_kwargs.get("use_cache") is False:
        raise ValueError("Bitune.generate decodes from its mixed cache: leave out use_cache=False.")
    if generate_kwargs.get("assistant_model") is not None:
        raise ValueError(f"assistant_model {_ASSISTED}")
    if made := [name for name in _MADE if generate_kwargs.get(name) is not None]:
        raise ValueError(f"Bitune.generate makes {made[0]} itself from prompts without padding: leave it out.")
    prompts = [Sample(prompt).prompt for prompt in prompts]
    check_ids(model.decoder, prompts)
    start_token.check_prompts(model.decoder, prompts)
    config = _config(model, generate_kwargs)
    if config.prompt_lookup_num_tokens or config.assistant_early_exit:
        raise ValueError(f"prompt_lookup_num_tokens and assistant_early_exit {_ASSISTED}")
    padding = (
        config.pad_token_id if (config.num_beams or 1) == 1 else _NO_TOKEN
    )  # beams are padded after their end only
    settings = {**generate_kwargs, "pad_token_id": padding, "cache_implementation": None, "use_cache": True}
    copies = model.method.prompt_copies
    width = max(len(prompt) for prompt in prompts) * copies
    model.reach.check(
        _last_position(config, width),
        "The longest prompt with its new tokens",
        "shorten the prompt or ask for fewer new tokens",
    )
    ids = torch.full((len(prompts), width), config.pad_token_id, dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[width - len(prompt) * copies :] = prompt.repeat(copies)
    mask, cached = torch.ones(len(prompts), 1, dtype=torch.long, device=model.decoder.device), {}
    with probes.evaluating(model), start_token.in_logits(model.decoder):
        if width > 1:
            cache, read = prefill(model, prompts)
            cache.batch_repeat_interleave(max(config.num_beams or 1, config.num_return_sequences or 1))
            mask, cached = torch.cat([read, mask], dim=1), {"cache": cache}
        stops = _Stops.take(settings, config)
        out = model.decoder.generate(ids.to(mask.device), attention_mask=mask, **cached, **settings)
    return [_until_end(row[width : stops.ends.get(i)], config) for i, row in enumerate(out)]


class _Stops(StoppingCriteria):
    """Stop strings and a caller's own criteria, with a note of where each row met one: what follows there is padding.

    Beams change places while they are searched, so that they keep transformers' own way; `_NO_TOKEN` pads them.
    """

    def __init__(self, criteria: StoppingCriteriaList):
        self.criteria, self.ends = criteria, {}

    @classmethod
    def take(cls, settings: dict, config: GenerationConfig) -> "_Stops":
        """Take the criteria out of the settings of a call and stand in for them."""
        stops = cls(StoppingCriteriaList(settings.get("stopping_criteria") or []))
        if (config.num_beams or 1) == 1:
            if config.stop_strings and settings.get("tokenizer") is not None:
                stops.criteria.append(StopStringCriteria(settings["tokenizer"], config.stop_strings))
                settings["stop_strings"] = None
            if stops.criteria:
                settings["stopping_criteria"] = StoppingCriteriaList([stops])
        return stops

    def __call__(self, input_ids: LongTensor, scores: tuple | Tensor | None, **kwargs) -> Tensor:
        met = self.criteria(input_ids, scores, **kwargs)
        for row in met.nonzero().flatten().tolist():
            self.ends.setdefault(row, input_ids.shape[1])
        return met


def _config(model: "Bitune", generate_kwargs: dict) -> GenerationConfig:
    """The settings that will be in force: those of the call, then of its `generation_config`, then of the decoder."""
    defaults = model.decoder.generation_config
    config = copy.deepcopy(generate_kwargs.get("generation_config") or defaults)
    config.update(**defaults.to_dict(), defaults_only=True)
    config.update(**{name: value for name, value in generate_kwargs.items() if name != "generation_config"})
    if config.pad_token_id is None:
        config.pad_token_id = next(iter(_ends(config)), 0)
    return config


def _last_position(config: GenerationConfig, width: int) -> int:
    """Positions that are read if nothing ends an answer early; the last new token is not read."""
    new = width + config.max_new_tokens if config.max_new_tokens else max(config.max_length or 0, width + 1)
    return new - 1


def _ends(config: GenerationConfig) -> list[int]:
    ends = config.eos_token_id
    return (
        []
        if ends is None
        else [int(end) for end in (ends if isinstance(ends, list | tuple) else torch.as_tensor(ends).view(-1))]
    )


def _until_end(new: LongTensor, config: GenerationConfig) -> LongTensor:
    """Cut what pads a finished row."""
    beyond = ((new == _NO_TOKEN) | (new < 0)).nonzero()  # below 0: beams without an end token, whatever their padding
    new = new[: int(beyond[0])] if len(beyond) else new
    ends = torch.isin(new, torch.tensor(_ends(config), device=new.device, dtype=new.dtype)).nonzero()
    return new[: int(ends[0]) + 1] if len(ends) else new
