"""Bitune: a decoder, its sets of weights, and theta (paper, section 3; Algorithms 1 and 2 in one forward pass).

This file puts the parts together: `layout.py` lays out a batch, `attention.py` and `adapters.py` act in every block,
`likelihood.py` scores the answers, `generation.py` continues a prompt, `storage.py` writes and reads a folder.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float
from torch import LongTensor, Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ..sample import Sample
from . import adapters, generation, likelihood, mixing, probes, storage
from .activation_checkpointing import check_checkpointing, checkpoint_activations
from .adapters import Config
from .attention import NAME
from .fingerprint import fingerprint
from .layout import Layout, Reading, per_answer, reading
from .likelihood import Weighting
from .output_layer import output_layer
from .positions import Reach
from .quantization import check_decoder, keep_packing
from .routing import tuners
from .start_token import add_start_token, check_prompts, check_start_token, start_token_id_of
from .variants import Method, resolve
from .vocabulary import check_ids


class Bitune(nn.Module):
    """A decoder that reads its prompt as a `Method` says.

    Made by `Bitune.build` or `Bitune.from_pretrained`. What is trained are the parameters with `requires_grad`: the sets of
    weights, with mixing `theta_k` and `theta_v`, of shape `(layers,)` and float32 (equation 8), and the embedding of the start
    token if it is a new one.
    """

    def __init__(
        self, decoder: PreTrainedModel, method: Method, adapter: str, theta_init: float, base: str, reach: Reach
    ):
        super().__init__()
        self.decoder, self.method, self.adapter, self.theta_init = decoder, method, adapter, theta_init
        self.base_fingerprint, self.reach = base, reach
        layers = decoder.config.get_text_config().num_hidden_layers
        for name in ("theta_k", "theta_v"):
            theta = torch.full((layers,), theta_init, device=decoder.device, dtype=torch.float32)
            self.register_parameter(name, nn.Parameter(theta) if method.mixing else None)

    @classmethod
    def build(
        cls,
        decoder: PreTrainedModel,
        method: str | dict | Method = "bitune",
        adapter: "str | Config" = "lora",
        theta_init: float = 0.01,
        adapter_dtype: torch.dtype = torch.float32,
        adapter_settings: dict | None = None,
        start_token: str | None = None,
        paper_targets: bool = False,
    ) -> Self:
        """Put Bitune on a pretrained decoder, which it takes over.

        Args:
            decoder: a causal language model of transformers; its own weights are frozen.
            method: a variant's name, a `Method`, or its four fields.
            adapter: `lora`, `dora`, `ia3` or `full` with the paper's settings, `none` for the decoder as pretrained, or a PEFT
                configuration.
            theta_init: where theta starts and what it is measured by (equation 8).
            adapter_dtype: type of the adapters' weights.
            adapter_settings: PEFT settings to use in place of the paper's, such as `{"r": 16}`.
            start_token: None if prompts end in a token of their own, or `<sep>` for a new one whose embedding is learned; every
                prompt then ends in `model.start_token_id`.
            paper_targets: adapt the layers that the published code does (`*_proj`) and not all linear ones; see `tokens.py`.

        Raises:
            ValueError: if a name is unknown, a number out of range, or the decoder cannot be served.
        """
        method = resolve(method)
        if not 0 < theta_init < float("inf"):
            raise ValueError(f"theta_init is a number above 0, not {theta_init!r}.")
        if not isinstance(adapter_dtype, torch.dtype) or not adapter_dtype.is_floating_point:
            raise ValueError(f"adapter_dtype is a torch.dtype such as torch.float32, not {adapter_dtype!r}.")
        check_start_token(start_token)
        check_decoder(decoder, adapters.kind_of(adapter) if not isinstance(adapter, str) else adapter)
        if tuners(decoder) or start_token_id_of(decoder) is not None:
            raise ValueError(
                "This decoder already carries adapters: load it anew, or open the run's folder with Bitune.from_pretrained."
            )
        keep_packing(decoder)
        (attention, reach), base = probes.prepare(decoder), fingerprint(decoder)
        config = adapters.configure(adapter, decoder, attention, adapter_settings, paper_targets)
        adapters.attach(decoder, config, method.weight_sets, adapter_dtype)
        decoder.train(decoder.training)  # PEFT adds dropout in training mode
        model = cls(
            decoder, method, adapter if isinstance(adapter, str) else adapters.kind_of(config), theta_init, base, reach
        )
        model._freeze_unreachable()
        if start_token is not None:
            add_start_token(decoder)
        return model

    @property
    def positions(self) -> int | None:
        """Positions that the decoder was made for, and has; None where nothing limits them."""
        made_for = getattr(self.decoder.config.get_text_config(), "max_position_embeddings", None)
        return min((limit for limit in (made_for, self.reach.table, self.reach.rotary) if limit), default=None)

    @property
    def start_token_id(self) -> int | None:
        """The id in which every prompt ends, if the start token is a new one."""
        return start_token_id_of(self.decoder)

    # -- the three phases, in one forward pass ------------------------------------------------------------------------

    def read(
        self, samples: Sequence[Sample], record: Callable | None = None
    ) -> tuple[Layout, Float[Tensor, "places hidden"], Callable]:
        """Lay out samples as one row and run the decoder over it once.

        Returns:
            the layout, the last hidden state at the places that predict answers, and the decoder's output layer with its
            own scaling, a function from hidden states `(places, hidden)` to logits `(places, vocab)`.

        Raises:
            ValueError: if a sample is longer than the decoder's positions reach, its prompt ends in the wrong token, or the
                decoder's attention is no longer Bitune's.
            IndexError: if a token id is beyond the decoder's vocabulary.
        """
        prompts, answers = [sample.prompt for sample in samples], [a for sample in samples for a in sample.answers]
        check_ids(self.decoder, prompts, answers)
        check_prompts(self.decoder, prompts)
        layout = Layout.build(samples, self.method, self.decoder.device)
        self._check(layout)
        with reading(self._reading(layout, record)):
            output = self.decoder.get_decoder()(
                input_ids=layout.input_ids, position_ids=layout.position_ids, use_cache=False
            )
        first, answers, _ = layout.regions
        hidden = output.last_hidden_state[0, first : first + answers]
        return layout, hidden, output_layer(self.decoder, type(output))

    def _reading(self, layout: Layout, record: Callable | None) -> Reading:
        if not self.method.mixing:
            return Reading(layout, record=record)
        alphas = (mixing.alpha(theta, self.theta_init) for theta in (self.theta_k, self.theta_v))
        return Reading(layout, *alphas, record=record)

    def _check(self, layout: Layout) -> None:
        implementation = self.decoder.get_decoder().config._attn_implementation
        if implementation != NAME:
            raise ValueError(
                f"The decoder's attention is set to {implementation!r}, which reads a prompt causally whatever the method: "
                f"set it back with decoder.set_attn_implementation({NAME!r})."
            )
        self.reach.check(layout.longest)
        if torch.is_grad_enabled() and self.training:
            check_checkpointing(self.decoder)

    # -- answers ------------------------------------------------------------------------------------------------------

    def answer_logits(self, samples: Sequence[Sample]) -> list[list[Float[Tensor, "_ vocab"]]]:
        """Logits of each answer of each sample; row t predicts answer token t."""
        if not len(samples):
            return []
        layout, hidden, head = self.read(samples)
        return per_answer(layout.spread(head(hidden)), layout)

    def log_likelihood(self, samples: Sequence[Sample]) -> list[list[Float[Tensor, "_"]]]:
        """Log-probability of each token of each answer of each sample, in float32 or wider."""
        if not len(samples):
            return []
        layout, hidden, head = self.read(samples)
        tokens = [answer for sample in samples for answer in sample.answers]
        tokens = torch.cat(tokens).to(hidden.device) if tokens else layout.input_ids[0, :0]
        output = self.decoder.get_output_embeddings()
        frozen, vocab = not any(p.requires_grad for p in output.parameters()), output.weight.shape[0]
        return per_answer(likelihood.log_likelihood(layout.spread(hidden), tokens, head, frozen, vocab), layout)

    def loss(
        self, samples: Sequence[Sample], weighting: Weighting = "sample", denominator: float | None = None
    ) -> Float[Tensor, ""]:
        """The training objective; see `likelihood.loss`."""
        if denominator is not None and not denominator > 0:
            raise ValueError(
                "denominator is the number of answers (or learned tokens) of the whole update, which is above 0, not "
                f"{denominator!r}."
            )
        return likelihood.loss(self.log_likelihood(samples), weighting, denominator)

    forward = loss

    def prefill(self, prompts: Sequence[LongTensor]) -> tuple[DynamicCache, LongTensor]:
        """The mixed keys and values of prompts, all tokens but each prompt's last, and the mask of those that are real.

        To decode, append ones to the mask for the tokens that follow, the start token first, and give their positions, which
        count real tokens only: `position_ids=mask.sum(1, keepdim=True)` for the start token; see `generation.prefill`.
        """
        return generation.prefill(self, prompts)

    def generate(self, prompts: Sequence[LongTensor], **generate_kwargs) -> list[LongTensor]:
        """Continue prompts; see `generation.generate`."""
        return generation.generate(self, prompts, **generate_kwargs)

    # -- weights ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def alphas(self) -> dict[str, Float[Tensor, "layers"]]:
        """Share of the second reading in keys and values of each block (equation 8); empty without mixing."""
        thetas = {"alpha_k": self.theta_k, "alpha_v": self.theta_v} if self.method.mixing else {}
        return {name: mixing.alpha(theta, self.theta_init) for name, theta in thetas.items()}

    def checkpoint_activations(self) -> None:
        """Keep no activations within a block but compute them again in the backward pass: less memory, more time."""
        checkpoint_activations(self.decoder)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write everything but the base; see `storage.save`."""
        storage.save(self, Path(folder))

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        decoder: PreTrainedModel | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Open a folder that `save_pretrained` wrote; see `storage.load`."""
        return storage.load(cls, Path(folder), decoder, dtype, device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `bfloat16`, `cuda` and others call: theta moves along, and is never narrower than float32."""
        thetas = [theta for theta in (self.theta_k, self.theta_v) if theta is not None]
        kept = [(t, t.detach().clone(), None if t.grad is None else t.grad.clone()) for t in thetas]
        super()._apply(fn, recurse)
        for theta, value, grad in kept:
            if torch.promote_types(theta.dtype, torch.float32) != theta.dtype:
                device, theta.grad = theta.device, None
                theta.data = value.to(device, torch.float32)
                theta.grad = None if grad is None else grad.to(device, torch.float32)
        return self

    def _freeze_unreachable(self) -> None:
        """Freeze the bidirectional weights behind the last block's keys and values: nothing of them reaches an answer."""
        if not self.method.separate_weights:
            return
        kept: list[tuple[Tensor, Tensor]] = []
        with torch.enable_grad():
            layout, *_ = self.read(probes.samples(self.decoder), lambda _, k, v, *mixed: kept.append((k, v)))
            second = sum(layout.regions[:2])
            last = sum(x[:, :, second:].float().sum() for x in kept[-1])
            weights = list(adapters.owned(self.decoder, "bidirectional").values())
            reached = (
                torch.autograd.grad(last, weights, allow_unused=True)
                if weights and last.requires_grad
                else [None] * len(weights)
            )
        for weight, gradient in zip(weights, reached, strict=True):
            weight.requires_grad_(weight.requires_grad and gradient is not None)
