"""Runs: their folders, their checkpoints, and going on from one, through the commands and from Python."""

import json

import pytest
import torch
import yaml
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_base import CPU

from bitune_pl.cli import main
from bitune_pl.method.backbone import name_of_dtype, usual_dtype
from bitune_pl.training.callbacks import ResumePoint
from bitune_pl.training.module import BituneModule

FEW = ["--data.train_rows", "60", "--data.validation_rows", "6"]


@pytest.fixture
def fit(tiny_base, capsys):
    """Runs `bitune fit` on the embedded data and returns what it said."""

    def run(*args: str) -> str:
        status = main(["fit", "--model.base", tiny_base, *CPU, *FEW, *args])
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out + said.err

    return run


def only_run(tmp_path, name="categories"):
    (run,) = (tmp_path / "runs" / name).iterdir()
    return run


def test_a_run_has_its_folder_and_says_where_it_is(fit, tmp_path, tiny_base, caplog):
    said = fit("--trainer.max_steps", "2", "--model.theta_init", "0.02")
    run = only_run(tmp_path)
    assert f"The run is in {run.relative_to(tmp_path)}. Next: bitune generate --run" in said
    assert "note:" not in said and "GPU" not in said
    assert "categories (train), rows kept: 60 of 60" in caplog.text
    assert {p.name.split(".")[0] for p in run.glob("[!.]*")} == {"config", "checkpoints", "model", "events"}
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"best-update-2.ckpt", "last.ckpt"}
    assert {"causal", "bidirectional", "theta.safetensors", "tokenizer.json", "prompt.json"} <= {
        p.name for p in (run / "model").iterdir()
    }
    assert json.loads((run / "model" / "prompt.json").read_text())["template"]["prompt"].startswith(
        "Question: {question}"
    )
    assert yaml.safe_load((run / "config.yaml").read_text()) == {
        "seed_everything": 42,
        "model": {"base": tiny_base, "theta_init": 0.02, "base_dtype": name_of_dtype(usual_dtype())},
        "data": {"source": "categories", "train_rows": 60, "validation_rows": 6},
        "trainer": {"accelerator": "cpu", "max_steps": 2},
    }


def test_the_saved_config_makes_the_same_run_again(fit, tmp_path):
    fit("--trainer.max_steps", "2", "--seed_everything", "3")
    run = only_run(tmp_path)
    fit("--config", str(run / "config.yaml"))
    again = next(path for path in run.parent.iterdir() if path != run)
    first, second = (torch.load(path / "checkpoints" / "last.ckpt", weights_only=True) for path in (run, again))
    assert all(torch.equal(value, second["state_dict"][name]) for name, value in first["state_dict"].items())
    assert (run / "config.yaml").read_text().splitlines()[1:] == (again / "config.yaml").read_text().splitlines()[1:]


def test_a_config_may_be_written_out(fit, tmp_path):
    fit("--config", " {model: {theta_init: 0.02}, trainer: {max_steps: 1}}")
    assert yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())["model"]["theta_init"] == 0.02


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator computes in bfloat16")
def test_a_run_keeps_the_type_of_its_base_on_another_cpu(fit, tmp_path, caplog, monkeypatch):
    """A CPU that is slow in bfloat16 trains in float32, and says so; what has begun in one type goes on in it."""

    def dtypes() -> tuple[str, str]:
        checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
        described = json.loads((run / "model" / "bitune.json").read_text())
        return checkpoint["hyper_parameters"]["base_dtype"], described["dtype"]

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    fit("--trainer.max_steps", "1")
    run = only_run(tmp_path)
    assert "the base is in float32, as this CPU is slow in bfloat16" in caplog.text
    assert dtypes() == ("float32", "float32")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    fit("--resume", str(run), "--trainer.max_steps", "2", "--model.base_dtype", "null")
    assert dtypes() == ("float32", "float32")
    kept = (run / "config.yaml").read_text()
    assert yaml.safe_load(kept)["model"]["base_dtype"] == "float32" and "base_dtype (default)" not in kept
    module = BituneModule.load_from_checkpoint(run / "checkpoints" / "last.ckpt", base_dtype=None)
    assert module.hparams.base_dtype == "float32"


def test_a_null_that_is_no_default_is_kept(fit, tmp_path):
    """Without it a run that validates every so many batches could not be resumed."""
    seldom = ["--trainer.check_val_every_n_epoch", "null", "--trainer.val_check_interval", "1000"]
    fit("--trainer.max_steps", "1", *seldom)
    run = only_run(tmp_path)
    expected = {"accelerator": "cpu", "max_steps": 1, "check_val_every_n_epoch": None, "val_check_interval": 1000}
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"] == expected
    fit("--resume", str(run), "--trainer.max_steps", "2")


