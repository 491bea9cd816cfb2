"""One run of a grid, from settings to a record: train as `bitune fit` does, evaluate as `bitune evaluate` does.

It happens in a process of its own, whose output goes to the run's log, under a lock that other processes respect. A run
that was stopped goes on from its last checkpoint where there is one, and starts again where there is none. This file
does not know of tables.
"""

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import traceback
from multiprocessing.connection import wait
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from bitune_pl.evaluation import catalogue, evaluate, harness
from bitune_pl.reproduction.runner import places, readings
from bitune_pl.reproduction.runner.job import BUSY, Job
from bitune_pl.reproduction.runner.latency import measure
from bitune_pl.reproduction.runner.places import Places
from bitune_pl.reproduction.runner.tiny import tiny_decoders
from bitune_pl.training import commands
from bitune_pl.training.run_folder import last_checkpoint

BASE_DTYPE = "bfloat16"
"""The paper's, on every machine, so that the cells of a table may come from several."""

IMPORTED = catalogue, harness  # here and not for each run: processes are forked from one that has imported this file


def main(job: Job) -> None:
    """Do a job in this process, which is the job's own, and leave with a status: 0, 1 if it failed, BUSY."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(do(job))


def do(job: Job) -> int:
    """Do a job and record what came of it, unless that is recorded already."""
    where = Places(job.folder)
    for path in (where.lock(job.run), where.log(job.run), where.part(job.run), where.scores(job.run, None)):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(where.lock(job.run), timeout=-1 if job.patient else 0):
            if places.finished(where.part(job.run), job.run.key):
                return 0
            return _recorded(job, where)
    except Timeout:
        return BUSY


def _recorded(job: Job, where: Places) -> int:
    record: dict[str, Any] = {"status": "done", "error": None, "key": job.run.key, "settings": job.run.settings}
    places.write(where.part(job.run), record | {"status": "begun", "error": "A process began it and did not end it."})
    with where.log(job.run).open("a") as log:
        _write_to(log)
        try:
            _prepare(job)
            record |= _results(job, where)
        except (Exception, KeyboardInterrupt) as error:
            traceback.print_exc()
            sentence = " ".join(str(error).split()) or type(error).__name__
            record |= {"status": "failed", "error": sentence}
        sys.stdout.flush()
    places.write(where.part(job.run), record)
    return int(record["status"] != "done")


def _write_to(log) -> None:
    """Whatever this process and what it starts say goes to the log."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))


def _prepare(job: Job) -> None:
    if job.gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # those that the user left to the grid, or all
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[job.gpu] if visible != [""] else str(job.gpu)
    if job.threads:
        torch.set_num_threads(job.threads)


def _end_with_parent() -> None:
    """A job does not outlive the grid that started it, so that a grid started anew does not wait for a ghost."""
    if parent := parent_process():
        wait([parent.sentinel])
        os._exit(1)


def _results(job: Job, where: Places) -> dict[str, Any]:
    settings = _placed(job.run.settings, {"root": job.root, "tiny": str(where.decoders)})
    if job.run.settings["model"]["base"].startswith("{tiny}"):
        tiny_decoders(where.decoders)
    if "latency" in settings:
        found = {"latency": measure(settings["model"], seed=settings["seed"], **settings["latency"])}
        return found | {"peak_memory_gb": _peak_memory(), "versions": readings.versions()}
    trained = _train(job, where, settings) if job.run.trains else {"run": None, "updates": 0}
    return trained | _evaluate(job, where, settings, trained["run"])


def _placed(said: Any, folders: dict[str, str | None]) -> Any:
    """Settings with their folders in place of `{root}` and `{tiny}`; a table's source is given the root beside it."""
    if isinstance(said, dict):
        return {name: _placed(value, folders) for name, value in said.items()}
    if isinstance(said, list):
        return [_placed(value, folders) for value in said]
    for name, folder in folders.items():
        if isinstance(said, str) and f"{{{name}}}" in said:
            if folder is None:
                raise ValueError(f"{said} is read from a folder: give it by --data.root FOLDER.")
            said = said.replace(f"{{{name}}}", folder)
    return said


