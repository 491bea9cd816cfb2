"""A user's own data: every format, every kind of rows, and what is wrong with a row told by file and line."""

import csv
import json

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from bitune_pl.data.datamodule import BituneData
from bitune_pl.data.sources import load

ROWS = [{"prompt": f"Wer ist {i}?", "answer": f"Nummer {i}"} for i in range(12)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_json(path, rows):
    path.write_text(json.dumps(rows, indent=2))


def write_csv(path, rows, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path, rows):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_folder(path, rows):
    datasets.Dataset.from_list(rows).save_to_disk(path)


def rows_of(path, **settings):
    return load(str(path), "train", whole=True, **settings).examples


def only(tmp_path, row, **settings):
    write_jsonl(tmp_path / "t.jsonl", [row])
    return rows_of(tmp_path / "t.jsonl", **settings)[0]


@pytest.mark.parametrize(
    ("name", "write", "third"),
    [
        ("t.jsonl", write_jsonl, "t.jsonl line 3"),
        ("t.json", write_json, "t.json line 10"),
        ("lines.json", write_jsonl, "lines.json line 3"),
        ("t.csv", write_csv, "t.csv line 4"),
        ("t.tsv", lambda path, rows: write_csv(path, rows, "\t"), "t.tsv line 4"),
        ("semicolons.csv", lambda path, rows: write_csv(path, rows, ";"), "semicolons.csv line 4"),
        ("T.PARQUET", write_parquet, "T.PARQUET row 3"),
        ("folder", write_folder, "folder train row 3"),
    ],
)
def test_formats(tmp_path, name, write, third):
    write(tmp_path / name, ROWS)
    examples = rows_of(tmp_path / name)
    assert [(e.prompt, e.answer) for e in examples] == [(row["prompt"], " " + row["answer"]) for row in ROWS]
    assert examples[2].where == third
    parts = [load(str(tmp_path / name), part).examples for part in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [11, 1, 1] and parts[0] + parts[1] == examples


def test_a_folder_with_splits(tmp_path):
    parts = {"train": ROWS[:6], "validation": ROWS[6:9], "test": ROWS[9:]}
    datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in parts.items()}).save_to_disk(tmp_path / "d")
    for part, rows in parts.items():
        assert [e.prompt for e in load(str(tmp_path / "d"), part).examples] == [row["prompt"] for row in rows]


def test_a_data_set_of_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a: asked.append(a) or {"train": ROWS, "dev": ROWS[:2]})
    assert load("someone/things:small", "validation").examples[1].where == "someone/things dev row 2"
    assert load("someone/things", "test").examples[1].where == "someone/things dev row 2"
    assert asked == [("someone/things", "small"), ("someone/things", None)]


def test_a_data_set_of_the_hub_out_of_reach(monkeypatch):
    def offline(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub or cannot be accessed.")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(
        ConnectionError, match=r"a/b \(.*\) could not be had .* connect to the network, or check its name"
    ):
        load("a/b", "train")


@pytest.mark.parametrize(
    ("row", "prompt", "answers", "gold"),
    [
        ({"prompt": "P", "answer": "A"}, "P", [" A"], 0),
        ({"instruction": "I", "output": "A"}, "Question: I\n\nAnswer:", [" A"], 0),
        ({"instruction": "I", "input": "J", "output": "A"}, "Question: I\nJ\n\nAnswer:", [" A"], 0),
        ({"question": "Q", "answer": 3}, "Question: Q\n\nAnswer:", [" 3"], 0),
        (
            {"question": "Q", "choices": ["x", "y"], "answer": "y"},
            "Question: Q\n\nChoices:\nx\ny\n\nAnswer:",
            [" x", " y"],
            1,
        ),
        (
            {"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]},
            "Question: U\n\nAnswer:",
            [" A"],
            0,
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": "S"},
                    {"role": "user", "content": "U"},
                    {"role": "assistant", "content": "A"},
                ]
            },
            "Question: S\n\nU\n\nAnswer:",
            [" A"],
            0,
        ),
    ],
)
def test_kinds_of_rows(tmp_path, row, prompt, answers, gold):
    example = only(tmp_path, row)
    assert (example.prompt, list(example.answers), example.gold) == (prompt, answers, gold)


@pytest.mark.parametrize(
    ("choices", "answer", "gold"),
    [
        (["red", "blue", "green"], "green", 2),
        (["red", "blue", "green"], 1, 1),
        (["red", "blue", "green"], "C", 2),
        ({"text": ["red", "blue"], "label": ["1", "2"]}, "2", 1),
        ({"text": ["1", "2"], "label": ["B", "A"]}, "A", 1),
        (["10", "20"], 20, 1),
        ('["red", "blue"]', "1", 1),
        (["red", "blue"], 1.0, 1),
    ],
)
def test_the_right_choice(tmp_path, choices, answer, gold):
    assert only(tmp_path, {"question": "Q", "choices": choices, "answer": answer}).gold == gold


