"""From rows to examples: the table, right answers by position, bad rows named by file and line."""

import json
import math
import re

import pytest

from bitune_pl.data.sources import SOURCES, load
from bitune_pl.data.templates import Template


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def lettered(labels, key, question="Which?"):
    return {"question": question, "choices": {"text": [f"c{i}" for i in labels], "label": labels}, "answerKey": key}


def test_own_file_is_taken_as_written(tmp_path):
    path = write(tmp_path / "train.jsonl", [{"prompt": "Q:", "answer": " Yes"}, "", {"prompt": "R:", "answer": "No"}])
    first, second = load(str(path), "train").examples
    assert (first.prompt, first.answers, first.where) == ("Q:", (" Yes",), "train.jsonl line 1")
    assert (second.answers, second.where) == ((" No",), "train.jsonl line 3"), "blank lines count"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "answer": ', "train.jsonl line 3: this line is not JSON"),
        ("[]", "train.jsonl line 3: a row is an object"),
        ('{"prompt": "a"}', "train.jsonl line 3: this is no row of .* lacks the field 'answer'"),
        ('{"prompt": ["a"], "answer": "b"}', "train.jsonl line 3: .* 'prompt' is list, not text"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "train.jsonl", [{"prompt": "a", "answer": "b"}, "", line])
    with pytest.raises(ValueError, match=message):
        load(str(path), "train")


def test_bytes_that_are_not_utf8_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": "b"}\r\n')
    assert load(str(path), "train").examples[0].prompt == "a"
    path.write_bytes(b'\n{"prompt": "\xff", "answer": "b"}\n')
    with pytest.raises(ValueError, match="train.jsonl line 2: this is not UTF-8"):
        load(str(path), "train")


def test_an_empty_file_and_one_without_usable_rows(tmp_path):
    with pytest.raises(ValueError, match=r"no usable rows \(0 of 0\)"):
        load(str(write(tmp_path / "empty.jsonl", [])), "train")
    rows = [{"prompt": "a", "answer": ""}, {"prompt": " ", "answer": "b"}, {"prompt": "a", "answer": None}]
    said = r"0 of 3: 2 with a blank answer, first none.jsonl line 1; 1 with a blank prompt, first none.jsonl line 2"
    with pytest.raises(ValueError, match=said):
        load(str(write(tmp_path / "none.jsonl", rows)), "train")


def test_missing_data_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="no data file .*gone.jsonl"):
        load(str(tmp_path / "gone.jsonl"), "train")
    with pytest.raises(FileNotFoundError, match="piqa/train.jsonl.*data.root.*baber/piqa"):
        load("piqa", "train", root=tmp_path)
    with pytest.raises(ValueError, match="no data source 'piqqa'; there are categories, .*piqa"):
        load("piqqa", "train")
    with pytest.raises(ValueError, match="mmlu has no train part"):
        load("mmlu", "train", root=tmp_path)


def test_the_hub_out_of_reach(monkeypatch):
    import datasets

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'tau/commonsense_qa' on the Hub (OfflineModeIsEnabled)\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ConnectionError, match="tau/commonsense_qa .*data.root .*commonsense_qa/train.jsonl") as error:
        load("commonsense_qa", "train")
    assert "\n" not in str(error.value)


def test_the_hub_is_asked_for_the_right_split(monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a, **k: asked.append((*a, k["split"])) or [lettered(["A", "B"], "A")]
    )
    assert load("arc_challenge", "test").examples[0].where == "allenai/ai2_arc test row 1"
    assert asked == [("allenai/ai2_arc", "ARC-Challenge", "test")]


