"""`BituneLM` against lm-eval's own Hugging Face model and against the paper's three passes."""

import pytest
import torch
from evaluation_models import asked, built
from lm_eval.models.huggingface import HFLM
from peft import PeftModel

from bitune_pl import Bitune, Sample, load_decoder
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example
from bitune_pl.data.sources import load
from bitune_pl.evaluation.harness import UNLIMITED, BituneLM
from bitune_pl.evaluation.requests import TOGETHER, Question, Reader, batches
from bitune_pl.method import three_pass
from bitune_pl.method.positions import Reach
from bitune_pl.method.variants import VARIANTS

QUESTIONS = load("categories", "validation", limit=6).examples
PAIRS = [(row.prompt, answer) for row in QUESTIONS for answer in row.answers]
ODD = [
    ("Question: dog\n\nAnswer:", " apple"),
    ("Question: dog\n\nAnswer:", " dog and apple"),
    ("", "Question: apple"),
    ("", " dog"),
    ("ends in a space ", "apple"),
    ("ends in lines\n\n", "apple dog"),
    ("a", " b"),
    ("x", "apple"),
]


def ours(model, encoder, **settings) -> BituneLM:
    return BituneLM(model, encoder, progress=False, **settings)


def stock(base: str, encoder, adapter=None, **settings) -> HFLM:
    decoder = load_decoder(base, dtype=torch.float32)
    decoder.set_attn_implementation("sdpa")
    model = PeftModel.from_pretrained(decoder, adapter) if adapter else decoder
    return HFLM(pretrained=model, tokenizer=encoder.tokenizer, batch_size=4, **settings)


def same(found, expected, tolerance=1e-4):
    for (score, greedy), (right, is_greedy) in zip(found, expected, strict=True):
        assert score == pytest.approx(right, abs=tolerance * max(1, abs(right))) and greedy == is_greedy


@pytest.mark.parametrize("adapter", [None, "lora"])
def test_plain_scores_are_those_of_the_stock_model(adapter, tiny_base, encoder, tmp_path):
    model = built(tiny_base, "plain", adapter or "none")
    if adapter:
        model.save_pretrained(tmp_path)
    requests = asked(*PAIRS, *ODD)
    expected = stock(tiny_base, encoder, tmp_path / "causal" if adapter else None).loglikelihood(requests, True)
    found = ours(model, encoder).loglikelihood(requests)
    same(found, expected)
    assert {type(score) for score, _ in found} == {float}


@pytest.mark.parametrize("method", VARIANTS)
def test_scores_of_every_variant_are_those_of_three_passes(method, tiny_base, encoder):
    model = built(tiny_base, method, "none" if method == "echo" else "lora")
    rows = QUESTIONS[:3]
    found = ours(model, encoder).loglikelihood(asked(*((row.prompt, a) for row in rows for a in row.answers)))
    expected = []
    for sample in map(encoder.choices, rows):
        with torch.no_grad():
            (logits,) = three_pass.answer_logits(model, [sample])
        for answer, places in zip(sample.answers, logits, strict=True):
            score = places.log_softmax(-1).gather(1, answer[:, None]).sum()
            expected.append((float(score), bool((places.argmax(-1) == answer).all())))
    same(found, expected)


def test_the_likeliest_tokens_are_greedy_and_others_are_not(bitune, encoder):
    prompt = encoder.prompt(QUESTIONS[0].prompt)
    best = three_pass.greedy(bitune, prompt, 3).tolist()
    other = [*best[:2], (best[2] + 1) % 100]
    requests = [((None, None), prompt.tolist(), answer) for answer in (best, best[:1], other, other[2:])]
    assert [greedy for _, greedy in ours(bitune, encoder)._loglikelihood_tokens(requests)] == [True, True, False, False]


@pytest.mark.parametrize("method", ["bitune", "plain"])
def test_neither_order_nor_company_changes_a_score(method, tiny_base, encoder):
    """C03 too: the choices in the order ABCD and DCBA, and each alone."""
    model = built(tiny_base, method)
    requests = asked(*PAIRS, *ODD)
    scores = ours(model, encoder).loglikelihood(requests)
    for tokens in (1, 300):
        back = ours(model, encoder, tokens=tokens).loglikelihood(requests[::-1])[::-1]
        same(back, scores, 1e-5)
    alone = [ours(model, encoder).loglikelihood([request])[0] for request in requests[::5]]
    same(alone, scores[::5], 1e-5)


