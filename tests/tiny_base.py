"""A tiny random decoder with a tokenizer, saved as a base that every command can load."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CPU = ["--trainer.accelerator", "cpu"]


def save_tiny_base(folder: Path, hidden_size: int = 32, intermediate_size: int = 48) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(
        ["Question: Which one is a fruit?\n\nChoices:\napple\ndog\n\nAnswer: apple"] * 20, trainer
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=hidden_size, intermediate_size=intermediate_size,
        num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, initializer_range=0.25,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory) -> str:
    return save_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def wide_base(tmp_path_factory) -> str:
    """One whose linear layers can be packed: a scale of 4-bit weights goes with 64 of them."""
    return save_tiny_base(tmp_path_factory.mktemp("wide"), hidden_size=64, intermediate_size=128)
