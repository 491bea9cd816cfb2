"""Tiny random decoders with a tokenizer of their own, for the smoke profile: made on the spot, in a second.

No part of the paper. They are of two families, so that the grid has two models; they know nothing, and their scores
mean nothing.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from bitune_pl.data import synthetic
from bitune_pl.method.gguf import write_once

FAMILIES = ("llama", "gemma2")
VOCABULARY = 512


def tiny_decoders(folder: Path) -> Path:
    """The folder with a decoder for each family, made if need be; the same weights every time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return write_once(folder, _write)


def _write(folder: Path) -> None:
    tokenizer = _tokenizer()
    for family in FAMILIES:
        config = AutoConfig.for_model(
            family, vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=1024,
            bos_token_id=0, eos_token_id=1, pad_token_id=1, initializer_range=0.25,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(config).save_pretrained(folder / family)
        tokenizer.save_pretrained(folder / family)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on the embedded questions."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rows = synthetic.categories("train")[:200]
    backend.train_from_iterator([f"Question: {row['question']}\n\nChoices:\n\nAnswer: " for row in rows], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")
