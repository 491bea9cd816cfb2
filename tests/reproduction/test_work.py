"""One run of a grid, really done on a tiny decoder: its record, and how it goes on after a stop."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from bitune_pl.cli import main
from bitune_pl.evaluation import run as opening
from bitune_pl.method import backbone, storage
from bitune_pl.method.backbone import load_decoder
from bitune_pl.reproduction.runner import launch, places, readings, work
from bitune_pl.reproduction.runner.experiment import Grid, Run
from bitune_pl.reproduction.runner.job import BUSY, Job
from bitune_pl.reproduction.runner.launch import Slurm
from bitune_pl.reproduction.runner.places import Places
from bitune_pl.training import module as training_module

KEPT = [
    {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"every_n_train_steps": 2, "save_top_k": -1},
    }
]


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, "_write_to", lambda log: None)  # pytest has the output


def a_run(method: str = "Bitune", **trainer) -> Run:
    (cell,) = Grid("table1", "smoke", [42], [method], ["tiny-llama"]).cells({"tiny-llama--lora-categories": 3e-3})
    settings = copy.deepcopy(cell.runs[0].settings)
    if trainer:
        settings["trainer"] |= trainer
    return Run(settings)


def done(run: Run, folder: Path) -> dict:
    assert work.do(Job(run, folder)) == 0, Places(folder).part(run).read_text()
    return places.finished(Places(folder).part(run), run.key)


def test_a_run_is_trained_evaluated_and_recorded(tmp_path):
    record = done(a_run(), tmp_path)
    assert (record["updates"], record["lr"], record["resumed"]) == (6, 3e-3, False)
    assert record["train_seconds"] > 0 and record["evaluate_seconds"] > 0 and record["peak_memory_gb"] > 0.1
    right = record["right"]["categories"]
    assert len(right) == record["scores"]["categories"]["n"] == 100
    assert record["scores"]["categories"]["acc"] == pytest.approx(sum(right) / 100)
    alpha = record["alpha"]
    assert alpha["updates"] == [0, 1, 2, 3, 4, 5, 6] and len(alpha["alpha_k"]) == len(alpha["alpha_v"]) == 2
    assert alpha["alpha_k_mean"][-1] == pytest.approx(sum(alpha["alpha_k"]) / 2, abs=2e-6)
    saved = torch.load(next(Path(record["run"]).glob("checkpoints/*.ckpt")), weights_only=True)
    assert record["trained_parameters"] == sum(tensor.numel() for tensor in saved["state_dict"].values())
    assert record["device"].startswith("cpu") and not list(tmp_path.glob("scores/*"))


@pytest.mark.parametrize("method", ["Pretrained", "Bitune"])
def test_a_table_is_in_bfloat16_on_any_machine(method, tmp_path, monkeypatch):
    opened = []

    def noted(*given, **settings):
        decoder = load_decoder(*given, **settings)
        opened.append(decoder.dtype)
        return decoder

    for module in (opening, storage, training_module):
        monkeypatch.setattr(module, "load_decoder", noted)
    for module in (backbone, training_module):
        monkeypatch.setattr(module, "usual_dtype", lambda: torch.float32)
    done(a_run(method), tmp_path)
    assert set(opened) == {torch.bfloat16}


def test_a_search_and_its_winner_share_their_training(tmp_path):
    run = a_run()
    without_tasks = Run({name: said for name, said in run.settings.items() if name != "tasks"})
    first, second = done(without_tasks, tmp_path), done(run, tmp_path)
    assert first["scores"] == {} and second["scores"]
    assert first["run"] == second["run"] and first["loss_validation"] == second["loss_validation"]


def test_what_was_kept_to_go_on_from_and_is_damaged_is_made_anew(tmp_path):
    run = a_run()
    record, where = done(run, tmp_path), Places(tmp_path)
    where.part(run).unlink()
    (where.training(run) / "trained.json").write_text('{"run": ')
    where.scores(run, 100).write_text("{")
    again = done(run, tmp_path)
    assert all(again[name] == record[name] for name in ("scores", "right", "loss_validation", "alpha"))


def test_a_run_without_a_validation_loss_is_no_result(tmp_path, monkeypatch):
    run, training = a_run(), readings.training
    monkeypatch.setattr(readings, "training", lambda folder: training(folder) | {"loss_validation": None})
    assert work.do(Job(run, tmp_path)) == 1
    assert "has no validation loss: its events are damaged" in places.read(Places(tmp_path).part(run))["error"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, "_write_to", lambda log: None)
    assert done(run, tmp_path)["loss_validation"] > 0


def test_a_mistake_is_recorded_as_a_sentence(tmp_path):
    run = a_run()
    run.settings["data"]["source"] = "{root}/nothing.jsonl"
    assert work.do(Job(run, tmp_path)) == 1
    record = places.read(Places(tmp_path).part(run))
    assert record["status"] == "failed" and record["error"].endswith("give it by --data.root FOLDER.")


@pytest.mark.slow
def test_a_half_trained_run_goes_on_from_its_last_checkpoint(tmp_path):
    """As if killed after update 5, with the checkpoint of update 4: the same folder, and the same weights in the end."""
    run = a_run(callbacks=KEPT)
    whole = done(run, tmp_path)
    folder = Path(whole["run"])
    final = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    shutil.rmtree(folder / "model")
    for checkpoint in folder.glob("checkpoints/*.ckpt"):
        if "step=4" not in checkpoint.name:
            checkpoint.unlink()
    Places(tmp_path).part(run).unlink()
    record = done(run, tmp_path)
    again = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert record["resumed"] and record["run"] == whole["run"] and record["scores"] == whole["scores"]
    assert all(torch.equal(value, again[name]) for name, value in final.items())
    assert record["alpha"] == whole["alpha"] and record["train_seconds"] > 0


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts_again(tmp_path):
    run = a_run()
    whole = done(run, tmp_path)
    for checkpoint in Path(whole["run"]).glob("checkpoints/*.ckpt"):
        checkpoint.unlink()
    (Places(tmp_path).training(run) / "trained.json").unlink()
    Places(tmp_path).part(run).unlink()
    record = done(run, tmp_path)
    assert not record["resumed"] and record["scores"] == whole["scores"] and not Path(whole["run"]).exists()


def test_several_devices_are_started_by_lightning(monkeypatch):
    """Not in this process, whose own command is another: Lightning runs the command once more for each device."""
    asked = []
    monkeypatch.setattr(work.subprocess, "run", lambda argv: asked.append(argv) or subprocess.CompletedProcess(argv, 3))
    with pytest.raises(RuntimeError, match="status 3"):
        work._fit(["--config", "run.yaml"], {"trainer": {"devices": 2}})
    assert asked == [[sys.executable, "-m", "bitune_pl", "fit", "--config", "run.yaml"]]


@pytest.mark.parametrize(("visible", "expected"), [(None, "1"), ("2,3", "3"), ("GPU-a,GPU-b", "GPU-b")])
def test_a_run_has_one_of_the_gpus_that_the_grid_was_left(visible, expected, monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    work._prepare(Job(a_run(), tmp_path, gpu=1))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == expected


@pytest.mark.slow
def test_latency_is_measured(tmp_path):
    for cell in Grid("table4", "smoke").cells({}):
        latency = done(cell.runs[0], tmp_path)["latency"]
        assert latency["prefill_seconds"] > 0 and latency["decode_seconds"] > 0 and latency["new_tokens"] == 8


SMALL = [
    "table1",
    "--profile",
    "smoke",
    "--models",
    "tiny-llama",
    "--only",
    "LoRA,Bitune",
    "--seeds",
    "42,43,44",
    "--jobs",
    "2",
]


def scores(folder: Path) -> dict:
    records = (places.read(path) for path in sorted(folder.glob("*/smoke/*.json")))
    kept = ("status", "lr", "scores", "right", "prompt_hash", "loss_validation", "alpha", "settings")
    return {(r["table"], r["method"], r["seed"]): {name: r[name] for name in kept} for r in records}


@pytest.mark.slow
def test_g01_a_killed_grid_goes_on_and_repeats_nothing(tmp_path, capsys):
    """G01 too: a folder for each run of each seed, with its own config; nothing is overwritten."""
    command = [sys.executable, "-m", "bitune_pl", "reproduce", *SMALL, "--out", "killed"]

    def finished_parts() -> list[Path]:
        return [path for path in Path("killed").glob("parts/[!.]*.json") if places.read(path)["status"] == "done"]

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while len(finished_parts()) < 5:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    before = {path: path.read_bytes() for path in finished_parts()}
    stamps = {path: path.stat().st_mtime_ns for path in before}
    assert 5 <= len(before) < 10
    assert main(["reproduce", *SMALL, "--out", "killed"]) == 0
    assert all(path.read_bytes() == text and path.stat().st_mtime_ns == stamps[path] for path, text in before.items())
    killed = capsys.readouterr().out.split("\n\n", 1)[1]
    configs = [yaml.safe_load(path.read_text()) for path in Path("killed").glob("runs/*/*/*/config.yaml")]
    assert sorted(c["seed_everything"] for c in configs) == [42] * 5 + [43] * 2 + [44] * 2
    assert main(["reproduce", *SMALL, "--out", "whole"]) == 0
    assert scores(Path("killed")) == scores(Path("whole"))
    assert killed.replace("killed", "whole") == capsys.readouterr().out.split("\n\n", 1)[1]


class Sent:
    """A job of submitit that ends after some looks, or never."""

    def __init__(self, job_id: str, looks: int | None, result: int = 0):
        self.job_id, self.looks, self.answer = job_id, looks, result

    def done(self) -> bool:
        self.looks = None if self.looks is None else self.looks - 1
        return self.looks is not None and self.looks < 0

    def exception(self):
        return None

    def result(self) -> int:
        return self.answer


def test_a_job_that_left_the_queue_without_a_result_is_given_up(monkeypatch, tmp_path):
    """Seen on a cluster without accounts: a job whose process was killed is never said to be over."""
    monkeypatch.setattr(launch, "POLL", 0.0)
    send = Slurm(tmp_path)
    monkeypatch.setattr(send, "_queued", lambda: {"1_2"})
    sent = [Sent("1_0", None), Sent("1_1", 3), Sent("1_2", 2 * launch.GRACE, result=BUSY)]
    assert [(handle.job_id, status) for handle, status in send._over(sent)] == [("1_1", 0), ("1_0", 1), ("1_2", BUSY)]


def _cluster_answers() -> bool:
    """Whether jobs can be sent from here: sbatch alone may be there without a controller."""
    if shutil.which("sbatch") is None:
        return False
    try:
        return subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.slow
def test_runs_are_sent_to_slurm_or_submitits_own_processes(tmp_path):
    pytest.importorskip("submitit")
    cluster = "slurm" if _cluster_answers() else "local"
    (run,) = (cell.runs[0] for cell in Grid("table1", "smoke", methods=["Pretrained"], models=["tiny-llama"]).cells({}))
    send = Slurm(tmp_path / "slurm", 2, {"timeout_min": 5}, cluster)
    ((job, status),) = send([Job(run, tmp_path)])
    assert status == 0 and job.run == run
    assert json.loads(Places(tmp_path).part(run).read_text())["scores"]["categories"]["n"] == 100