def test_no_run_stops_because_another_left_files(fit, tmp_path):
    """G01: three seeds and one of them twice, the last without a logger; five folders, each with its own config."""
    for args in (["1"], ["2"], ["3"], ["3"], ["3", "--trainer.logger", "false"]):
        fit("--trainer.max_steps", "1", "--seed_everything", *args)
    runs = list((tmp_path / "runs" / "categories").iterdir())
    seeds = sorted(yaml.safe_load((run / "config.yaml").read_text())["seed_everything"] for run in runs)
    assert seeds == [1, 2, 3, 3, 3]


def test_a_resumed_run_goes_on_in_its_folder_and_on_its_axis(fit, tmp_path):
    """F07: every tag has every update once, in one folder."""
    fit("--trainer.max_steps", "3")
    run = only_run(tmp_path)
    fit("--resume", str(run), "--trainer.max_steps", "5")
    assert only_run(tmp_path) == run
    events = EventAccumulator(str(run)).Reload()
    tags = events.Tags()["scalars"]
    assert {
        "loss/train",
        "alpha_k/layer_00",
        "alpha_k/layer_01",
        "alpha_v/mean",
        "tokens_per_second",
        "learning_rate",
    } <= set(tags)
    for tag in tags:
        expected = [3, 5] if tag.endswith("/validation") else [0, 1, 2, 3, 4, 5]["alpha" not in tag :]
        assert [event.step for event in events.Scalars(tag)] == expected, tag


def test_a_checkpoint_is_plain_and_holds_trained_tensors_only(fit, tmp_path):
    fit("--trainer.max_steps", "1", "--model.adapter_settings.r", "4")
    saved = torch.load(only_run(tmp_path) / "checkpoints" / "last.ckpt", weights_only=True)
    settings = saved["hyper_parameters"]
    assert settings["adapter_settings"] == {"r": 4} and settings["method"] == "bitune"
    assert all(isinstance(value, str | float | bool | dict | tuple | list | None) for value in settings.values())
    parts = {part for name in saved["state_dict"] for part in name.split(".")[-3:]} & {
        "causal",
        "bidirectional",
        "theta_k",
        "theta_v",
    }
    assert len(parts) == 4 and not any("base_layer" in name for name in saved["state_dict"])
    (optimizer,) = saved["optimizer_states"]
    assert optimizer["param_groups"][0]["param_names"] == list(saved["state_dict"])


def test_a_checkpoint_opens_from_python(fit, tmp_path):
    """F06: rank and theta_init come back, and so does the model."""
    fit(
        "--trainer.max_steps",
        "2",
        "--model.adapter_settings.r",
        "4",
        "--model.theta_init",
        "0.001",
        "--model.lr",
        "0.1",
    )
    path = only_run(tmp_path) / "checkpoints" / "last.ckpt"
    module = BituneModule.load_from_checkpoint(path, weights_only=True)
    assert module.hparams.theta_init == module.model.theta_init == 0.001
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())


def test_settings_nobody_typed_come_from_the_checkpoint_and_typed_ones_must_agree(fit, tmp_path, tiny_base, capsys):
    """F06: scoring with a default config rebuilds rank 4 and theta_init 0.001; a typed 0.1 is named."""
    fit("--trainer.max_steps", "1", "--model.adapter_settings.r", "4", "--model.theta_init", "0.001")
    checkpoint = ["--ckpt_path", str(only_run(tmp_path) / "checkpoints" / "last.ckpt")]
    assert main(["validate", *checkpoint, *CPU, *FEW]) == 0
    assert "accuracy/validation" in capsys.readouterr().out
    typed = ["--model.theta_init", "0.1", "--model.adapter_settings.r", "8"]
    assert main(["validate", *checkpoint, *CPU, *FEW, *typed]) == 2
    error = capsys.readouterr().err
    assert (
        "theta_init: 0.001 in the checkpoint, 0.1 here" in error
        and "{'r': 4} in the checkpoint, {'r': 8} here" in error
    )


def test_a_run_without_checkpoints_keeps_its_last_model(fit, tmp_path):
    fit("--trainer.max_steps", "1", "--trainer.enable_checkpointing", "false")
    assert (only_run(tmp_path) / "model" / "bitune.json").is_file()