# -- training ----------------------------------------------------------------------------------------------------------


def _train(job: Job, where: Places, settings: dict[str, Any]) -> dict[str, Any]:
    """What is known of the training, which is done unless it was before."""
    place = where.training(job.run)
    if (known := places.whole(place / "trained.json")) and Path(known["run"], "model").is_dir():
        return known
    resumed = _unfinished(place)
    argv = ["--resume", str(resumed)] if resumed else ["--config", str(_config(job, place, settings))]
    start = time.perf_counter()
    _fit(argv, settings)
    seconds = time.perf_counter() - start
    (run,) = (path.parent for path in place.glob("*/*/config.yaml"))
    known = readings.training(run) | {"lr": settings["model"]["lr"], "device": readings.device_name()}
    if known["loss_validation"] is None and settings["trainer"].get("limit_val_batches") != 0:
        shutil.rmtree(place, ignore_errors=True)
        raise ValueError("The run has no validation loss: its events are damaged. The same command trains it anew.")
    known |= {"run": str(run), "resumed": bool(resumed)}
    known["train_seconds"] = readings.seconds_of_updates(run) if resumed else seconds
    places.write(place / "trained.json", known)
    return known


def _unfinished(place: Path) -> Path | None:
    """A run that can go on; runs that cannot are removed."""
    for config in place.glob("*/*/config.yaml"):
        try:
            torch.load(last_checkpoint(config.parent), weights_only=True, map_location="cpu", mmap=True)
            return config.parent
        except Exception as error:  # no checkpoint, or one that is damaged
            print(f"{config.parent} cannot go on, and starts again: {error}")
    shutil.rmtree(place, ignore_errors=True)
    return None


def _config(job: Job, place: Path, settings: dict[str, Any]) -> Path:
    """The settings as a config of `bitune fit`; its name is that of the folder that the run will lie in."""
    data = settings["data"] | ({"root": job.root} if job.root else {})
    said = {
        "seed_everything": settings["seed"],
        "model": {"base_dtype": BASE_DTYPE} | settings["model"],
        "data": data,
        "trainer": settings["trainer"] | {"default_root_dir": str(place)},
    }
    path = place / "run.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    return path


def _fit(argv: list[str], settings: dict[str, Any]) -> None:
    """Several devices are started by Lightning, which runs the command itself once more for each."""
    if settings["trainer"].get("devices", 1) == 1:
        commands.fit(argv)
    elif status := subprocess.run([sys.executable, "-m", "bitune_pl", "fit", *argv]).returncode:
        raise RuntimeError(f"bitune fit ended with status {status}; its log says why.")


# -- evaluation --------------------------------------------------------------------------------------------------------


def _evaluate(job: Job, where: Places, settings: dict[str, Any], run: str | None) -> dict[str, Any]:
    """Scores of the run's model, or of the base where nothing was trained; tasks of one limit are scored together."""
    tasks: dict[str, int | None] = settings.get("tasks", {})
    start, files = time.perf_counter(), []
    for limit in sorted(set(tasks.values()), key=str):
        files.append(where.scores(job.run, limit))
        asked = ["--tasks", ",".join(task for task in tasks if tasks[task] == limit), "--out", str(files[-1])]
        asked += ["--run", run] if run else ["--base", settings["model"]["base"], "--dtype", BASE_DTYPE]
        asked += ["--limit", str(limit)] if limit else []
        asked += ["--data.root", job.root] if job.root else []
        if not places.whole(files[-1]):  # else an earlier process was stopped between two limits
            files[-1].unlink(missing_ok=True)
            evaluate.main(asked)
    seconds = time.perf_counter() - start
    found = readings.scores(tasks, [places.read(file) for file in files])
    for file in files:
        file.unlink()
    return found | {"evaluate_seconds": seconds, "versions": readings.versions()}


def _peak_memory() -> float:
    """GB: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
