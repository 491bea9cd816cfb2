"""Tiny random decoders, one for each family, built so that a wrong method cannot hide.

Weights of standard deviation 0.25 make attention far from uniform, windows are shorter than the prompts, and every adapter
tensor and theta is drawn at random: fresh adapters are zero and hide swapped routes.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bitune_pl import Bitune, Sample

COMMON = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, max_position_embeddings=128, initializer_range=0.25, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
WINDOW = 5

FAMILIES: dict[str, dict] = {
    "llama": dict(model_type="llama"),
    "gemma": dict(model_type="gemma", num_key_value_heads=1),
    "phi": dict(model_type="phi", partial_rotary_factor=0.5, num_key_value_heads=4),
    "mistral": dict(model_type="mistral", sliding_window=WINDOW),
    "qwen2": dict(model_type="qwen2"),
}


def tiny(family: str, **changes) -> PreTrainedModel:
    settings = {**COMMON, **FAMILIES[family], **changes}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()


def randomise(model: Bitune, seed: int = 0) -> Bitune:
    """Every trained tensor, frozen bidirectional ones too, drawn at random."""
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