def test_C03_the_order_of_choices_changes_nothing(bitune, encoder):
    row = QUESTIONS[0]
    there = [(row.prompt, answer) for answer in row.answers]
    scores = ours(bitune, encoder).loglikelihood(asked(*there))
    same(ours(bitune, encoder).loglikelihood(asked(*there[::-1]))[::-1], scores, 1e-5)
    for pair, score in zip(there, scores, strict=True):
        same(ours(bitune, encoder).loglikelihood(asked(pair)), [score], 1e-5)


def test_a_context_is_read_once_for_all_its_continuations(bitune, encoder, monkeypatch):
    seen = []
    read = type(bitune).read
    monkeypatch.setattr(type(bitune), "read", lambda self, samples, *a: seen.extend(samples) or read(self, samples, *a))
    shuffled = [PAIRS[i] for i in torch.randperm(len(PAIRS), generator=torch.Generator().manual_seed(0)).tolist()]
    ours(bitune, encoder).loglikelihood(asked(*shuffled))
    assert len(seen) == len(QUESTIONS) and sum(len(sample.answers) for sample in seen) == len(PAIRS)


def test_ids_are_those_of_training_and_of_the_stock_model(bitune, encoder):
    lm = ours(bitune, encoder)
    pairs, places, _ = lm.reader.encode(asked(*PAIRS))
    for row, (prompt, answers) in zip(QUESTIONS, pairs, strict=True):
        sample, trained = encoder.choices(row), encoder.training(row)
        assert list(prompt) == sample.prompt.tolist() == trained.prompt.tolist()
        assert answers == [answer.tolist() for answer in sample.answers]
        assert answers[row.gold] == trained.answers[0].tolist()[:-1]
        assert [(list(prompt), a) for a in answers] == [lm._encode_pair(row.prompt, a) for a in row.answers]
    assert [i for own in places for i in own] == list(range(len(PAIRS)))


def test_a_row_whose_prompt_ends_in_a_space_is_read_as_it_is_trained(bitune, encoder):
    """lm-eval moves such a space into the continuation; training does not."""
    row = Example("Translate: dog ", (" apple",), 0, "mine.jsonl line 1")
    trained, lm = encoder.training(row), ours(bitune, encoder)
    ((prompt, (answer,)),), *_ = lm.reader.encode(asked((row.prompt, row.answer), doc={"where": row.where}))
    assert (list(prompt), answer) == (trained.prompt.tolist(), trained.answers[0].tolist()[:-1])
    ((prompt, (answer,)),), *_ = lm.reader.encode(asked((row.prompt, row.answer)))
    assert (list(prompt), answer) == lm._encode_pair(row.prompt, row.answer)


def test_where_ids_differ_from_the_stock_models(bitune, tiny_base, encoder):
    """The three cases that the docstring of `requests.py` names; training builds ours."""
    lm, hf = ours(bitune, encoder), stock(tiny_base, encoder)
    end = encoder.eos

    def both(context, answer):
        ((prompt, (ids,)),), *_ = lm.reader.encode(asked((context, answer)))
        trained = encoder.training(Example(context, (answer,), 0, ""))
        assert (list(prompt), ids) == (trained.prompt.tolist(), trained.answers[0].tolist()[:-1])
        return (list(prompt), ids), hf._encode_pair(context, answer)

    (prompt, _), (theirs, _) = both("dog</s>?", " apple")  # a control token's name is text here
    assert end not in prompt and end in theirs and encoder.decode(prompt) == "dog</s>?"
    (prompt, answer), (_, theirs) = both("Quest", "ion")  # tokens merge over the border
    assert encoder.decode(prompt + answer) == "Question" and encoder.decode(answer) == "ion"
    assert encoder.tokenizer.decode(theirs) != "ion"
    (prompt, _), (theirs, _) = both("<s>dog", " apple")  # so is the name of the first token
    assert encoder.decode(prompt) == "<s>dog" and theirs[0] == encoder.tokenizer.bos_token_id


