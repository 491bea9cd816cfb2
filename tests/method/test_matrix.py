"""One matrix, decoder x variant x adapter, against one list of behaviours.

The whole product is run on the five families of the quick tests; on the others every variant with LoRA and every adapter
with Bitune. `make test` runs the latter on the five.
"""

from itertools import product

import pytest
import torch
from decoders import ALL, DORA_ON_EXPERTS, FAMILIES, NO_EXPERTS, build, draw, tiny
from keep64 import Keep64
from test_generation import greedy_equals_step_by_step
from test_known_answers import close, flat, gradients, same

from bitune_pl import VARIANTS, Bitune
from bitune_pl.method import three_pass

ADAPTERS = ["lora", "dora", "ia3", "full"]


def is_central(variant: str, adapter: str) -> bool:
    return adapter == "lora" or variant == "bitune"


CELLS = [
    pytest.param(*cell, marks=() if cell[0] in FAMILIES and is_central(*cell[1:]) else pytest.mark.slow)
    for cell in product(ALL, VARIANTS, ADAPTERS)
    if cell[0] in FAMILIES or is_central(*cell[1:])
]
OF_LLAMA = [  # these depend little on the family
    pytest.param(*cell.values, marks=() if cell.values[0] == "llama" and not cell.marks else pytest.mark.slow)
    for cell in CELLS
]
matrix = pytest.mark.parametrize("family, variant, adapter", CELLS)


def built(family: str, variant: str, adapter: str, dtype: torch.dtype = torch.float32) -> Bitune:
    settings = {"target_modules": NO_EXPERTS} if (family, adapter) in DORA_ON_EXPERTS else None
    return build(family, variant, adapter, dtype=dtype, adapter_settings=settings)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@matrix
def test_one_pass_equals_three_passes_in_float64(family, variant, adapter, checkpointing):
    """In logits, loss and every gradient, in float64 throughout."""
    model, samples = built(family, variant, adapter, torch.float64), draw([(13, (4,)), (7, (6,)), (2, (3,))])
    with Keep64():
        expected = three_pass.answer_logits(model, samples)
        slow = three_pass.loss(model, samples)
        theirs = gradients(model, slow)
        if checkpointing:
            model.checkpoint_activations()
            model.train()
        close(model.answer_logits(samples), expected, 1e-9)
        fast = model.loss(samples)
        ours = gradients(model, fast)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9)
    same(ours, theirs)


@pytest.mark.parametrize("family, variant, adapter", OF_LLAMA)
def test_the_same_logits_come_back(family, variant, adapter, tmp_path):
    model = built(family, variant, adapter)
    expected = model.answer_logits(draw())
    model.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    again = Bitune.from_pretrained(tmp_path / "model", tiny(family))
    assert (again.method, again.adapter, again.theta_init) == (model.method, model.adapter, model.theta_init)
    assert trained(again) == trained(model)
    assert torch.equal(flat(again.answer_logits(draw())), flat(expected))


def trained(model: Bitune) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("family, variant, adapter", OF_LLAMA)
def test_generation_from_the_cache_equals_step_by_step(family, variant, adapter):
    greedy_equals_step_by_step(built(family, variant, adapter))