def test_blank_fields(tmp_path):
    rows = [
        {"instruction": "Name a colour", "input": "", "output": ""},
        {"instruction": "Sum 1,2", "input": None, "output": "3"},
        {"instruction": "   ", "input": "", "output": "ok"},
        {"instruction": "Sum", "input": math.nan, "output": 3},
        {"instruction": "Add", "input": "1 and 2", "output": "3"},
        {"instruction": "Half \ud800", "input": "", "output": "3"},
    ]
    write(tmp_path / "alpaca" / "train.jsonl", rows)
    loaded = load("alpaca", "train", root=tmp_path)
    assert [example.prompt for example in loaded.examples] == [
        "Question: Sum 1,2\n\nAnswer:",
        "Question: Sum\n\nAnswer:",
        "Question: Add\n1 and 2\n\nAnswer:",
    ]
    assert [(row.where, row.reason) for row in loaded.dropped] == [
        ("alpaca/train.jsonl line 1", "with a blank output"),
        ("alpaca/train.jsonl line 3", "with a blank instruction"),
        ("alpaca/train.jsonl line 6", "with half a surrogate pair in instruction"),
    ]


def test_right_answers_are_found_by_position(tmp_path):
    rows = [lettered(list("1234"), "3"), lettered(list("ABCDE"), "E"), lettered(list("ABC"), "A")]
    write(tmp_path / "arc_challenge" / "test.jsonl", rows)
    examples = load("arc_challenge", "test", root=tmp_path).examples
    assert [(len(e.answers), e.gold) for e in examples] == [(4, 2), (5, 4), (3, 0)]
    assert examples[1].answer == " cE"
    social = {"context": "c", "question": "q", "answerA": "x", "answerB": "y", "answerC": "z", "label": "1"}
    write(tmp_path / "social_i_qa" / "train.jsonl", [social])
    only = load("social_i_qa", "train", root=tmp_path).examples[0]
    assert only.answers == (" (0)", " (1)", " (2)") and only.gold == 0


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("commonsense_qa", lettered(list("ABCDE"), "")),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": -1}),
        ("social_i_qa", {"context": "c", "question": "q", "answerA": "x", "answerB": "y", "answerC": "z", "label": ""}),
    ],
)
def test_a_question_without_a_right_answer_is_refused(tmp_path, name, row):
    write(tmp_path / name / "validation.jsonl", [row])
    with pytest.raises(ValueError, match=f"{name}/validation.jsonl line 1: no right answer in split 'validation'"):
        load(name, "validation", root=tmp_path)


def asks(choices, answer, **more):
    return {"question": "x?", "choices": choices, "answer": answer, "answerKey": answer, **more}


AMBIGUOUS = {
    "more labels than choices": (
        {"text": ["yes", "no"], "label": ["A", "B", "C"]}, "C", "it has 2 choices and 3 labels",
    ),
    "less labels than choices": (
        {"text": ["yes", "no", "so"], "label": ["A", "B"]}, "B", "it has 3 choices and 2 labels",
    ),
    "texts": ({"text": "yes", "label": "ABC"}, "B", "no list of two or more but 'yes'"),
    "labels in a text": ({"text": ["x", "y"], "label": "AB"}, "B", "the labels of its choices are no list but 'AB'"),
    "a label twice": ({"text": ["x", "y"], "label": ["A", "A"]}, "A", "two of its choices have the label 'A'"),
    "1 and '1'": ({"text": ["x", "y"], "label": [1, "1"]}, "1", "two of its choices have the label '1'"),
    "one choice": ({"text": ["x"], "label": ["A"]}, "A", "no list of two or more but ['x']"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["arc_challenge", "commonsense_qa", "own.jsonl"])
@pytest.mark.parametrize("case", AMBIGUOUS)
def test_h08_choices_and_labels_that_do_not_fit_are_refused_with_file_and_line(tmp_path, name, case):
    choices, answer, message = AMBIGUOUS[case]
    path = write(tmp_path / ("own.jsonl" if "own" in name else f"{name}/train.jsonl"), [asks(choices, answer)])
    with pytest.raises(ValueError, match=r"(own|train).jsonl line 1: this is no row of .*" + re.escape(message)):
        load(str(path) if "own" in name else name, "train", root=tmp_path, whole=True)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("mmlu", asks("ab", 1), "no list of two or more but 'ab'"),
        ("mmlu", asks(["a"], 0), "no list of two or more but ['a']"),
        ("mmlu", asks(None, 0), "no list of two or more but None"),
        ("arc_easy", asks(["a", "b"], "A"), "its choices are not {'text': [...], 'label': [...]} but ['a', 'b']"),
        ("piqa_cot", asks("ab", "A", steps=["s"]), "no list of two or more but 'ab'"),
        ("own.jsonl", asks('"ab"', 1), "no list of two or more but 'ab'"),
        ("own.jsonl", {"question": "x?", "choice0": "a", "answer": 0}, "no list of two or more but ['a']"),
    ],
)
def test_h08_a_text_is_no_list_of_choices(tmp_path, name, row, message):
    part = "train" if name in ("own.jsonl", "piqa_cot") else "test"
    path = write(tmp_path / ("own.jsonl" if "own" in name else f"{name}/{part}.jsonl"), [row])
    with pytest.raises(ValueError, match=r".jsonl line 1: this is no row of .*" + re.escape(message)):
        load(str(path) if "own" in name else name, part, root=tmp_path, whole=True)