def test_an_empty_context_starts_from_the_first_token(bitune, encoder):
    ((prompt, _),), *_ = ours(bitune, encoder).reader.encode(asked(("", "dog")))
    assert list(prompt) == encoder.prompt("").tolist()


def test_tokens_are_scored_as_texts_are(bitune, encoder):
    """What lm-eval's base class would call; the key is not looked at."""
    lm = ours(bitune, encoder)
    sample = encoder.choices(QUESTIONS[0])
    tokens = [((None, None), sample.prompt.tolist(), answer.tolist()) for answer in sample.answers]
    expected = lm.loglikelihood(asked(*((QUESTIONS[0].prompt, a) for a in QUESTIONS[0].answers)))
    same(lm._loglikelihood_tokens(tokens), expected, 1e-5)


def test_scoring_leaves_the_model_as_it_was(tiny_base, encoder):
    model = built(tiny_base, adapter_settings={"lora_dropout": 0.5}).train()
    model.decoder.get_input_embeddings().eval()
    before = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    one, two = (ours(model, encoder).loglikelihood(asked(*PAIRS[:4])) for _ in range(2))
    assert one == two and torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_batches_hold_no_more_than_they_may_and_every_question_once(encoder):
    made = [
        Question(Sample(torch.zeros(n, dtype=torch.long), [torch.zeros(3, dtype=torch.long)]), [n])
        for n in range(1, 40)
    ]
    found = list(batches(made, 60))
    assert sorted(q.requests[0] for batch in found for q in batch) == list(range(1, 40))
    assert all(len(batch) == 1 or sum(q.tokens for q in batch) <= 60 for batch in found)


# -- H04: what is too long ----------------------------------------------------------------------------------------------


@pytest.fixture
def with_bos(encoder, monkeypatch):
    """An encoder whose tokenizer puts the beginning-of-sequence token in front."""
    monkeypatch.setattr(encoder, "opening", [encoder.tokenizer.bos_token_id])
    return encoder


def test_H04_a_long_context_keeps_its_first_token_and_is_counted(bitune, with_bos):
    long, short = "dog " * 100 + "Question:", "Question: dog?"
    lm = ours(bitune, with_bos, max_length=64)
    requests = asked((long, " apple"), (long, " dog and apple"), (short, " apple"))
    scores = lm.loglikelihood(requests)
    assert lm.cut == {"task": 1}
    for (context, answer), (score, _) in zip([r.args for r in requests], scores, strict=True):
        sample = with_bos.choices(Example(context, (answer,), None, ""))
        room = 64 + 1 - len(sample.answers[0])
        kept = (
            sample.prompt if len(sample.prompt) <= room else torch.cat([sample.prompt[:1], sample.prompt[1 - room :]])
        )
        assert len(kept) <= room and kept[0] == with_bos.tokenizer.bos_token_id
        with torch.no_grad():
            expected = bitune.log_likelihood([Sample(kept, sample.answers)])[0][0].sum()
        assert score == pytest.approx(float(expected), abs=1e-4)
    same(lm.loglikelihood(requests[1:2]), scores[1:2], 1e-5)  # its prompt is not cut for the company it has


def test_H04_a_cut_context_equals_the_stock_models(plain, tiny_base, encoder):
    """Where the tokenizer puts nothing in front, nothing differs."""
    requests = asked(("dog " * 100 + "Question:", " apple"), ("dog " * 100 + "Question:", " dog and apple"))
    expected = stock(tiny_base, encoder, max_length=64).loglikelihood(requests, True)
    same(ours(plain, encoder, max_length=64).loglikelihood(requests), expected)


def test_H04_generation_keeps_room_and_counts(plain, with_bos, monkeypatch):
    seen = []
    monkeypatch.setattr(plain, "generate", lambda prompts, **_: seen.extend(prompts) or [p[:0] for p in prompts])
    lm = ours(plain, with_bos, max_length=64)
    lm.generate_until(
        asked(("dog " * 100, {"until": [], "max_gen_toks": 24}), ("dog", {"until": [], "max_gen_toks": 24}))
    )
    long = max(seen, key=len)
    assert len(long) == 40 and long[0] == with_bos.tokenizer.bos_token_id and lm.cut == {"task": 1}


