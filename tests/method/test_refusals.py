"""What cannot be served is refused when the decoder is taken over, in one sentence, by rules that name no family."""

import dataclasses
import types

import pytest
import torch
from decoders import DORA_ON_EXPERTS, MIXED, WINDOW, build, draw, from_settings, randomise, tiny
from test_known_answers import close

from bitune_pl import Bitune
from bitune_pl.method import three_pass
from bitune_pl.method.layout import Reading, current, reading

EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
SHARED = dict(
    num_hidden_layers=4, num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2,
    sliding_window=WINDOW, hidden_size_per_layer_input=8, vocab_size_per_layer_input=97,
)  # fmt: skip

NOT_LOOKED_UP = "attention was looked up in transformers' interface {} times in 3 blocks"
OTHER_CACHE = "it caches other keys and values than its attention sees"
OWN_MASKS = "its attention cannot do without masks of its own"

REFUSED: dict[str, tuple[dict, str]] = {
    "bloom": (dict(model_type="bloom", n_head=4, n_layer=3), NOT_LOOKED_UP.format(0)),
    "mpt": (dict(model_type="mpt", d_model=32, n_heads=4, n_layers=3), NOT_LOOKED_UP.format(0)),
    "falcon": (dict(model_type="falcon", head_dim=...), NOT_LOOKED_UP.format(0)),
    "falcon-alibi": (dict(model_type="falcon", head_dim=..., alibi=True), NOT_LOOKED_UP.format(0)),
    "mamba": (dict(model_type="mamba", state_size=4), NOT_LOOKED_UP.format(0)),
    "lfm2": (dict(model_type="lfm2", layer_types=["conv", "full_attention", "conv"], block_ff_dim=48), NOT_LOOKED_UP.format(1)),
    "jamba": (
        dict(model_type="jamba", attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False),
        NOT_LOOKED_UP.format(1),
    ),
    "qwen3_next": (
        dict(
            model_type="qwen3_next", layer_types=["linear_attention", "full_attention", "linear_attention"], **EXPERTS,
            linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
            shared_expert_intermediate_size=16,
        ),
        NOT_LOOKED_UP.format(1),
    ),
    "deepseek_v3": (
        dict(
            model_type="deepseek_v3", num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4,
            qk_nope_head_dim=8, v_head_dim=6, head_dim=4, n_routed_experts=4, n_group=1, topk_group=1,
            first_k_dense_replace=1, **EXPERTS,
        ),
        OTHER_CACHE,
    ),
    "gemma3n": (
        dict(
            model_type="gemma3n_text", intermediate_size=[48] * 4, activation_sparsity_pattern=[0.0] * 4, laurel_rank=4,
            altup_num_inputs=2, **SHARED,
        ),
        OTHER_CACHE,
    ),
    "gemma4": (dict(model_type="gemma4_text", global_head_dim=16, **SHARED), OTHER_CACHE),
    "llama4": (
        dict(
            model_type="llama4_text",
            num_local_experts=2,
            num_experts_per_tok=1,
            intermediate_size_mlp=48,
            attention_chunk_size=64,
        ),
        OWN_MASKS,
    ),
    "gemma3-bidirectional": (
        dict(model_type="gemma3_text", use_bidirectional_attention=True, **MIXED),
        "it was pretrained with attention that sees later tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused(name):
    settings, why = REFUSED[name]
    torch.manual_seed(0)
    refused(from_settings(**settings), why)


def refused(decoder, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        Bitune.build(decoder)
    sentence = str(error.value)
    assert sentence.startswith(f"This decoder ({decoder.config.model_type}) cannot be served: ")
    assert sentence.endswith(".") and "\n" not in sentence


def replace_forward(module: torch.nn.Module, wrapper) -> None:
    """Let `wrapper(original, ...)` run in place of a module's forward."""
    original = module.forward
    module.forward = types.MethodType(lambda self, *args, **kwargs: wrapper(original, *args, **kwargs), module)


@pytest.fixture
def llama():
    torch.manual_seed(0)
    return tiny("llama")


def test_a_decoder_that_ignores_the_pattern_is_refused(llama):
    """It calls attention as it should, keeps samples apart and caches the right keys, but is causal whatever is asked."""

    def causal(original, *args, **kwargs):
        now = current()
        if isinstance(now, Reading) and now.layout.second:
            method = dataclasses.replace(now.layout.method, second_pass="causal")
            now = dataclasses.replace(now, layout=dataclasses.replace(now.layout, method=method))
        with reading(now):
            return original(*args, **kwargs)

    for layer in llama.model.layers:
        replace_forward(layer.self_attn, causal)
    refused(llama, "its second pass does not see later tokens .block 1.: it ignores the attention pattern")


def test_a_decoder_whose_tokens_reach_ahead_is_refused(llama):
    """In a convolution that looks ahead, but, in a row, never over the end of a sample."""

    def ahead(original, hidden, *args, **kwargs):
        later = hidden.roll(-1, dims=1)
        now = current()
        if isinstance(now, Reading):
            positions = now.layout.position_ids[0]
            later[:, positions.roll(-1) != positions + 1] = 0
        return original(hidden + later, *args, **kwargs)

    replace_forward(llama.model.layers[0], ahead)
    refused(llama, "cannot be served")


def test_a_decoder_whose_samples_change_each_other_is_refused(llama):
    def running(original, hidden, *args, **kwargs):
        return original(hidden + hidden.cumsum(dim=1), *args, **kwargs)

    replace_forward(llama.model.layers[1], running)
    refused(llama, "samples that share a row change each other")


@pytest.mark.parametrize("keyword", ["position_bias", "indices", "sinks"])
def test_a_keyword_that_changes_what_attention_means_is_refused(llama, keyword):
    replace_forward(
        llama.model.layers[1].self_attn,
        lambda original, *args, **kwargs: original(*args, **kwargs, **{keyword: torch.zeros(1)}),
    )
    refused(llama, f"LlamaAttention asks its attention for {keyword}, which Bitune's attention does not know")


def test_a_decoder_that_hides_its_blocks_is_refused(llama):
    inner = llama.model
    llama.get_decoder = lambda: llama
    assert inner._supports_flash_attn
    refused(llama, "does not tell the blocks from the output layer")


@pytest.mark.parametrize("family, adapter", sorted(DORA_ON_EXPERTS))
def test_an_adapter_that_peft_cannot_put_on_experts_is_refused(family, adapter):
    with pytest.raises(
        ValueError, match="PEFT cannot put this adapter on .*: name other target_modules or choose another adapter"
    ):
        build(family, "bitune", adapter)


SCALED = {
    "dynamic": ("llama", dict(rope_type="dynamic", factor=4.0)),
    "longrope": ("phi3", dict(rope_type="longrope", short_factor=[1.0, 1.5], long_factor=[4.0, 2.0])),
}


@pytest.mark.parametrize("kind", SCALED)
def test_angles_scaled_by_the_longest_sample_end_at_the_original_length(kind):
    family, rope = SCALED[kind]
    rope = {**rope, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    torch.manual_seed(0)
    longest = 128 if kind == "longrope" else 16
    decoder = tiny(
        family, rope_parameters=rope, max_position_embeddings=longest, original_max_position_embeddings=16, head_dim=8
    )
    model = randomise(Bitune.build(decoder).eval())
    within, beyond = draw([(12, (4,)), (5, (3,))]), draw([(12, (5,)), (13, (5,))])
    close(model.answer_logits(within), three_pass.answer_logits(model, within))
    with pytest.raises(
        ValueError, match="reaches 17 positions, but beyond 16 .* depends on the longest sample of a batch: drop"
    ):
        model.answer_logits(beyond)
    with pytest.raises(ValueError, match="reaches 17 positions, but beyond 16 .* ask for fewer new tokens"):
        model.generate([within[0].prompt], max_new_tokens=6)


@pytest.mark.parametrize("family", ["gpt2", "opt", "gptj"])
@pytest.mark.parametrize("variant", ["plain", "bitune"])
def test_a_table_of_positions_is_used_up_to_its_end(family, variant):
    torch.manual_seed(0)
    model = randomise(Bitune.build(tiny(family, max_position_embeddings=16), variant).eval())
    within, beyond = draw([(12, (5,))]), draw([(12, (6,))])
    close(model.answer_logits(within), three_pass.answer_logits(model, within))
    assert len(model.generate([within[0].prompt], max_new_tokens=5, eos_token_id=None)[0]) == 5
    with pytest.raises(
        ValueError, match="A sample reaches 17 positions, but this decoder's table of positions ends at 16: drop"
    ):
        model.loss(beyond)
    with pytest.raises(ValueError, match="with its new tokens reaches 17 positions, .* ask for fewer new tokens"):
        model.generate([within[0].prompt], max_new_tokens=6)


def test_computed_angles_have_no_end():
    model, [sample] = build("llama"), draw([(140, (3,))])
    close(model.answer_logits([sample]), three_pass.answer_logits(model, [sample]))
