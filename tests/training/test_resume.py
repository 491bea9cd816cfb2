"""Going on with a run: the same data and updates or a refusal, a longer schedule, and what is said."""

import warnings
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_base import CPU

from bitune_pl.cli import main
from bitune_pl.evaluation.live import LiveTasks
from bitune_pl.training.checkpoints import read_checkpoint
from bitune_pl.training.module import BituneModule
from bitune_pl.training.run_folder import best_checkpoint, last_checkpoint, locked

PAIRS = [(f"row {i}", f" {i * i}") for i in range(12)]
OTHER = [(f"now {i}", f" {i * i}") for i in range(12)]  # as many rows, prompts and answers of as many tokens


@pytest.fixture
def stopped(train, rows):
    """A run of one epoch, stopped after `updates` of its four."""

    def run(updates: int, **settings) -> tuple[dict, str]:
        data = {"source": rows("t.jsonl", PAIRS), "validation_source": rows("v.jsonl", PAIRS[:4]), "batch_size": 3}
        made = train(data | settings, {"max_steps": updates})
        made.save_checkpoint("stopped.ckpt")
        return data | settings, "stopped.ckpt"

    return run


CHANGES = {
    "data.seed: 42 in the checkpoint, 3 here": ({"seed": 3}, {}),
    "data.batch_size: 3 in the checkpoint, 2 here": ({"batch_size": 2}, {}),
    "data.max_length: 512 in the checkpoint, 300 here": ({"max_length": 300}, {}),
    "data.template: {prompt} in the checkpoint, X {prompt} here": ({"template": "X {prompt}"}, {}),
    "trainer.accumulate_grad_batches: 1 in the checkpoint, 3 here": ({}, {"accumulate_grad_batches": 3}),
    "training rows: 12 rows (hash ": ({"source": "u.jsonl"}, {}),
    "validation rows: 4 rows (hash ": ({"validation_rows": 3}, {}),
}


@pytest.mark.parametrize("updates", [2, 4])  # in the middle of an epoch, and at its end
def test_other_data_or_updates_are_refused_and_named(train, rows, stopped, updates):
    data, checkpoint = stopped(updates)
    rows("u.jsonl", OTHER)
    for said, (changed, trainer) in CHANGES.items():
        with pytest.raises(ValueError, match="was trained with other data or batches") as error:
            train(data | changed, {"max_steps": 6, **trainer}, ckpt_path=checkpoint)
        assert said in str(error.value)


def test_the_same_rows_may_lie_elsewhere(train, rows, stopped):
    data, checkpoint = stopped(2)
    moved = {"source": rows("moved.jsonl", PAIRS), "validation_source": rows("w.jsonl", PAIRS[:4])}
    assert train(data | moved, {"max_steps": 4}, ckpt_path=checkpoint).global_step == 4


def test_a_run_may_be_scored_on_other_rows(train, rows, stopped):
    data, checkpoint = stopped(4)
    made = train(data, {"max_steps": 4}, ckpt_path=checkpoint)
    made.datamodule.rows.clear()
    made.datamodule.validation_source = rows("w.jsonl", OTHER)
    made.validate(made.lightning_module, datamodule=made.datamodule, ckpt_path=checkpoint, verbose=False)
    assert "loss/validation" in made.callback_metrics


FEW = ["--data.train_rows", "20", "--data.validation_rows", "4", "--data.batch_size", "4"]


@pytest.fixture
def fit(tiny_base, tmp_path, capsys):
    """Runs `bitune fit` on five updates an epoch; gives the run's folder, and what was said."""

    def run(*args: str, status: int = 0) -> tuple[Path, str]:
        start = [] if "--resume" in args else ["--model.base", tiny_base, "--model.lr", "0.01", *CPU, *FEW]
        assert main(["fit", *start, *args]) == status, capsys.readouterr().err
        said = capsys.readouterr()
        return next((tmp_path / "runs" / "categories").iterdir()), said.out + said.err

    return run


def rates(run: Path) -> list[float]:
    return [event.value for event in EventAccumulator(str(run)).Reload().Scalars("learning_rate")]