@pytest.mark.parametrize("length", [64, 65])
def test_H04_no_room_for_a_prompt_is_an_error_before_anything_is_read(length, plain, with_bos, monkeypatch):
    monkeypatch.setattr(plain, "generate", None)
    lm = ours(plain, with_bos, max_length=length)
    with pytest.raises(
        ValueError, match=rf"question 1: beside 64 new tokens nothing is left of the prompt, for {length} pos"
    ):
        lm.generate_until(asked(("dog?", {"max_gen_toks": 5}), ("dog?", {"until": [], "max_gen_toks": 64})))


def test_H04_an_answer_that_is_too_long_is_an_error_before_anything_is_read(plain, encoder, monkeypatch):
    monkeypatch.setattr(plain, "read", None)
    with pytest.raises(
        ValueError, match="Task task, question .: beside an answer of .* tokens nothing is left of the prompt"
    ):
        ours(plain, encoder, max_length=64).loglikelihood(asked(("dog", " apple"), ("dog", " dog" * 100)))


@pytest.mark.parametrize(
    ("configured", "table", "rotary", "most"),
    [
        (900, None, None, 900),
        (900, 300, 700, 300),
        (900, None, 700, 700),
        (900, 2048, 4096, 900),
        (None, None, None, None),
    ],
)
def test_the_least_of_what_limits_a_decoder_limits_it(configured, table, rotary, most, plain, encoder, monkeypatch):
    monkeypatch.setattr(plain, "reach", Reach(table, rotary))
    monkeypatch.setitem(vars(plain.decoder.config), "max_position_embeddings", configured)
    assert plain.positions == most and ours(plain, encoder).max_length == (most or UNLIMITED)


def test_many_answers_to_a_prompt_are_read_in_parts(plain, encoder, monkeypatch):
    """Each place of an answer looks at all others: thousands together need more memory than there is."""
    lm, read, seen = ours(plain, encoder), Bitune.read, []
    pairs = [("dog", f" apple {i} " * 20) for i in range(40)]
    alone = [lm.loglikelihood(asked(pair))[0] for pair in pairs]
    monkeypatch.setattr(
        Bitune, "read", lambda self, samples: seen.append(sum(map(len, samples[0].answers))) or read(self, samples)
    )
    found = lm.loglikelihood(asked(*pairs))
    assert [score for score, _ in found] == pytest.approx([score for score, _ in alone], abs=1e-4)
    assert len(seen) == 2 and max(seen) <= TOGETHER


# -- H05: rolling log-likelihood ----------------------------------------------------------------------------------------


def test_H05_rolling_is_the_text_after_its_first_token(plain, tiny_base, encoder):
    text = "Question: which one is a fruit? " * 30
    requests = asked((text,), ("dog",), kind="loglikelihood_rolling")
    found = ours(plain, encoder).loglikelihood_rolling(requests)
    expected = [score for score, _ in ours(plain, encoder).loglikelihood(asked(("", text), ("", "dog")))]
    assert found == pytest.approx(expected, abs=1e-3) and {type(score) for score in found} == {float}
    stocks = stock(tiny_base, encoder, max_length=1024).loglikelihood_rolling(requests, True)
    assert found == pytest.approx(stocks, rel=1e-5)


@pytest.mark.parametrize("method", ["plain", "bitune", "echo"])
def test_H05_windows_score_every_token_once(method, tiny_base, encoder, monkeypatch):
    model = built(tiny_base, method, "none" if method == "echo" else "lora")
    lm, seen = ours(model, encoder, max_length=128), []
    text = "Question: which one is a fruit? " * 40
    read = type(model).read
    monkeypatch.setattr(type(model), "read", lambda self, samples, *a: seen.extend(samples) or read(self, samples, *a))
    (score,) = lm.loglikelihood_rolling(asked((text,), kind="loglikelihood_rolling"))
    assert torch.isfinite(torch.tensor(score)) and len(seen) > 1 and not any(lm.cut.values())
    bos = encoder.tokenizer.bos_token_id
    assert all(sample.prompt.tolist().count(bos) == 1 and sample.prompt[0] == bos for sample in seen)
    assert sum(len(answer) for sample in seen for answer in sample.answers) == len(encoder.prompt(text))
    copies = model.method.prompt_copies
    assert all(len(sample.prompt) * copies - 1 + len(sample.answers[0]) <= 128 for sample in seen)


