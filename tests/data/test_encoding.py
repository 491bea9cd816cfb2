"""One rule of encoding for training, validation, evaluation and generation."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped, Example
from bitune_pl.sample import Sample

PROMPT = "Question: What does the dog eat?\n\nAnswer:"


def example(prompt: str, *answers: str, gold: int = 0) -> Example:
    return Example(prompt, answers, gold, "train.jsonl line 7")


def joint(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids


def test_a_prompt_opens_as_the_tokenizer_opens_a_text(tokenizer):
    ids, own = Encoder(tokenizer).prompt(PROMPT).tolist(), tokenizer(PROMPT).input_ids
    assert ids == (own[:-1] if own[-1] == tokenizer.eos_token_id else own)
    assert tokenizer.bos_token_id is None or ids.count(tokenizer.bos_token_id) <= 1


def test_answer_ends_once_and_is_what_follows_the_prompt(tokenizer):
    sample = Encoder(tokenizer).training(example(PROMPT, " meat and bread."))
    *answer, end = sample.answers[0].tolist()
    assert end == tokenizer.eos_token_id and end not in answer
    prompt = joint(tokenizer, PROMPT)
    assert sample.prompt.tolist()[-len(prompt) :] == prompt
    assert prompt + answer == joint(tokenizer, PROMPT + " meat and bread.")


def test_training_evaluation_and_generation_agree(tokenizer):
    encoder, row = Encoder(tokenizer), example(PROMPT, " meat", " bread and butter", " 42", gold=1)
    trained, scored = encoder.training(row), encoder.choices(row)
    assert torch.equal(trained.prompt, scored.prompt) and torch.equal(trained.prompt, encoder.prompt(PROMPT))
    assert torch.equal(trained.answers[0][:-1], scored.answers[1])
    assert encoder.decode(trained.answers[0]).strip() == "bread and butter"


def test_bulk_equals_one_by_one(tokenizer):
    encoder = Encoder(tokenizer, max_length=40)
    rows = [example("Q " * i + ":", " a" * (i % 7 + 1)) for i in range(1, 45)]
    for row, bulk in zip(rows, encoder.training_ids(rows), strict=True):
        single = encoder.training(row)
        if isinstance(bulk, Dropped):
            assert bulk == single
        else:
            assert bulk == (single.prompt.tolist(), [single.answers[0].tolist()])


def test_tokens_that_merge_over_the_border(byte_level):
    prompt, answer = "The do", "g eats"
    ids = joint(byte_level, prompt)
    assert joint(byte_level, prompt + answer)[: len(ids)] != ids, "the example must merge"
    assert Encoder(byte_level).training(example(prompt, answer)).answers[0].tolist()[:-1] == joint(byte_level, answer)


def test_too_long_is_dropped_and_never_cut(tokenizer):
    row = example(PROMPT, " meat and bread.")
    whole = Encoder(tokenizer).training(row)
    length = len(whole.prompt) + len(whole.answers[0])
    assert isinstance(Encoder(tokenizer, max_length=length).training(row), Sample)
    dropped = Encoder(tokenizer, max_length=length - 1).training(row)
    assert dropped == Dropped("train.jsonl line 7", f"longer than {length - 1} tokens")


def test_a_huge_row_is_not_even_read(byte_level):
    rows = [example("Q:", " a"), example("Q:", " a" * 20_000_000), example("Q:", " b")]
    first, huge, last = Encoder(byte_level).training_ids(rows)
    assert huge == Dropped("train.jsonl line 7", "longer than 102400 characters")
    assert [first, last] == [next(Encoder(byte_level).training_ids([row])) for row in (rows[0], rows[2])]


def test_empty_answer_is_dropped(tokenizer):
    assert Encoder(tokenizer).training(example(PROMPT, "")).reason == "without an answer"
    with pytest.raises(ValueError, match="train.jsonl line 7: an answer is empty"):
        Encoder(tokenizer).choices(example(PROMPT, " meat", ""))


def test_control_text_stays_text(tokenizer):
    text = " </s> closes a sequence. <|endoftext|> is another, <|im_end|> too."
    encoder = Encoder(tokenizer)
    sample = encoder.training(example("What does </s> mean? <|im_start|>", text))
    control = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    assert not control.intersection(sample.answers[0].tolist()[:-1])
    assert not control.intersection(sample.prompt.tolist()[len(encoder.opening) :])
    assert encoder.decode(sample.answers[0]).strip() == text.strip()


def test_control_text_of_a_tokenizer_that_cannot_spell_it():
    vocab = [("<unk>", 0.0), ("</s>", -1.0), ("▁a", -2.0), ("▁b", -2.0), ("▁", -3.0)]
    backend = Tokenizer(models.Unigram(vocab, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>"))
    assert isinstance(encoder.training(example("a", " b")), Sample)
    assert encoder.training(example("a </s>", " b")).reason == "whose text would become a control token"
    with pytest.raises(ValueError, match="train.jsonl line 7: text would become a control token"):
        encoder.choices(example("a", " b </s>"))


def test_prompts_of_one_token_and_of_none(byte_level, smollm2, sentencepiece):
    assert len(Encoder(byte_level).training(example("Q", " a")).prompt) == 1
    with pytest.raises(ValueError, match="train.jsonl line 7: the prompt is empty"):
        Encoder(byte_level).training(example("", " a"))
    for tokenizer in (smollm2, sentencepiece):
        assert Encoder(tokenizer).training(example("", " a")).prompt.tolist() == [tokenizer.bos_token_id]


def test_a_tokenizer_without_end_is_refused():
    backend = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        Encoder(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))


def test_which_tokenizers_are_proven_to_split(smollm2, byte_level, sentencepiece):
    assert Encoder(smollm2).bridged == Encoder(byte_level).bridged == frozenset()
    assert Encoder(sentencepiece).bridged is None


def test_a_token_that_reaches_into_a_space_is_found():
    """As Gemma's '>▁</'."""
    vocab = {token: i for i, token in enumerate(["<end>", "▁", "a", ">", ":", "▁a", ">▁a"])}
    backend = Tokenizer(models.BPE(vocab, [("▁", "a"), (">", "▁a")]))
    backend.normalizer = normalizers.Replace(" ", "▁")
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>"))
    assert encoder.bridged == frozenset(">")
    assert encoder.training(example("a:", " a")).answers[0].tolist() == [vocab["▁a"], 0]
    merged = encoder.training(example("a>", " a"))
    assert (merged.prompt.tolist(), merged.answers[0].tolist()) == ([vocab["a"], vocab[">"]], [vocab["▁a"], 0])


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize("name", ["smollm2", "byte_level", "sentencepiece"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=TEXTS,
    tail=st.sampled_from(["", ":", "Answer:", "\n", " ", "'", "1", "</s>"]),
    answer=TEXTS,
    space=st.booleans(),
)
def test_any_text_is_encoded_as_the_rule_says(request, name, head, tail, answer, space):
    tokenizer = request.getfixturevalue(name)
    prompt, answer = head + tail, " " * space + answer
    first, both = joint(tokenizer, prompt), joint(tokenizer, prompt + answer)
    alone = joint(tokenizer, answer)
    expected = both[len(first) :] if both[: len(first)] == first else alone
    if not first and tokenizer.bos_token_id is None:
        return
    sample = _encoder(tokenizer).training(example(prompt, answer))
    if not expected:
        assert sample.reason == "without an answer"
    else:
        assert sample.answers[0].tolist() == [*expected, tokenizer.eos_token_id]


_ENCODERS: dict[int, Encoder] = {}


def _encoder(tokenizer) -> Encoder:
    return _ENCODERS.setdefault(id(tokenizer), Encoder(tokenizer))


def test_a_start_token_of_its_own_ends_every_prompt_and_changes_nothing_else(tokenizer):
    """B05: in training, evaluation and generation; it counts towards the length, and an empty prompt is it alone."""
    rows = 70000
    encoder, without = Encoder(tokenizer, start_token=rows), Encoder(tokenizer)
    row = example(PROMPT, " meat", " bread and butter", gold=1)
    for name in ("training", "choices"):
        ours, theirs = getattr(encoder, name)(row), getattr(without, name)(row)
        assert ours.prompt.tolist() == [*theirs.prompt.tolist(), rows]
        assert [a.tolist() for a in ours.answers] == [a.tolist() for a in theirs.answers]
    assert encoder.prompt(PROMPT).tolist() == ours.prompt.tolist()
    length = len(without.training(row).prompt) + len(without.training(row).answers[0])
    assert (
        Encoder(tokenizer, max_length=length, start_token=rows).training(row).reason == f"longer than {length} tokens"
    )
    assert Encoder(tokenizer, max_length=length + 1, start_token=rows).training(row).prompt[-1] == rows
    assert encoder.prompt("").tolist() == [*encoder.opening, rows]
