"""Tiny random decoders, built so that a wrong method cannot hide: weights of std 0.25 make attention far from uniform,
windows are shorter than the prompts, and every adapter tensor and theta is drawn at random."""

import pytest
import torch
from families import FAMILIES, tiny

from bitune_pl import Bitune, Sample


def randomise(model: Bitune, seed: int = 0) -> Bitune:
    """Every trained tensor, frozen bidirectional ones too, drawn at random (fresh adapters are zero and hide swapped routes)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".causal" in name or ".bidirectional" in name:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(1 + 0.3 * noise if "magnitude" in name or "ia3" in name else 0.3 * noise)
            elif name.startswith("theta"):
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def build(family: str, method="bitune", adapter="lora", dtype=torch.float32, seed: int = 0, **settings) -> Bitune:
    torch.manual_seed(seed)
    decoder = tiny(family).to(dtype)
    return randomise(Bitune.build(decoder, method, adapter, adapter_dtype=dtype, **settings).to(dtype).eval(), seed)


def draw(lengths=((13, (4,)), (7, (6, 2)), (1, (3,))), vocab: int = 97, seed: int = 1) -> list[Sample]:
    """Samples of unequal lengths, a prompt with two answers and one that is a start token alone among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = lambda n: torch.randint(3, vocab, (n,), generator=generator)  # noqa: E731
    return [Sample(ids(prompt), [ids(n) for n in answers]) for prompt, answers in lengths]


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param