@pytest.mark.parametrize(
    ("text", "max_length", "copies", "windows"),
    [
        ("0123456789", 5, 1, [("<s>", "0123"), ("<s>3", "4567"), ("<s>567", "89")]),
        ("0123456789", 9, 2, [("<s>", "012345"), ("<s>45", "6789")]),
        ("012", 4, 2, [("<s>", "0"), ("<s>0", "1"), ("<s>1", "2")]),
        ("0123", 5, 1, [("<s>", "0123")]),
        ("", 5, 1, []),
    ],
)
def test_H05_a_window_begins_with_the_first_token_and_those_just_before_it(text, max_length, copies, windows, encoder):
    """A digit is a token; a prompt and its answer, whose last token is not read, have room for no token more."""
    reader = Reader(encoder, max_length, copies, encoder.tokenizer.bos_token_id)
    assert spelled(reader, text) == windows


def test_H05_a_new_start_token_ends_the_prompt_of_each_window(encoder):
    reader = Reader(Encoder(encoder.tokenizer, start_token=encoder.eos), 5, 1, encoder.tokenizer.bos_token_id)
    assert spelled(reader, "0123456789") == [("</s>", "0123"), ("3</s>", "4567"), ("567</s>", "89")]


def spelled(reader, text: str) -> list[tuple[str, str]]:
    words = reader.encoder.tokenizer.convert_ids_to_tokens
    return [("".join(words(prompt)), "".join(words(answer))) for prompt, (answer,) in reader.windows(text)]


def test_H05_too_few_positions_for_a_window_are_an_error(tiny_base, encoder):
    lm = ours(built(tiny_base, "echo", "none"), encoder, max_length=3)
    with pytest.raises(
        ValueError, match="read in windows of at least 4 positions, and 3 are too few: raise --max-length"
    ):
        lm.loglikelihood_rolling(asked(("dog",), kind="loglikelihood_rolling"))


def test_H05_windows_of_the_stock_model(plain, tiny_base, encoder):
    """The stock model has its first token in the first window only; without it in ours the two are equal."""
    text = "Question: which one is a fruit? " * 12
    lm = ours(plain, encoder, max_length=65)
    first, *later = lm.reader.windows(text)
    scores = lm._score(lm.reader.of_tokens([first, *((prompt[1:], answers) for prompt, answers in later)]))
    expected = stock(tiny_base, encoder, max_length=64).loglikelihood_rolling(
        asked((text,), kind="loglikelihood_rolling"), True
    )
    assert len(later) > 1 and [sum(score for score, _ in scores)] == pytest.approx(expected, rel=1e-5)


# -- H06: stop strings --------------------------------------------------------------------------------------------------

SAID = {
    "one": " so it is #### 5\n\nQuestion: next?",
    "two": " restate the Question: 5 #### 6",
    "three": " #### 7",
    "four": " apple dog",
}
UNTIL = {"until": ["\nQuestion:"], "max_gen_toks": 40}


def answers(model, encoder, settings=UNTIL, **more) -> list[str]:
    requests = asked(*((prompt, settings) for prompt in SAID), kind="generate_until")
    return ours(model, encoder, **more).generate_until(requests)


@pytest.mark.parametrize("together", [1, 2, 4])
def test_H06_each_row_ends_at_its_own_stop(together, told, encoder):
    end = encoder.eos
    ids = {p: [*encoder.prompt(t).tolist(), end, *encoder.prompt(" junk").tolist()] for p, t in SAID.items()}
    found = answers(told(ids), encoder, together=together)
    assert found == [" so it is #### 5\n", " restate the Question: 5 #### 6", " #### 7", " apple dog"]


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        ("Question:", " so it is #### 5\n\n"),
        ("est", " so it is #### 5\n\nQu"),
        ("o it", " s"),
        ("5\n\nQ", " so it is #### "),
    ],
)
def test_H06_a_stop_string_counts_wherever_tokens_have_their_borders(stop, left, told, encoder):
    (found, *_) = answers(told(SAID), encoder, {"until": [stop], "max_gen_toks": 20})
    assert found == left