class StopAfter(Callback):
    """Ends training after an update, as a crash would, with a checkpoint of that moment."""

    def __init__(self, update: int, path: str):
        self.update, self.path = update, path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.update:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(train, rows, tmp_path):
    """F03, F04: weights, moments, schedule and rows go on in the middle of an epoch, in float32 bit for bit."""
    data = {"source": rows("train.jsonl", [(f"row {i}", f" {i * i}") for i in range(20)]), "batch_size": 2}
    whole = train(data, {"max_steps": 8}, lr=0.01)
    path = str(tmp_path / "stopped.ckpt")
    train(data, {"max_steps": 8, "callbacks": [StopAfter(5, path)]}, lr=0.01)
    resumed = train(data, {"max_steps": 8}, lr=0.01, ckpt_path=path)
    end = resumed.lightning_module.state_dict()
    assert all(torch.equal(value, end[name]) for name, value in whole.lightning_module.state_dict().items())


def test_a_checkpoint_of_other_settings_is_refused_from_python_too(train, rows, tmp_path):
    data, path = {"source": rows("train.jsonl", [("a", " b")] * 4)}, str(tmp_path / "stopped.ckpt")
    train(data, {"max_steps": 2, "callbacks": [StopAfter(1, path)]})
    with pytest.raises(ValueError, match=r"other settings \(lr: 0.0003 in the checkpoint, 0.1 here\)"):
        train(data, {"max_steps": 2}, lr=0.1, ckpt_path=path)


def test_a_run_that_fails_before_its_first_update_leaves_no_folder(tmp_path, capsys):
    assert main(["fit", "--model.base", str(tmp_path / "nowhere"), *CPU]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/categories/*"))


def test_the_gain_over_the_untuned_base_is_told(fit, tmp_path):
    said = fit("--trainer.max_steps", "1", "--compare_untuned", "true")
    assert "Accuracy on 6 validation questions:" in said and "95 % interval" in said
    (run,) = tmp_path.glob("runs/categories/*")
    events = EventAccumulator(str(run)).Reload().Scalars("accuracy/untuned")
    assert [event.step for event in events] == [0, 1] and f"questions: {events[0].value:.3f} before" in said


def test_why_there_is_no_gain_is_told_too(fit):
    said = fit("--trainer.max_steps", "1", "--compare_untuned", "true", "--data.source", "sums")
    assert "There is no gain to tell: the validation rows of sums are no questions with choices" in said
    assert "scoring the untuned base" not in said


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_model_chosen_by_the_rows_it_is_scored_on(fit, tmp_path, keep):
    """Watched is the highest loss, which is that of the first epoch."""
    settings = "{monitor: loss/validation, mode: max, filename: own}"
    own = f"[{{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {settings}}}]"
    said = fit("--trainer.max_epochs", "2", "--model.lr", "0.01", "--keep", keep, "--trainer.callbacks", own)
    assert ("model/ is the best of 2 validations on rows that are also those of `bitune test`" in said) == (
        keep == "best"
    )
    run = only_run(tmp_path)
    theta = load_file(run / "model" / "theta.safetensors")
    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    is_last = all(torch.equal(last[f"model.{name}"], value) for name, value in theta.items())
    losses = [event.value for event in EventAccumulator(str(run)).Reload().Scalars("loss/validation")]
    assert losses[1] < losses[0] and is_last == (keep == "last")


class InterruptAt(Callback):
    """Fails in the middle of an update, as Ctrl-C would."""

    def __init__(self, batch: int):
        self.batch = batch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == self.batch:
            raise RuntimeError("interrupted")


def test_a_run_interrupted_within_an_update_goes_on_from_the_update_before(train, rows, tmp_path):
    """Micro-batch 7 of updates of 3: the two whole updates stay, the third is made anew with all its rows."""
    data = {"source": rows("train.jsonl", [(f"row {i}", f" {i * i}") for i in range(20)]), "batch_size": 1}
    common = {"max_steps": 5, "accumulate_grad_batches": 3}
    whole = train(data, common, lr=0.01)
    last = ModelCheckpoint(tmp_path, filename="last", save_on_exception=True)
    with pytest.raises(RuntimeError, match="interrupted"):
        callbacks = [InterruptAt(7), ResumePoint(), last]
        train(data, {**common, "callbacks": callbacks, "enable_checkpointing": True}, lr=0.01)
    resumed = train(data, common, lr=0.01, ckpt_path=str(tmp_path / "last.ckpt"))
    end = resumed.lightning_module.state_dict()
    assert all(torch.equal(value, end[name]) for name, value in whole.lightning_module.state_dict().items())
