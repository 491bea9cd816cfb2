"""Models and requests for tests of evaluation."""

import torch
from lm_eval.api.instance import Instance

from bitune_pl import Bitune, load_decoder


def built(base: str, method: str = "bitune", adapter: str = "lora", **settings) -> Bitune:
    """A model in float32 whose adapters and theta are random: freshly made ones add nothing."""
    torch.manual_seed(1)
    model = Bitune.build(load_decoder(base, dtype=torch.float32), method, adapter, **settings)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            size = 0.02 if name.startswith("theta") else 0.3
            parameter.data = torch.randn_like(parameter) * size
    return model.eval()


def asked(*pairs: tuple, kind: str = "loglikelihood", doc: dict | None = None) -> list[Instance]:
    """Requests as lm-eval makes them: context and continuation, or context and settings."""
    return [Instance(kind, doc or {}, tuple(pair), 0, ("task", i, 1)) for i, pair in enumerate(pairs)]