def test_H06_control_tokens_always_stop(told, encoder):
    bos = encoder.tokenizer.bos_token_id
    ids = {p: [*encoder.prompt(t).tolist(), bos, *encoder.prompt(" junk").tolist()] for p, t in SAID.items()}
    assert answers(told(ids), encoder, {"until": ["<s>"], "max_gen_toks": 60}) == list(SAID.values())
    junk = answers(told(ids), encoder, {"until": [], "max_gen_toks": 60})
    assert all(" junk" in text for text in junk)  # only configured stops


def test_H06_the_prompt_is_no_part_of_a_stop_string(told, encoder):
    """The prompt ends in a line, the answer opens with one: two lines would stop."""
    settings = {"until": ["\n\n"], "max_gen_toks": 6}
    (found,) = ours(told({"dog\n": "\napple dog"}), encoder).generate_until(
        asked(("dog\n", settings), kind="generate_until")
    )
    assert found.startswith("\napple dog")


@pytest.fixture
def steps(plain):
    """An entry for each token that the decoder is asked for."""
    seen = []
    hook = plain.decoder.register_forward_hook(lambda *_: seen.append(1))
    yield seen
    hook.remove()


@pytest.mark.parametrize(
    ("until", "read", "left"),
    [
        (["3"], 4, "012"),
        (["34"], 5, "012"),
        (["8", "2345"], 6, "01"),
        (["234", "34"], 5, "01"),
        (["43"], 10, "0123456789"),
    ],
)
def test_H06_no_token_is_decoded_after_a_stop_string(until, read, left, told, steps, encoder):
    """A digit is a token."""
    settings = {"until": until, "max_gen_toks": 10}
    found = ours(told({"dog": "0123456789"}), encoder).generate_until(asked(("dog", settings), kind="generate_until"))
    assert (found, len(steps)) == ([left], read)


@pytest.mark.parametrize(
    ("ends", "read", "left"), [(None, 11, "0123456789"), ("5", 6, "012345"), (["8", "5"], 6, "012345")]
)
def test_H06_the_end_tokens_of_tokenizer_and_decoder_both_end_an_answer(
    ends, read, left, told, steps, encoder, monkeypatch
):
    """Several, one or no end token of the decoder's own; a digit is a token."""
    model = told({"dog": [*encoder.prompt("0123456789").tolist(), encoder.eos]})
    configured = ends and encoder.tokenizer.convert_tokens_to_ids(ends)
    monkeypatch.setattr(model.decoder.generation_config, "eos_token_id", configured)
    found = ours(model, encoder).generate_until(
        asked(("dog", {"until": [], "max_gen_toks": 20}), kind="generate_until")
    )
    assert (found, len(steps)) == ([left], read)


def test_each_request_is_continued_with_its_own_settings(told, encoder):
    settings = [
        {"until": ["5"], "max_gen_toks": 10}, {"until": [], "max_gen_toks": 3}, {"until": ["5"], "max_gen_toks": 4},
        {"until": ["12"], "max_gen_toks": 10}, {"until": ["5"], "max_gen_toks": 10},
    ]  # fmt: skip
    prompts = ["a", "bb", "ccc", "d", "ee"]
    model = told(dict.fromkeys(prompts, "0123456789"))
    found = ours(model, encoder).generate_until(asked(*zip(prompts, settings, strict=True), kind="generate_until"))
    assert found == ["01234", "012", "0123", "0", "01234"]


def test_generation_is_that_of_three_passes_and_of_the_stock_model(bitune, plain, tiny_base, encoder):
    prompts = [row.prompt for row in QUESTIONS[:3]]
    requests = asked(*((p, {"until": [], "max_gen_toks": 6}) for p in prompts), kind="generate_until")
    found = ours(bitune, encoder, together=2).generate_until(requests)
    for prompt, text in zip(prompts, found, strict=True):
        ids = three_pass.greedy(bitune, encoder.prompt(prompt), 6).tolist()
        ends = [i for i, token in enumerate(ids) if token == encoder.eos]
        assert text == encoder.decode(ids[: ends[0]] if ends else ids)
    expected = stock(tiny_base, encoder).generate_until(requests, True)
    assert ours(plain, encoder).generate_until(requests) == expected