def test_ultrafeedback_takes_gpt4_only_and_holds_out_the_last_thousand(tmp_path):
    def row(i, *models):
        return {"instruction": f"i{i}", "completions": [{"model": m, "response": f"{m} says {i}"} for m in models]}

    rows = [row(0, "llama-2-7b-chat", "gpt-4"), row(1, "gpt-3.5-turbo", "bard"), row(2, "gpt-4", "vicuna-33b")]
    write(tmp_path / "ultrafeedback" / "train.jsonl", rows + [row(i, "gpt-4") for i in range(3, 1003)])
    train, validation = (load("ultrafeedback", part, root=tmp_path) for part in ("train", "validation"))
    assert [e.answer for e in train.examples] == [" gpt-4 says 0", " gpt-4 says 2"]
    assert [d.reason for d in train.dropped] == ["without a completion by GPT-4"]
    assert len(validation.examples) == 1000 and validation.examples[0].prompt == "Question: i3\n\nAnswer:"


def test_ultrafeedback_is_never_another_set(tmp_path):
    write(tmp_path / "ultrafeedback_binarized" / "train.jsonl", [{"prompt": "a", "chosen": "b"}])
    with pytest.raises(FileNotFoundError, match="ultrafeedback/train.jsonl.*openbmb/UltraFeedback"):
        load("ultrafeedback", "train", root=tmp_path)


def test_a_template_of_the_users(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"prompt": "Was?", "answer": "Ja"}])
    assert load(str(path), "train", template=Template("Frage: {prompt}\nAntwort:")).examples[0].prompt == (
        "Frage: Was?\nAntwort:"
    )
    with pytest.raises(ValueError, match=r"t.jsonl line 1: the template asks for \{question\}"):
        load(str(path), "train", template=Template("{question}"))


def test_the_embedded_sets_need_nothing():
    row = load("categories", "validation", limit=1).examples[0]
    assert row.prompt.startswith("Question: ") and "\n\nChoices:\n" in row.prompt and row.prompt.endswith("\n\nAnswer:")
    assert len(row.answers) == 4 and row.answer in row.answers
    assert "\n#### " in load("sums", "train", limit=1).examples[0].answer


SIZES = {  # paper, appendix A.3
    ("piqa", "train"): 16113,
    ("piqa", "test"): 1838,
    ("arc_challenge", "train"): 1119,
    ("arc_challenge", "test"): 1172,
    ("commonsense_qa", "train"): 9741,
    ("commonsense_qa", "test"): 1221,
    ("social_i_qa", "test"): 1954,
    ("gsm8k", "train"): 7473,
    ("gsm8k", "test"): 1319,
    ("mmlu", "test"): 14042,
}


@pytest.mark.parametrize(("name", "part"), SIZES)
def test_sizes_of_the_paper(shared, name, part):
    loaded = load(name, part, root=shared / "data")
    assert (len(loaded.examples), loaded.dropped) == (SIZES[name, part], [])


def test_every_source_is_whole():
    for name, source in SOURCES.items():
        assert [source.hub, source.make, source.tested_on].count(None) == 2, name
        assert source.template.fields, name
