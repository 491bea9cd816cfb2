"""The runner, with a launcher that trains nothing: what is done, what is not done again, and what becomes of a failure."""

import json
import os

import pytest
from filelock import FileLock

from bitune_pl.reproduction.runner import places
from bitune_pl.reproduction.runner.experiment import Grid
from bitune_pl.reproduction.runner.grid import Runner
from bitune_pl.reproduction.runner.job import BUSY, Job
from bitune_pl.reproduction.runner.places import Places

LOSSES = {1e-4: 2.0, 3e-4: 1.5, 1e-3: 1.7, 3e-3: float("nan")}


class Pretended:
    """Gives each run a record as `work` would, without a model; notes which runs it was given."""

    def __init__(self, fails=lambda settings: None, busy: int = 0):
        self.fails, self.busy, self.done = fails, busy, []

    def __call__(self, jobs):
        for job in jobs:
            if self.busy and not job.patient:
                self.busy -= 1
                yield job, BUSY
                continue
            settings = job.run.settings
            self.done.append(job.run.key)
            if (error := self.fails(settings)) == "killed":
                yield job, -9
                continue
            places.write(Places(job.folder).part(job.run), self.record(job.run, error))
            yield job, int(bool(error))

    def record(self, run, error):
        settings = run.settings
        if error:
            return {
                "status": "begun" if error == "begun" else "failed",
                "error": error,
                "key": run.key,
                "settings": settings,
            }
        lr, tasks = settings["model"].get("lr"), settings.get("tasks", {})
        return {
            "status": "done", "error": None, "key": run.key, "settings": settings, "run": "somewhere", "updates": 6, "lr": lr,
            "train_seconds": 2.0, "evaluate_seconds": 1.0, "peak_memory_gb": 1.5, "trained_parameters": 7,
            "loss_validation": LOSSES.get(lr), "scores": {t: {"acc": 0.5, "n": 2, "stderr": 0.1} for t in tasks},
            "right": {t: [0, 1] for t in tasks}, "prompt_hash": {}, "alpha": None, "versions": {"torch": "1"},
        }  # fmt: skip


def runner(folder, launch, **more):
    said = []
    return Runner(folder, launch, say=said.append, **more), said


GRID = Grid("table1", "smoke", models=["tiny-llama"])


def test_every_cell_is_recorded_once_in_its_place(tmp_path):
    made, _ = runner(tmp_path, Pretended())
    records = made.table(GRID)
    assert len(records) == 4 + 10 and {r["status"] for r in records} == {"done"}
    names = {path.name for path in (tmp_path / "table1" / "smoke").iterdir()}
    trained = {f"tiny-llama--{method}--{seed}.json" for method in ("lora", "lora16", "bitune") for seed in (42, 43, 44)}
    assert names == trained | {"tiny-llama--pretrained--42.json"}
    record = json.loads((tmp_path / "table1" / "smoke" / "tiny-llama--bitune--43.json").read_text())
    needed = (
        "table profile model method seed status error settings run updates lr train_seconds evaluate_seconds peak_memory_gb "
        "trained_parameters loss_validation scores right prompt_hash alpha versions"
    )
    assert set(needed.split()) <= set(record)
    assert (record["table"], record["method"], record["seed"], record["lr"]) == ("table1", "Bitune", 43, 3e-4)


def test_the_lowest_validation_loss_wins_and_a_loss_that_is_no_number_does_not(tmp_path):
    made, said = runner(tmp_path, Pretended())
    made.table(GRID)
    assert any("lowest validation loss is 0.0003" in line for line in said)


