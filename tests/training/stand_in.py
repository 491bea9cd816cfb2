"""A trainer and a module that only log, for many updates of many blocks in seconds; and a reader of their events."""

from types import SimpleNamespace

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bitune_pl.training.dashboard.alpha_maps import AlphaMaps
from bitune_pl.training.dashboard.events import EventLogger
from bitune_pl.training.dashboard.scalars import UpdateLog

ALL = {"images": 0, "scalars": 0, "tensors": 0}


def read(folder) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance=ALL).Reload()


def stand_in(folder, layers: int):
    """A trainer and a module of as many blocks as wanted, whose alphas wander."""
    draw = torch.Generator().manual_seed(0)
    ratios = torch.full((2, layers), 0.5)

    def alphas():
        ratios.add_(torch.randn(2, layers, generator=draw) * 0.003).clamp_(0, 1)
        return dict(zip(("alpha_k", "alpha_v"), ratios, strict=True))

    part = {name: [torch.nn.Parameter(torch.zeros(3))] for name in ("causal", "bidirectional", "theta")}
    for (parameter,) in part.values():
        parameter.grad = torch.ones(3)
    model = SimpleNamespace(alphas=alphas)
    module = SimpleNamespace(model=model, gradient_norm=torch.tensor(3.0), device=torch.device("cpu"))
    trainer = SimpleNamespace(
        global_step=0,
        log_every_n_steps=1,
        estimated_stepping_batches=1000,
        is_global_zero=True,
        loggers=[EventLogger(folder, name="", version="", default_hp_metric=False)],
        strategy=SimpleNamespace(reduce=lambda tensor, reduce_op: tensor),
    )
    log = UpdateLog()
    log.parts = part
    return trainer, module, log


def advance(trainer, module, callbacks) -> None:
    """One update of a stand-in."""
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}])
    batch, outputs = SimpleNamespace(samples=[]), {"share": torch.tensor(1.5)}
    callbacks[0].on_before_optimizer_step(trainer, module, optimizer)
    trainer.global_step += 1
    for callback in callbacks:
        callback.on_train_batch_end(trainer, module, outputs, batch, 0)


def a_thousand_updates(folder, layers: int = 30):
    """Logged by the callbacks of a run: its trainer, module and callbacks."""
    trainer, module, log = stand_in(folder, layers)
    callbacks = [log, AlphaMaps(log)]
    for callback in callbacks:
        callback.on_train_start(trainer, module)
    for _ in range(1000):
        advance(trainer, module, callbacks)
    return trainer, module, callbacks
