"""`bitune data show` and `bitune data check`."""

import json

import pytest

from bitune_pl.data.inspect import main


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def bitune_data(byte_level, capsys):
    asked = []

    def run(*argv):
        status = main([str(arg) for arg in argv], lambda base: asked.append(base) or byte_level, lambda base: 5000)
        return status, " ".join(capsys.readouterr().out.split()), asked[-1]

    return run


def test_show(bitune_data, byte_level, tmp_path):
    rows = [{"prompt": f"Question {i}:", "answer": "word " * 3} for i in range(20)] + [{"prompt": "x", "answer": ""}]
    file = write(tmp_path / "t.jsonl", [*rows, {"prompt": "q" * 600, "answer": "a"}])
    status, said, base = bitune_data("show", "--data.source", file, "--rows", 1, "--base", "some/base")
    assert (status, base) == (0, "some/base")
    assert "t.jsonl line 1, the answer in brackets | Question 0:[ word word word ]" in said and "line 2" not in said
    colon, end = byte_level(":").input_ids[0], byte_level.eos_token_id
    assert f"{colon} ':' start token, the answer's first input ----" in said
    assert f"{end} </s> learned: the end" in said
    assert "rows kept: 19 of 20: 1 with a blank answer, first t.jsonl line 21" not in said, (
        "the held-out rows are not of it"
    )
    assert "tokenizer of some/base, rows kept: 20 of 20" in said and "tokens rows" in said


def test_show_choices_as_they_are_scored(bitune_data):
    _, said, base = bitune_data("show", "--part", "validation", "--rows", 1)
    assert base == "smollm2" and "choices, as they are scored:" in said and said.count("right '") == 1
    assert "categories (validation), tokenizer of smollm2, rows kept: 500 of 500" in said


def test_check_names_what_is_wrong(bitune_data, tmp_path):
    good = [{"prompt": f"Q{i}", "answer": "a"} for i in range(12)]
    bad = ["{", {"prompt": "q"}, {"prompt": " ", "answer": "b"}, {"prompt": "x" * 700, "answer": "b"}]
    train = write(tmp_path / "t.jsonl", [*good, {"prompt": "q0 ", "answer": "A"}, "", *bad])
    other = write(tmp_path / "v.jsonl", [{"prompt": "Q3", "answer": "else"}, {"prompt": "new", "answer": "a"}])
    status, said, _ = bitune_data("check", "--data.source", train, "--data.validation_source", other)
    assert status == 1
    assert "train 17 13 2 2 " in said and "validation 2 2 0 0 " in said
    for remark in (
        "train: dropped 1 with a blank prompt, first t.jsonl line 17",
        "train: dropped 1 longer than 512 tokens, first t.jsonl line 18",
        "train: t.jsonl line 15: this line is not JSON",
        "train: t.jsonl line 16: this is no row of",
        "train: 1 rows repeat an earlier one, first t.jsonl line 13 (as t.jsonl line 1)",
        "validation: 1 prompts are trained on too, first v.jsonl line 1 (as t.jsonl line 4)",
    ):
        assert remark in said


def test_check_of_a_part_that_keeps_no_row(bitune_data, tmp_path):
    long = write(tmp_path / "t.jsonl", [{"prompt": f"{i}" + "x" * 700, "answer": "b"} for i in range(12)])
    status, said, _ = bitune_data("check", "--data.source", long)
    assert status == 1 and "train 11 0 11 0 " in said


def test_check_of_a_config_reads_every_row(bitune_data, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "seed_everything: 1\nmodel: {base: a/b, lr: 0.1}\ndata: {source: sums, train_rows: 5}\ntrainer: {}\n"
    )
    status, said, base = bitune_data("check", "--config", config, "--data.validation_rows", 3)
    assert (status, base) == (0, "a/b")
    assert "train 2000 2000 0 0" in said and "validation 500 500 0 0" in said
    assert "Nothing dropped, nothing twice, no overlap." in said
    assert "overlap" in bitune_data("check", "--config", config, "--data.source", "categories")[1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["shw"], "takes show or check, not 'shw'"),
        (["show", "--data.sourc", "x"], "nrecognized arguments: --data.sourc x; bitune data show --help"),
        (["check", "--config", "gone.yaml"], "There is no config gone.yaml"),
        (["check", "--data.source", "gone.jsonl"], "There is no data file gone.jsonl"),
        (["check", "--data.source", "piqa", "--data.root", "gone"], "There is no file gone/piqa/train.jsonl"),
    ],
)
def test_mistakes(bitune_data, argv, message):
    with pytest.raises((ValueError, OSError), match=message):
        bitune_data(*argv)


def test_help(bitune_data, capsys):
    assert main([], None, None) == 0 and "show|check" in capsys.readouterr().out


def test_a_new_start_token_is_shown(bitune_data, tmp_path):
    file = write(tmp_path / "t.jsonl", [{"prompt": f"Question {i}:", "answer": "word"} for i in range(3)])
    config = tmp_path / "c.yaml"
    config.write_text(f'model: {{base: some/base, start_token: "<sep>"}}\ndata: {{source: "{file}"}}\n')
    _, said, _ = bitune_data("show", "--config", config, "--rows", 1)
    assert "5000 <sep> start token, the answer's first input ----" in said