def test_nothing_is_done_twice(tmp_path):
    runner(tmp_path, Pretended())[0].table(GRID)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/smoke/*.json")}
    again = Pretended()
    runner(tmp_path, again)[0].table(GRID)
    assert again.done == [] and before == {path: path.stat().st_mtime_ns for path in before}


def test_tables_share_their_runs(tmp_path):
    runner(tmp_path, Pretended())[0].table(GRID)
    other = Pretended()
    runner(tmp_path, other)[0].table(Grid("table5", "smoke"))
    assert len(other.done) == 4  # of six rows, LoRA and Bitune are Table 1's
    shared = json.loads((tmp_path / "table5" / "smoke" / "tiny-llama--bitune--42.json").read_text())
    assert (shared["table"], shared["method"]) == ("table5", "Bitune")


def test_a_cell_with_other_settings_is_done_again_and_says_so(tmp_path):
    runner(tmp_path, Pretended())[0].table(GRID)
    path = tmp_path / "table1" / "smoke" / "tiny-llama--lora16--44.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"key": "0123456789abcdef"}))
    for part in (tmp_path / "parts").glob("*.json"):
        part.unlink()
    again = Pretended()
    made, said = runner(tmp_path, again)
    made.table(GRID)
    assert len(again.done) == 1
    assert any("recorded with other settings: it is done again" in line for line in said)
    assert path.with_name(f"{path.name}.0123456789abcdef.old").is_file()
    assert json.loads(path.read_text())["key"] == record["key"]


def test_a_damaged_part_is_kept_aside_and_its_run_done_again(tmp_path):
    runner(tmp_path, Pretended())[0].table(GRID)
    path = tmp_path / "table1" / "smoke" / "tiny-llama--lora16--44.json"
    for part in (tmp_path / "parts").glob("*.json"):
        part.write_text("null")
    path.unlink()
    again = Pretended()
    made, said = runner(tmp_path, again)
    assert {record["status"] for record in made.table(GRID)} == {"done"}
    assert len(again.done) == 1 and any("is damaged: it is done again" in line for line in said)


def test_a_run_that_another_process_has_begun_again_is_no_stumbling_block(tmp_path):
    """It failed here, and another grid is at it now: what that one has left so far is no result."""
    begun = lambda s: "begun" if s.get("seed") == 44 and s["model"]["method"] == "bitune" else None  # noqa: E731
    made, _ = runner(tmp_path, Pretended(begun))
    (failed,) = [record for record in made.table(GRID) if record["status"] != "done"]
    assert (failed["status"], failed["method"], failed["seed"]) == ("failed", "Bitune", 44)


def test_h10_a_failed_seed_is_reported_and_the_rest_goes_on(tmp_path):
    """H10: a seed that fails stays in sight, with its reason and its log, and is tried again."""
    fails = lambda s: "The gradient became nan." if s.get("seed") == 43 and s["model"]["method"] == "bitune" else None  # noqa: E731
    made, said = runner(tmp_path, Pretended(fails))
    records = made.table(GRID)
    (failed,) = [record for record in records if record["status"] == "failed"]
    assert (failed["method"], failed["seed"], failed["error"]) == ("Bitune", 43, "The gradient became nan.")
    (line,) = [line for line in said if "failed: " in line]
    assert "table1 tiny-llama Bitune, seed 43: The gradient became nan. Log: " in line and ".log" in line
    assert len(records) == 14
    again = Pretended()
    assert {r["status"] for r in runner(tmp_path, again)[0].table(GRID)} == {"done"} and len(again.done) == 1


def test_a_run_that_was_killed_is_a_failure_with_its_reason(tmp_path):
    fails = lambda s: "killed" if s.get("seed") == 44 and s["model"]["method"] == "bitune" else None  # noqa: E731
    records = runner(tmp_path, Pretended(fails))[0].table(GRID)
    (failed,) = [record for record in records if record["status"] == "failed"]
    assert failed["error"] == "The run was ended by SIGKILL, perhaps for want of memory."


def test_without_a_learning_rate_only_what_needs_one_fails(tmp_path):
    fails = lambda s: "No." if s["model"].get("method") == "plain" else None  # noqa: E731
    records = runner(tmp_path, Pretended(fails))[0].table(GRID)
    done = [(r["table"], r["method"]) for r in records if r["status"] == "done"]
    assert done == [("table1", "Pretrained")]
    assert "there is no learning rate" in records[-1]["error"]


def test_a_cell_of_several_runs_waits_for_all_of_them(tmp_path):
    """Table 2: one of two runs fails, then is done; the other is not done again, and times add up."""
    grid = Grid("table2", "smoke", methods=["LoRA"])
    first = Pretended(lambda s: "No." if s["data"]["source"] == "sums" else None)
    (failed,) = runner(tmp_path, first)[0].table(grid)
    assert failed["status"] == "failed" and failed["error"] == "No."
    again = Pretended()
    (record,) = runner(tmp_path, again)[0].table(grid)
    assert len(again.done) == 1 and record["status"] == "done"
    assert (
        set(record["scores"]) == {"categories", "sums"} and record["train_seconds"] == 4.0 and record["updates"] == 12
    )


def test_what_another_process_is_at_is_waited_for(tmp_path):
    launch = Pretended(busy=3)
    made, said = runner(tmp_path, launch)
    assert len(made.finish(GRID.cells({"tiny-llama--lora-categories": 1e-3}))) == 10
    assert "waiting for another process, which is at 3 of these runs" in said and len(set(launch.done)) == 10


def test_finished_cells_of_another_grid_are_taken_over_only_if_asked(tmp_path):
    runner(tmp_path / "first", Pretended())[0].table(GRID)
    taken = places.finished_elsewhere(tmp_path / "first")
    launch = Pretended()
    records = runner(tmp_path / "second", launch, taken=taken)[0].table(Grid("table5", "smoke"))
    assert len(launch.done) == 4 and {record["table"] for record in records} == {"learning_rate", "table5"}


def test_two_processes_never_train_the_same(tmp_path):
    """A job whose training is locked elsewhere leaves at once, and does nothing."""
    from bitune_pl.reproduction.runner import work

    run = GRID.cells({"tiny-llama--lora-categories": 1e-3})[-1].runs[0]
    lock = Places(tmp_path).lock(run)
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        assert work.do(Job(run, tmp_path, patient=False)) == BUSY
    assert not list(tmp_path.glob("parts/*.json"))


def test_a_record_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "cell.json"
    places.write(path, {"key": "a", "status": "done"})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        places.write(path, {"key": "b", "status": "done"})
    assert places.finished(path, "a") and not places.finished(path, "b")
    assert [file.name for file in tmp_path.iterdir()] == ["cell.json"]
