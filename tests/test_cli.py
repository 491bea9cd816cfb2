"""The commands: help at once, mistakes in one sentence, and the way from a run to an answer."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny_base import CPU, tiny_base  # noqa: F401

from bitune_pl.cli import COMMANDS, main
from bitune_pl.data.templates import Template
from bitune_pl.evaluation import generate


@pytest.fixture(scope="module")
def run(tiny_base, tmp_path_factory):  # noqa: F811
    """The folder of a finished run of one update on the embedded data."""
    root = tmp_path_factory.mktemp("runs")
    few = ["--data.train_rows", "20", "--data.validation_rows", "5", "--trainer.max_steps", "1"]
    assert main(["fit", "--model.base", tiny_base, *CPU, *few, "--trainer.default_root_dir", str(root)]) == 0
    (folder,) = (root / "categories").iterdir()
    return str(folder)


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def mistake(capsys, *argv: str) -> str:
    """The one line that a mistake prints."""
    assert main(argv) == 2
    said = capsys.readouterr()
    (line,) = said.err.strip().splitlines()
    assert line.startswith("bitune: ") and "Traceback" not in line
    return line


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == main([]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {command} ", text, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize("argv", [["--version"], ["verify", "--base", "smollm2"]])
def test_a_reader_that_ends_early_hears_no_complaint(argv):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "bitune_pl", *argv], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == "" and done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("command", ["evaluate", "generate", "fit"])
def test_each_command_lists_its_settings(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0 and "--" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys):
    assert "There is no command 'evalute'; did you mean evaluate?" in mistake(capsys, "evalute")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model.lrr", "1"], "There is no setting model.lrr; did you mean model.lr?"),
        (["--trainer.max_step", "1"], "There is no setting trainer.max_step; did you mean trainer.max_steps?"),
        (["--model.lr", "fast"], "model.lr is fast, where a number is expected."),
        (["--model.weighting", "tokens"], "model.weighting is tokens, where one of 'sample', 'token' is expected."),
        (["--model.method.mixing", "false"], "one field of a named variant cannot be changed alone"),
        (
            ["--model.method", "bitune", "--model.method.mixing", "false"],
            "one field of a named variant cannot be changed alone",
        ),
        (["--model.method", "biune"], "There is no variant 'biune'; the variants are plain, bitune"),
        (["--data.base", "other"], "data.base is taken from model.base"),
        (["--trainer.max_steps", "many"], "trainer.max_steps is many, where a whole number is expected."),
        (["--model.betas", "[0.9]"], "model.betas"),
        (["--seed_everything", "true"], "seed_everything"),
        (["--config", "nowhere.yaml"], "There is no config nowhere.yaml"),
        (["-c", "nowhere.yaml"], "There is no config nowhere.yaml"),
        (["--config", "{model: [}"], "--config is not YAML"),
        (["--config", "{config: {a: 1}}"], "holds a section config"),
        (["--config"], "--config"),
        (["--data.source", "comonsense_qa"], "There is no data source 'comonsense_qa'"),
        (["--data.source", "commonsense_qa", "--data.root", "nowhere"], "There is no file nowhere/"),
        (["--data.source", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--ckpt_path", "nowhere.ckpt"], "There is no checkpoint nowhere.ckpt"),
        (["--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["--resume"], "--resume needs the folder of a run"),
        (["--model.base", "./nowhere"], "There is no folder ./nowhere"),
        (["--trainer.accelerator", "gpux"], "gpux"),
    ],
)
def test_a_mistake_in_fit_is_one_sentence(argv, message, capsys, tiny_base):  # noqa: F811
    base = [] if "--model.base" in argv else ["--model.base", tiny_base]
    assert message in mistake(capsys, "fit", *base, *CPU, *argv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n  metod: bitune\n", "There is no setting model.metod; did you mean model.method?"),
        ("modle:\n  method: bitune\n", "There is no setting modle.method; did you mean model.method?"),
        (
            "trainer:\n  gradient_clip: 1\n",
            "There is no setting trainer.gradient_clip; did you mean trainer.gradient_clip_val?",
        ),
        ("model: [", "mine.yaml is not YAML"),
    ],
)
def test_a_mistake_in_a_config_names_the_nearest_setting(text, message, capsys, tmp_path, tiny_base):  # noqa: F811
    (tmp_path / "mine.yaml").write_text(text)
    assert message in mistake(capsys, "fit", "--config", "mine.yaml", "--model.base", tiny_base)


def test_a_bad_line_is_named_with_its_file(capsys, tmp_path, tiny_base):  # noqa: F811
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": " b"}\n\n{"prompt": "a", "answer": \n')
    assert "train.jsonl line 3" in mistake(
        capsys, "fit", "--model.base", tiny_base, *CPU, "--data.source", "train.jsonl"
    )


def test_a_broken_checkpoint_is_named(capsys, tmp_path, tiny_base):  # noqa: F811
    (tmp_path / "cut.ckpt").write_bytes(b"PK\x03\x04 cut short")
    assert "cut.ckpt cannot be read as a checkpoint" in mistake(
        capsys, "fit", "--model.base", tiny_base, *CPU, "--ckpt_path", "cut.ckpt"
    )


def test_the_traceback_is_there_for_who_asks(monkeypatch):
    monkeypatch.setenv("BITUNE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no command"):
        main(["evalute"])


def test_evaluate_prints_a_table(run, tiny_base, capsys):  # noqa: F811
    for what in (["--run", run], ["--base", tiny_base]):
        assert main(["evaluate", *what, "--tasks", "categories,sums", "--limit", "3"]) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head.split()[:3] == ["task", "n", "accuracy"]
        assert [line.split()[:2] for line in lines] == [["categories", "3"], ["sums", "3"]]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tasks", "categories"], "Say which model, by one of the two: --run FOLDER"),
        (["--run", "nowhere", "--tasks", "categories"], "nowhere does not exist: give the folder of a finished run"),
        (["--run", ".", "--tasks", "categories"], "holds no model"),
        (["--base", "x", "--tasks", "categorie"], "There is no task 'categorie'"),
        (["--base", "x", "--tasks", "piqa", "--data.root", "nowhere"], "There is no file nowhere/"),
        (["--base", "x", "--tasks", "categories", "--limit", "0"], "--limit is a number of rows"),
        (["--base", "x", "--tasks", ","], "--tasks names no task"),
        (["--base", "x"], "--tasks"),
        (["--base", "x", "--task", "categories"], "--task"),
    ],
)
def test_a_mistake_in_evaluate_is_one_sentence(argv, message, capsys):
    assert message in mistake(capsys, "evaluate", *argv)


QUESTION = ["--prompt", "Which is a fruit?", "--choice", "apple", "--choice", "dog"]


def test_generate_fills_the_template_of_the_run(run, capsys, monkeypatch, tmp_path):
    short = ["--run", run, "--max-new-tokens", "8"]
    assert main(["generate", *short, *QUESTION]) == 0
    filled = capsys.readouterr().out
    raw = "Question: Which is a fruit?\n\nChoices:\napple\ndog\n\nAnswer:"
    (tmp_path / "question.txt").write_text(raw + "\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(raw))
    for more in (["--raw", "--prompt", raw], ["--raw", "--file", "question.txt"], ["--raw"]):
        assert main(["generate", *short, *more]) == 0
        assert capsys.readouterr().out == filled


def test_a_question_may_begin_with_dashes(run, capsys):
    assert main(["generate", "--run", run, "--max-new-tokens", "2", "--prompt", "-- what is a plum?"]) == 0
    assert "There is no option" not in capsys.readouterr().err


def test_a_question_without_choices_is_written_without_them(run, capsys):
    short = ["--run", run, "--max-new-tokens", "8"]
    assert main(["generate", *short, "--prompt", "Which is a fruit: plum or sofa?"]) == 0
    filled, note = capsys.readouterr()
    assert main(["generate", *short, "--raw", "--prompt", "Question: Which is a fruit: plum or sofa?\n\nAnswer:"]) == 0
    assert capsys.readouterr().out == filled and "list their choices (--choice)" in note


def test_generate_answers_a_file_of_rows(run, capsys, tmp_path):
    rows = [{"prompt": f"Which is a fruit, {i}?", "choices": ["apple", "dog"]} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["generate", "--run", run, "--file", "rows.jsonl", "--max-new-tokens", "4"]) == 0
    assert [set(json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [{"answer"}] * 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prompt", "a", "--file", "b"], "by --prompt or by --file, not by both"),
        (["--file", "nowhere.txt"], "There is no file nowhere.txt"),
        (["--file", "."], ". is a folder: name a file to read the prompt from"),
        (["--file", "rows.jsonl"], "rows.jsonl line 1: this line is not JSON"),
        (
            ["--file", "numbers.jsonl"],
            'numbers.jsonl line 2: "choices" is a list of texts, such as ["yes", "no"], not [1,',
        ),
        (["--file", "null.jsonl"], 'null.jsonl line 1: "choices" is a list of texts, such as ["yes", "no"], not None'),
        (["--file", "deep.jsonl"], "deep.jsonl line 1: this line is not JSON"),
        (["--file", "number.jsonl"], 'number.jsonl line 1: "prompt" is a text, not 3'),
        (["--file", "half.jsonl"], "half.jsonl line 1: its text holds half a surrogate pair"),
        (["--prompt", "a\udc80"], "The prompt: its text holds half a surrogate pair"),
        (["--file", "latin.txt"], "latin.txt is not UTF-8 text (byte 4); save it as UTF-8."),
        (["--file", "latin.jsonl"], "latin.jsonl line 1: this is not UTF-8 text (byte 16)"),
        (["--file", "empty.jsonl"], "empty.jsonl holds no row to answer"),
        (["--file", "empty.txt"], "empty.txt is empty: give a prompt"),
        ([], "Standard input is empty: give a prompt"),
        (["--prompt", " "], "The prompt is empty, and the template asks for its instruction"),
        (
            ["--prompt", "", "--choice", "a", "--choice", "b"],
            "The prompt is empty, and the template asks for its question",
        ),
        (["--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens is a number of tokens, at least 1, not 0."),
        (["--prompt", "a", "--temperature", "-1"], "--temperature is a number from 0 (greedy) up, not -1.0."),
        (["--prompt", "a", "--temperature", "nan"], "--temperature is a number from 0 (greedy) up, not nan."),
        (["--prompt", "a", "--temperature", "inf"], "--temperature is a number from 0 (greedy) up, not inf."),
        (
            ["--prompt", "a", "--raw", "--max-new-tokens", "99999"],
            "positions, which leaves no room for 99999 new tokens: shorten it, or ask for at most ",
        ),
        (["--prompt", "a", "--choice", "x"], "Choices are two or more texts, as in training, not ['x']"),
        (["--prompt", "a", "--choice", "x", "--choice", ""], "Choices are two or more texts"),
        (
            ["--prompt", "a", "--field", "foo"],
            "--field is NAME=TEXT, a field of the template and what it says, not 'foo'",
        ),
        (["--prompt", "a", "--field", "foo=1"], "template has no field 'foo'; its fields are question, choices"),
        (
            ["--prompt", "a", "--raw", "--field", "question=1"],
            "--field question would go nowhere: leave --field question out",
        ),
        (["--prompt", "a", "--raw", "--choice", "x"], "choices would go nowhere: leave choices out"),
    ],
)
def test_a_mistake_in_generate_is_one_sentence(argv, message, run, capsys, tmp_path, monkeypatch):
    files = {
        "rows.jsonl": "{", "numbers.jsonl": '\n{"prompt": "a", "choices": [1, 2]}', "half.jsonl": '{"prompt": "\\ud800"}',
        "null.jsonl": '{"prompt": "a", "choices": null}', "empty.jsonl": "\n\n", "empty.txt": "\n",
        "deep.jsonl": "[" * 100_000, "number.jsonl": '{"prompt": 3}',
        "latin.txt": b"caf\xe9", "latin.jsonl": b'{"prompt": "caf\xe9"}',
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert message in mistake(capsys, "generate", "--run", run, *argv)


def test_an_answer_is_as_long_as_there_is_room_for():
    """Of 16 positions, 6 hold a prompt of 6 tokens; the last new token is not read."""
    prompts = [torch.arange(6), torch.arange(2)]

    def room(asked: int | None, copies: int = 1, positions: int | None = 16) -> int:
        model = SimpleNamespace(positions=positions, method=SimpleNamespace(prompt_copies=copies))
        return generate._longest_answer(model, prompts, asked)

    assert (room(None), room(11), room(3), room(None, copies=2)) == (11, 11, 3, 5)
    assert (room(None, positions=None), room(9999, positions=None), room(None, positions=5000)) == (256, 9999, 256)
    with pytest.raises(ValueError, match="12 new tokens: shorten it, or ask for at most 11 new tokens[.]$"):
        room(12)
    with pytest.raises(ValueError, match="takes 6 of the decoder's 5 positions, .* for any new tokens: shorten it[.]$"):
        room(None, positions=5)


def test_choices_for_a_template_that_lists_none_are_refused():
    row = {"prompt": "a", "choices": ["x"], generate.GIVEN: ()}
    with pytest.raises(ValueError, match="lists no choices, so they would go nowhere: leave --choice out"):
        generate._fill(Template("Question: {question}"), row)


def test_predict_answers_the_test_rows(run, capsys):
    assert main(["predict", "--run", run, "--data.validation_rows", "2"]) == 0
    assert [set(json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [{"row", "prompt", "answer"}] * 2