@pytest.mark.parametrize(
    ("choices", "answer", "message"),
    [
        (["1", "2", "3"], "2", "can mean several choices"),
        (["B", "A"], "A", "can mean several choices"),
        (["red", "red"], "red", "can mean several choices"),
        (["red", "blue"], "yellow", "no right answer .*'yellow', which is no choice"),
        (["red", "blue"], 2, "no right answer"),
        (["red", "blue"], -1, "no right answer"),
        (["red", "blue"], None, "no right answer"),
        (["red", "blue"], True, "no right answer"),
        ({"text": ["red", "blue"], "label": ["1", "2"]}, "red", "the labels are 1, 2"),
        ("red, blue", "red", "is text, not a list"),
        (["red"], "red", "no list of two or more"),
    ],
)
def test_a_right_choice_is_never_guessed(tmp_path, choices, answer, message):
    with pytest.raises(ValueError, match=f"t.jsonl line 1: .*{message}"):
        only(tmp_path, {"question": "Q", "choices": choices, "answer": answer})


def test_choices_in_columns(tmp_path):
    write_csv(tmp_path / "t.csv", [{"question": "Q", "choice0": "x", "choice1": "y", "answer": "y"}])
    assert rows_of(tmp_path / "t.csv")[0].gold == 1
    write_csv(tmp_path / "u.csv", [{"question": "Q", "a": "x", "b": "y", "key": "B"}])
    names = {"choices": ["a", "b"], "answer": "key"}
    assert rows_of(tmp_path / "u.csv", names=names)[0].answers == (" x", " y")


def test_named_columns_and_another_language(tmp_path):
    write_jsonl(tmp_path / "t.jsonl", [{"frage": f"Was {i}?", "antwort": "Das", "thema": "Alles"} for i in range(9)])
    settings = {"fields": {"prompt": "frage", "answer": "antwort"}, "template": "{thema}: {prompt} {{}}\nAntwort:"}
    data = BituneData(str(tmp_path / "t.jsonl"), **settings)
    assert data.template.prompt == settings["template"]
    assert data.examples("train")[2].prompt == "Alles: Was 2? {}\nAntwort:"
    with pytest.raises(ValueError, match="t.jsonl line 1: .*lacks the field 'fragen'"):
        rows_of(tmp_path / "t.jsonl", names={"prompt": "fragen", "answer": "antwort"})


def test_an_instruction_and_its_input_apart(tmp_path):
    row = {"instruction": "Add", "input": None, "output": "3"}
    assert only(tmp_path, row, template="I: {instruction}\nE: {input}\nA:").prompt == "I: Add\nE: \nA:"


def test_columns_that_say_nothing(tmp_path):
    with pytest.raises(
        ValueError, match="columns of .*t.jsonl are text, n, and expected are prompt, answer; .*data.fields"
    ):
        only(tmp_path, {"text": "a", "n": 1})
    with pytest.raises(ValueError, match="piqa has columns that are known"):
        BituneData("piqa", fields={"prompt": "goal"})


def test_chats_that_are_no_single_turn(tmp_path):
    def chat(*turns):
        return {"messages": [{"role": role, "content": text} for role, text in turns]}

    one = chat(("user", "U"), ("assistant", "A"))
    two = chat(("user", "U"), ("assistant", "A"), ("user", "V"), ("assistant", "B"))
    write_jsonl(tmp_path / "t.jsonl", [one, two, chat(("user", "U")), chat(("user", " "), ("assistant", "A"))])
    loaded = load(str(tmp_path / "t.jsonl"), "train", whole=True)
    assert len(loaded.examples) == 1
    assert [row.reason for row in loaded.dropped] == [
        "with more than one turn",
        "whose messages are not a user's and then an assistant's",
        "with a blank message",
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", 'prompt,answer\na,b\n\n"x\ny",z\na,b,c\n', "t.csv line 6: this row has 3 cells, the header has 2"),
        ("t.csv", 'prompt,answer\na,b\n"a,b\n', "t.csv line 3: this row is not CSV .*check its quotation marks"),
        ("t.csv", b"prompt,answer\na,b\na,\xff\n", "t.csv line 3: this is not UTF-8 text"),
        ("t.json", '[{"prompt": "a", "answer": "b"},\n\n {"prompt": }]', "t.json line 3: this row is not JSON"),
        ("t.json", '[{"prompt": "a", "answer": "b"},\n 7]', "t.json line 2: a row is an object"),
        ("t.json", '[{"prompt": "a", "answer": "b"}\n', "t.json line 1: after this row a comma"),
        ("t.json", '[{"prompt": "a", "answer": "b"},\n', "t.json line 2: this row is not JSON"),
        ("t.json", "", r"no usable rows \(0 of 0\)"),
        ("t.csv", "", r"no usable rows \(0 of 0\)"),
        ("t.jsonl", '{"prompt": "a", "answer": "b"}\n' + '{"prompt": ' * 99999, "line 2: this line is not JSON"),
        ("t.jsonl", '{"prompt": 1' + "0" * 9999 + "}", "line 1: this line is not JSON .a number of thousands"),
        ("t.parquet", "no parquet", "t.parquet cannot be read as Parquet"),
    ],
)
def test_what_is_wrong_and_where(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path / name)


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(
        ValueError, match="was not written by save_to_disk .*give such a folder, or a file that ends in"
    ):
        load(str(tmp_path), "train")


def test_a_csv_file_as_spreadsheets_write_it(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeffprompt;answer\r\n"Was, bitte?";"zwei\nZeilen"\r\nNone;007\r\n;x\r\n'.encode())
    loaded = load(str(path), "train", whole=True)
    assert [(e.prompt, e.answer) for e in loaded.examples] == [("Was, bitte?", " zwei\nZeilen"), ("None", " 007")]
    assert [(row.where, row.reason) for row in loaded.dropped] == [("t.csv line 5", "with a blank prompt")]
