"""Settings that only the end of a run, or nothing at all, would notice are refused before anything is loaded."""

import json

import pytest

from bitune_pl.cli import main
from bitune_pl.data.datamodule import BituneData
from tests.tiny_base import CPU


def fit(tiny_base, tmp_path, *settings):
    start = ["fit", "--model.base", tiny_base, *CPU, "--data.train_rows", "12", "--data.validation_rows", "4"]
    return main([*start, "--trainer.default_root_dir", str(tmp_path), *settings])


REFUSED = {
    "data.validation_rows": ["--trainer.max_steps=1", "--compare_untuned=true", "--trainer.limit_val_batches=1"],
    "trainer.max_steps": ["--trainer.max_time=00:00:00:01"],
    "trainer.max_epochs": ["--trainer.max_epochs=-1"],
    "limit_train_batches": [
        "--trainer.max_steps=2", "--trainer.limit_train_batches=3", "--trainer.accumulate_grad_batches=2"
    ],
    "model.eps": ["--trainer.max_steps=1", "--model.eps=-1"],
    "model.betas": ["--trainer.max_steps=1", "--model.betas=[2,3]"],
    "of no updates": ["--trainer.max_steps=0"],
    "trainer.accumulate_grad_batches is": ["--trainer.max_steps=1", "--trainer.accumulate_grad_batches=0"],
    "trainer.strategy is fsdp": ["--trainer.max_steps=1", "--trainer.strategy=fsdp"],
    "data.num_workers is": ["--trainer.max_steps=1", "--data.num_workers=-1"],
    "The rank r": ["--trainer.max_steps=1", "--model.adapter_settings={r: 0}"],
    "does not take these settings: {'rank': 8}": ["--trainer.max_steps=1", "--model.adapter_settings={rank: 8}"],
    "The adapter none has no settings": [
        "--trainer.max_steps=1", "--model.adapter=none", "--model.adapter_settings={r: 8}"
    ],
    "trainer.limit_train_batches is 0, so nothing": ["--trainer.max_steps=1", "--trainer.limit_train_batches=0"],
    "trainer.log_every_n_steps is a number of updates": ["--trainer.max_steps=1", "--trainer.log_every_n_steps=0"],
    "trainer.val_check_interval is": ["--trainer.max_steps=1", "--trainer.val_check_interval=0"],
    "trainer.val_check_interval is 5 batches, and an update takes 3 of them": [
        "--trainer.max_steps=4", "--trainer.val_check_interval=5", "--trainer.accumulate_grad_batches=3"
    ],
    "trainer.check_val_every_n_epoch is": ["--trainer.max_steps=1", "--trainer.check_val_every_n_epoch=0"],
    "trainer.devices asks for 9999 processes, and": ["--trainer.max_steps=1", "--trainer.devices=9999"],
    "seed_everything is a whole number from 0 to 4294967295, not -1": ["--trainer.max_steps=1", "--seed_everything=-1"],
    "EarlyStopping monitors 'nope', which nothing measures": [
        "--trainer.max_steps=1", "--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=nope"
    ],
    "EarlyStopping needs more settings: {class_path: EarlyStopping, init_args: {monitor: ...}}": [
        "--trainer.max_steps=1", "--trainer.callbacks=EarlyStopping"
    ],
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_refused(tiny_base, tmp_path, capsys, said):
    assert fit(tiny_base, tmp_path, *REFUSED[said]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_only_the_trainer_itself_notices_is_a_sentence_and_leaves_no_run(tiny_base, tmp_path, capsys):
    averaging = ["--trainer.callbacks=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=0.1"]
    assert fit(tiny_base, tmp_path / "runs", "--trainer.max_steps=2", *averaging) == 2
    assert "The trainer cannot do this: SWA" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.parametrize("section", ["model", "data", "trainer"])
def test_an_empty_section_of_a_config(tmp_path, capsys, section):
    (tmp_path / "my.yaml").write_text(f"{section}: null\n")
    assert main(["fit", "--config", "my.yaml"]) == 2
    assert f"The section {section} of the config is empty" in capsys.readouterr().err


def test_a_config_that_is_something_else(tmp_path, capsys):
    (tmp_path / "results.json").write_text('{"config": {"model": {}}, "model": {}}')
    assert main(["fit", "--config", "results.json"]) == 2
    assert "results.json holds a section config, which no config of bitune fit does" in capsys.readouterr().err


def test_a_single_callback_is_a_list_of_one(tiny_base, tmp_path):
    (tmp_path / "my.yaml").write_text("trainer: {max_steps: 1, callbacks: {class_path: LearningRateMonitor}}\n")
    assert not fit(tiny_base, tmp_path, "--config", str(tmp_path / "my.yaml"))


@pytest.fixture
def few_rows(tiny_base, tmp_path, rows):
    """A run on five rows, too few to hold any out."""
    file = rows("few.jsonl", [(f"row {i}", f" {i}") for i in range(5)])
    start = ["fit", "--model.base", tiny_base, *CPU, "--data.source", file, "--trainer.default_root_dir", str(tmp_path)]
    assert not main([*start, "--trainer.max_steps", "1"])
    return next((tmp_path / "few").iterdir())


def test_rows_that_are_not_there_are_not_scored(few_rows, rows, capsys):
    for command in ("validate", "test", "predict"):
        assert main([command, "--run", str(few_rows), *CPU]) == 2
        assert "few.jsonl is too small to hold rows out" in capsys.readouterr().err
    other = ["--data.validation_source", rows("v.jsonl", [("row 7", " 7"), ("x " * 600, " 1"), ("row 9", " 9")])]
    assert main(["validate", "--run", str(few_rows), *CPU, *other, "--trainer.limit_val_batches", "0"]) == 2
    assert "Nothing was scored" in capsys.readouterr().err
    assert main(["predict", "--run", str(few_rows), *CPU, *other]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["row"], row["prompt"]) for row in said] == [("v.jsonl line 1", "row 7"), ("v.jsonl line 3", "row 9")]
    assert all(isinstance(row["answer"], str) for row in said)


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_weights_that_were_never_trained_are_not_scored(tiny_base, capsys, command):
    assert main([command, "--model.base", tiny_base, *CPU]) == 2
    assert f"`bitune {command}` scores a trained run: give --run FOLDER" in capsys.readouterr().err


def test_the_base_as_pretrained_is_scored_when_asked_for(tiny_base, capsys):
    base = ["--model.base", tiny_base, "--model.method", "plain", "--model.adapter", "none"]
    assert not main(["validate", *base, *CPU, "--data.validation_rows", "4"])
    assert "accuracy/validation" in capsys.readouterr().out


def test_a_place_where_no_run_can_be_kept(tiny_base, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert fit(tiny_base, tmp_path / "file", "--trainer.max_steps=1") == 2
    assert f"Runs cannot be kept under {tmp_path / 'file'}" in capsys.readouterr().err


def test_a_run_named_twice(tmp_path, capsys):
    assert main(["fit", "--resume", "a", "--resume", "a"]) == 2
    assert "--resume is given 2 times: name one run." in capsys.readouterr().err


def test_the_training_file_under_another_spelling_is_no_validation_file(tmp_path):
    """It would be validated on the rows it learned from; its own last rows are held out instead."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"prompt": "p{i}", "answer": "a"}}\n' for i in range(40)))
    (tmp_path / "sub").mkdir()
    data = BituneData(str(file), validation_source=str(tmp_path / "sub" / ".." / "rows.jsonl"))
    prompts = [{example.prompt for example in data.examples(part)} for part in ("train", "validation")]
    assert prompts[1] and not prompts[0] & prompts[1]


def test_a_run_without_checkpoints_keeps_its_best_model(tiny_base, tmp_path):
    assert not fit(tiny_base, tmp_path, "--trainer.max_steps=1", "--trainer.enable_checkpointing=false")
    assert list(tmp_path.glob("categories/*/model/theta.safetensors"))