def test_an_extended_run_follows_its_new_schedule_and_goes_on_by_its_folder(fit, capsys):
    run, _ = fit("--trainer.max_epochs", "1")
    saved = (run / "config.yaml").read_text()
    fit("--resume", str(run), "--trainer.max_epochs", "3")
    expected = [0.01 * (15 - u) / 14 for u in range(5, 15)]
    assert rates(run)[5:] == pytest.approx(expected), "the first of them too, which ran at 0"
    now = (run / "config.yaml").read_text()
    assert yaml.safe_load(now) == yaml.safe_load(saved) | {"trainer": {"accelerator": "cpu", "max_epochs": 3}}
    assert now.splitlines()[1] == "# after update 5: trainer.max_epochs 1 -> 3"
    _, said = fit("--resume", str(run))
    assert "is already at update 15 of 15, so nothing was trained." in said and "Next:" not in said


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_run_stopped_in_its_last_validation_is_finished(fit, monkeypatch, keep):
    """All updates are done, so Lightning has nothing to train: what is left is the validation, and `model/`."""
    settings = ["--trainer.max_steps", "5", "--keep", keep]
    whole, _ = fit(*settings)
    step = BituneModule.validation_step
    monkeypatch.setattr(BituneModule, "validation_step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    whole = whole.rename(whole.parents[1] / "whole")
    run, said = fit(*settings, status=130)
    assert "Stopped after 5 updates; bitune fit --resume" in said and not (run / "model").exists()
    monkeypatch.setattr(BituneModule, "validation_step", step)
    _, said = fit("--resume", str(run))
    assert "Next: bitune generate" in said
    held = [load_file(folder / "model" / "theta.safetensors") for folder in (run, whole)]
    assert all(torch.equal(held[0][name], held[1][name]) for name in held[1])
    scores = [EventAccumulator(str(f)).Reload().Scalars("loss/validation") for f in (run, whole)]
    assert [(e.step, e.value) for e in scores[0]][-1:] == [(e.step, e.value) for e in scores[1]][-1:]
    _, said = fit("--resume", str(run))
    assert "is already at update 5 of 5, so nothing was trained." in said


def test_a_run_stopped_in_its_last_evaluation_is_finished(fit, monkeypatch):
    settings = "--trainer.max_steps 3 --evaluate.tasks categories --evaluate.every 2 --evaluate.limit 2".split()
    scores = LiveTasks.scores

    def stopped(self, model, *args):
        found = scores(self, model, *args)
        if seen.append(found) or len(seen) > 1:
            raise KeyboardInterrupt
        return found

    seen = []
    monkeypatch.setattr(LiveTasks, "scores", stopped)
    run, said = fit(*settings, status=130)
    assert "evaluation after update 2" in said and "evaluation after update 3" not in said
    monkeypatch.setattr(LiveTasks, "scores", scores)
    _, said = fit("--resume", str(run))
    assert "evaluation after update 3" in said
    assert [e.step for e in EventAccumulator(str(run)).Reload().Scalars("eval/categories/acc")] == [2, 3]
    _, said = fit("--resume", str(run))
    assert "is already at update 3 of 3, so nothing was trained." in said and "evaluation after" not in said


def test_a_whole_run_owes_no_evaluation(fit):
    run, _ = fit("--trainer.max_steps", "3", "--evaluate.tasks", "categories", "--evaluate.limit", "2")
    _, said = fit("--resume", str(run))
    assert "is already at update 3 of 3, so nothing was trained." in said


def test_a_checkpoint_from_elsewhere_that_is_at_the_end_is_left_as_it_was(fit, tmp_path):
    run, _ = fit("--trainer.max_steps", "2")
    checkpoint = (run / "checkpoints" / "last.ckpt").rename(tmp_path / "copy.ckpt")
    before = checkpoint.read_bytes()
    _, said = fit("--ckpt_path", str(checkpoint), "--trainer.max_steps", "2")
    assert "is already at update 2 of 2, so nothing was trained." in said and checkpoint.read_bytes() == before


def test_a_run_is_trained_by_one_command_at_a_time(fit):
    run, _ = fit("--trainer.max_steps", "2")
    with locked(run):
        _, said = fit("--resume", str(run), "--trainer.max_steps", "4", status=2)
    assert f"{run} is being trained by another command: wait for it, or stop it first." in said
    fit("--resume", str(run), "--trainer.max_steps", "4")


def test_a_checkpoint_that_was_cut_gives_way_to_an_older_one(fit):
    run, _ = fit("--trainer.max_steps", "4", "--trainer.val_check_interval", "2")
    last = run / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="last.ckpt cannot be read .* an older checkpoint of the run is taken"):
        assert last_checkpoint(run).name.startswith("best-update-")
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(b"")
    with (
        pytest.raises(ValueError, match="No checkpoint of .* can be read; start a new run with --config"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        last_checkpoint(run)


def test_a_run_that_cannot_go_on_is_left_as_it_was(fit):
    run, _ = fit("--trainer.max_epochs", "3", "--trainer.limit_val_batches", "0")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    _, said = fit("--resume", str(run), "--trainer.max_epochs", "1", status=2)
    assert "current_epoch=2" in said and "Traceback" not in said
    _, said = fit("--resume", str(run), "--data.template", "X {question} {choices}", status=2)
    assert "data.template: " in said
    assert {path: path.read_bytes() for path in before} == before


def test_the_best_checkpoint_is_that_of_the_model_also_once_the_run_was_moved(fit, tmp_path):
    """Both best-update-6 and best-update-18 exist then, and as text the first of them is the last."""
    run, _ = fit(
        "--trainer.max_steps", "6", "--trainer.val_check_interval", "3", "--trainer.check_val_every_n_epoch", "null"
    )
    first = best_checkpoint(run)
    moved = run.rename(run.with_name("moved"))
    again = ["--resume", str(moved), "--trainer.max_steps", "18", "--trainer.val_check_interval", "6"]
    fit(*again)
    best = best_checkpoint(moved)
    assert yaml.safe_load((moved / "config.yaml").read_text())["trainer"]["check_val_every_n_epoch"] is None
    held = load_file(moved / "model" / "theta.safetensors")
    theta = read_checkpoint(best)["state_dict"]
    assert all(torch.equal(theta[f"model.{name}"], held[name]) for name in held)
    assert {path.name for path in (moved / "checkpoints").iterdir()} >= {first.name, "last.ckpt"}


def test_the_best_of_a_users_own_checkpoints(fit):
    """One that keeps the highest loss, which is that of the first epoch."""
    settings = "{monitor: loss/validation, mode: max, filename: own}"
    own = f"[{{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {settings}}}]"
    run, _ = fit("--trainer.max_epochs", "3", "--trainer.callbacks", own)
    best, last = best_checkpoint(run), read_checkpoint(run / "checkpoints" / "last.ckpt")
    assert best.name == "own.ckpt"
    assert read_checkpoint(best)["global_step"] == last["callbacks"]["BestModel"]["update"] < last["global_step"]
    best.unlink()
    with pytest.warns(UserWarning, match="has no checkpoint; what is scored is the newest, of update 15"):
        assert best_checkpoint(run).name == "last.ckpt"


def test_settings_given_beside_a_checkpoint_are_compared_with_it(train, rows):
    """Lightning alone lets theta_init=0.5 replace the checkpoint's, under which theta was trained."""
    made = train({"source": rows("t.jsonl", PAIRS)}, {"max_steps": 1})
    made.save_checkpoint("stopped.ckpt")
    with pytest.raises(ValueError, match=r"other settings \(theta_init: 0.01 in the checkpoint, 0.5 here\)"):
        BituneModule.load_from_checkpoint("stopped.ckpt", theta_init=0.5)
    with pytest.raises(ValueError, match="There is no setting theta_inti; a checkpoint has base, method, "):
        BituneModule.load_from_checkpoint("stopped.ckpt", theta_inti=0.01)
    module = BituneModule.load_from_checkpoint("stopped.ckpt", theta_init=0.01, activation_checkpointing=True)
    assert module.hparams.activation_checkpointing
    assert torch.equal(module.model.theta_k, made.lightning_module.model.theta_k)
