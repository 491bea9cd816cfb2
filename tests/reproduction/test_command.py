"""`bitune reproduce` as a user meets it: what it says first, its mistakes, its listing, its exit status."""

import json
import re

import pytest
import test_grid

from bitune_pl.cli import main
from bitune_pl.reproduction.runner import command, launch
from bitune_pl.reproduction.runner.estimate import Costs
from bitune_pl.reproduction.runner.experiment import Grid, read, tables


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pretended(monkeypatch):
    """Runs are not done but recorded, by the launcher that this returns."""
    made = test_grid.Pretended()
    monkeypatch.setattr(launch, "Local", lambda slots, gpus: made)
    return made


def mistake(capsys, *argv: str) -> str:
    assert main(["reproduce", *argv]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


SMOKE = ["reproduce", "table1", "--profile", "smoke", "--models", "tiny-llama"]


def test_a_table_is_printed_and_the_status_is_0(pretended, capsys):
    assert main(SMOKE) == 0
    said = capsys.readouterr().out
    assert said.startswith("table1, profile smoke, in reproduction\n")
    assert re.search(r"^Bitune +3 ", said, re.MULTILINE) and "reproduction/tables" in said


def test_a_failed_cell_makes_the_status_1_and_names_the_seed_in_the_table(pretended, capsys):
    """H10: the mean is of two seeds, and the table names the third."""
    pretended.fails = lambda settings: "No." if settings.get("seed") == 44 else None
    assert main(SMOKE) == 1
    said = capsys.readouterr().out
    assert "3 of 14 cells failed; the same command tries them again." in said
    assert re.search(r"^Bitune +2 of 3", said, re.MULTILINE) and "44" in said.split("Table 1")[1]


@pytest.mark.parametrize(("gpus", "profile", "why"), [(0, "smoke", "no GPU is seen"), (2, "paper", "2 GPUs are seen")])
def test_without_a_profile_it_says_which_and_why(gpus, profile, why, monkeypatch, capsys):
    monkeypatch.setattr(command, "_gpus", lambda: gpus)
    assert main(["reproduce", "table1", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"table1, profile {profile} ({why}), in reproduction\n")


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("table", tables())
def test_every_table_can_be_listed(table, profile, capsys):
    assert main(["reproduce", table, "--profile", profile, "--dry-run"]) == 0
    said = capsys.readouterr().out
    grid = Grid(table, profile)
    assert f"{len(grid.cells({})) + sum(map(len, grid.searches().values()))} cells, " in said
    assert "Estimate: tokens x parameters over " in said


def test_a_listing_counts_what_is_finished_and_learns_from_it(pretended, capsys):
    assert main(SMOKE) == 0
    capsys.readouterr()
    assert main([*SMOKE, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.count("  finished\n") == 14 and "14 cells, 0 of them to do, about 0 minutes" in said
    assert "as measured on 14 finished cells" in said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tabel1"], "There is no table 'tabel1'; did you mean table1?"),
        (["table1", "--profile", "gpu"], "invalid choice: 'gpu'"),
        (["table1", "--profile", "smoke", "--only", "lora"], "There is no method of table1 'lora'; did you mean LoRA?"),
        (["table1", "--profile", "smoke", "--seeds", "a"], "--seeds are whole numbers separated by commas, not 'a'."),
        (["table1", "--profile", "smoke", "--jobs", "0"], "--jobs is a number of runs at a time, at least 1, not 0."),
        (["table1", "--profile", "cpu"], "reads FOLDER/ultrafeedback_binarized/train.jsonl: give --data.root FOLDER."),
        (["table1", "--profile", "cpu", "--data.root", "nowhere"], "There is no folder nowhere to read data from."),
        (
            ["table1", "--profile", "smoke", "--from", "nowhere"],
            "There is no folder nowhere to take finished cells from.",
        ),
        (
            ["table1", "--profile", "smoke", "--slurm", "gpu"],
            "--slurm takes NAME=VALUE, such as partition=gpu, not 'gpu'.",
        ),
    ],
)
def test_a_mistake_is_one_sentence(argv, message, capsys):
    assert message in mistake(capsys, *argv)


def test_slurm_without_a_cluster_is_said(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    pytest.importorskip("submitit")
    assert "needs sbatch" in mistake(capsys, "table1", "--profile", "smoke", "--launcher", "slurm")


@pytest.mark.parametrize("damaged", ["{", "[]", "3", "[" * 100_000])
def test_a_damaged_record_is_kept_aside_and_made_again(pretended, capsys, damaged):
    assert main(SMOKE) == 0
    path = command.Path("reproduction") / "table1" / "smoke" / "tiny-llama--bitune--42.json"
    whole = path.read_text()
    path.write_text(damaged)
    capsys.readouterr()
    assert "tiny-llama--bitune--42.json is not a record of a cell" in mistake(capsys, *SMOKE[1:], "--dry-run")
    assert main(SMOKE) == 0
    assert "tiny-llama--bitune--42.json is damaged: it is done again" in capsys.readouterr().out
    assert path.read_text() == whole and path.with_name(f"{path.name}.unknown.old").read_text() == damaged


def test_the_published_time_is_met_by_the_estimate():
    """Table 14: an A100 took 1.0 h for LoRA on Gemma-2B; 14.9 GB. The estimate promises no more than a factor of two."""
    costs = Costs.of(read("common"), "paper", [])
    (cell,) = Grid("table14", "paper", [42], ["LoRA"], ["gemma2b"]).cells({})
    (run,) = cell.runs
    training = costs.seconds(run) - costs.seconds(run, trained=True)
    assert 0.5 < training / 3600 < 2.0 and 14.9 / 2 < costs.memory(run) < 14.9 * 2


def test_estimates_grow_with_readings_and_are_scaled_by_what_was_measured():
    costs = Costs.of(read("common"), "cpu", [])
    grid = Grid("table5", "cpu")
    cells = {cell.method: cell.runs[0] for cell in grid.cells(dict.fromkeys(grid.searches(), 1e-3))}
    assert (
        costs.operations(cells["LoRA"]) == costs.operations(cells["Naive Bidir."]) < costs.operations(cells["Bitune"])
    )
    half = {"settings": cells["LoRA"].settings, "train_seconds": 0, "evaluate_seconds": 0, "peak_memory_gb": 0}
    took = costs.operations(cells["LoRA"]) / 1e10
    seen = half | {"train_seconds": took + 15, "peak_memory_gb": 2 * costs.memory(cells["LoRA"])}
    measured = Costs.of(read("common"), "cpu", [half, seen])
    assert measured.speed == pytest.approx(1e10) and "1 finished cells" in measured.basis
    assert measured.memory(cells["Bitune"]) == pytest.approx(2 * costs.memory(cells["Bitune"]))


def test_a_cell_on_disk_is_small_and_readable(pretended):
    assert main(SMOKE) == 0
    text = (command.Path("reproduction") / "table1" / "smoke" / "tiny-llama--bitune--42.json").read_text()
    assert len(text.splitlines()) == len(json.loads(text)) + 2
