"""The scalars of each update, on an axis that counts updates and goes on when a run is resumed.

`loss/train` is the loss of the whole update, micro-batches and ranks together; `alpha_k/layer_03` and the like say how
much of each block's keys and values comes from the second pass (equation 8; the paper's Figures 2 and 3). What lies on
the accelerator is stacked and moved once an update, however many scalars there are.
"""

import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from bitune_pl.method import adapters
from bitune_pl.method.model import Bitune
from bitune_pl.training.dashboard.events import log_scalars, validates_a_training


class UpdateLog(Callback):
    """Measures every update, and logs every `trainer.log_every_n_steps`th.

    `latest` are the scalars of the last update, `alphas` those of the blocks that were logged last (empty without
    mixing), first those at update 0, before training. Seconds and tokens count from the start of the run, resumed or
    not, validations left out.
    """

    def __init__(self) -> None:
        self.seconds, self.tokens, self.memory = 0.0, 0, 0.0
        self.latest: dict[str, float] = {}
        self.alphas: dict[str, list[float]] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.parts = _parts(pl_module.model)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.updates, self.gradients = trainer.global_step, {}
        self.alphas = to_host(pl_module.model.alphas())
        if trainer.global_step == 0 and self.alphas:
            log_scalars(trainer, by_block(self.alphas))
        self.start = time.perf_counter()
        self._begin()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer) -> None:
        """The last moment at which gradients are whole, and the learning rate is that of this update."""
        self.rate = optimizer.param_groups[0]["lr"]
        if self._is_logged(trainer, trainer.global_step + 1):
            self.gradients = gradient_norms(self.parts)

    def on_train_batch_end(self, trainer, pl_module, outputs: dict[str, Tensor], batch, batch_idx: int) -> None:
        self.loss += outputs["share"]
        self.tokens_of_update += sum(len(s.prompt) + sum(map(len, s.answers)) for s in batch.samples)
        if trainer.global_step == self.updates:
            return
        self.updates = trainer.global_step
        is_logged = self._is_logged(trainer, self.updates)
        found = to_host(self._measured(trainer, pl_module, is_logged))
        self.latest = self._scalars(found, pl_module.device)
        if is_logged:
            self.alphas = {name: found[name] for name in ("alpha_k", "alpha_v") if name in found}
            norms = {name: value for name, (value, *_) in found.items() if name.startswith("gradient_norm/")}
            log_scalars(trainer, self.latest | norms | by_block(self.alphas))
        self._begin()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if validates_a_training(trainer):
            scores = {n: v for n, v in trainer.callback_metrics.items() if n.endswith("/validation")}
            log_scalars(trainer, {name: value for name, (value,) in to_host(scores).items()})
            self.start = time.perf_counter()  # the time of a validation is not the time of an update

    def leave_out(self, seconds: float) -> None:
        """Time that was spent on something else than the update under way."""
        self.start += seconds

    def _begin(self) -> None:
        self.loss, self.tokens_of_update = 0.0, 0

    def _is_logged(self, trainer: Trainer, update: int) -> bool:
        return update % trainer.log_every_n_steps == 0

    def _measured(self, trainer: Trainer, pl_module: LightningModule, is_logged: bool) -> dict[str, Tensor]:
        """What lies on the accelerator; loss and tokens are summed over ranks, all else is the same on each."""
        tokens = torch.full_like(self.loss, self.tokens_of_update, dtype=torch.float32)
        loss, tokens = trainer.strategy.reduce(torch.stack([self.loss.float(), tokens]), reduce_op="sum")
        more = {"gradient_norm/all": pl_module.gradient_norm} | self.gradients | pl_module.model.alphas()
        return {"loss": loss, "tokens": tokens} | (more if is_logged else {})

    def _scalars(self, found: dict[str, list[float]], device: torch.device) -> dict[str, float]:
        now, tokens = time.perf_counter(), int(found["tokens"][0])
        seconds, self.start = now - self.start, now
        self.seconds, self.tokens = self.seconds + seconds, self.tokens + tokens
        self.memory = max(self.memory, peak_memory(device))
        return {
            "loss/train": found["loss"][0],
            "learning_rate": self.rate,
            "tokens_per_second": tokens / seconds,
            "cost/seconds": self.seconds,
            "cost/tokens": self.tokens,
            "cost/peak_memory_gb": self.memory,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "tokens": self.tokens, "memory": self.memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.tokens, self.memory = state["seconds"], state["tokens"], state.get("memory", 0.0)


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """The values of tensors of any shape, moved from their device at once."""
    if not tensors:
        return {}
    flat = [tensor.detach().flatten().float() for tensor in tensors.values()]
    values, sizes = iter(torch.cat(flat).tolist()), [len(part) for part in flat]
    return {name: [next(values) for _ in range(size)] for name, size in zip(tensors, sizes, strict=True)}


def by_block(alphas: Mapping[str, list[float]]) -> dict[str, float]:
    """`{"alpha_k/layer_00": 0.5, ..., "alpha_k/mean": 0.5, "alpha_k/minimum": ...}`; names sort like the blocks."""
    found = {}
    for name, values in alphas.items():
        width = max(2, len(str(len(values) - 1)))
        found |= {f"{name}/layer_{layer:0{width}d}": value for layer, value in enumerate(values)}
        found |= {
            f"{name}/mean": sum(values) / len(values),
            f"{name}/minimum": min(values),
            f"{name}/maximum": max(values),
        }
    return found


def gradient_norms(parts: Mapping[str, list[nn.Parameter]]) -> dict[str, Tensor]:
    """`gradient_norm/theta` and one for each set of weights, `gradient_norm/causal` and so on; left on their device."""
    norms = {}
    for name, weights in parts.items():
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norms |= {f"gradient_norm/{name}": nn.utils.get_total_norm(gradients)} if gradients else {}
    return norms


def _parts(model: Bitune) -> dict[str, list[nn.Parameter]]:
    """What is trained, by what it is."""
    parts = {name: list(adapters.owned(model.decoder, name).values()) for name in model.method.weight_sets}
    parts["theta"] = [theta for theta in (model.theta_k, model.theta_v) if theta is not None]
    known = {id(weight) for weights in parts.values() for weight in weights}
    return parts | {"start_token": [p for p in model.parameters() if p.requires_grad and id(p) not in known]}


def peak_memory(device: torch.device) -> float:
    """The most memory so far, in GB: what was allocated on a CUDA device, elsewhere what the process held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
