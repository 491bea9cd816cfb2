"""Experiments as data: they say what the paper says, every table can be expanded, and what is the same is done once."""

import json
from pathlib import Path

import pytest
import yaml
from places import ROOT

from bitune_pl.reproduction.runner import experiment
from bitune_pl.reproduction.runner.experiment import PROFILES, SEARCH, Grid, read, slug, tables
from bitune_pl.reproduction.runner.grid import winner
from bitune_pl.reproduction.runner.places import finished_elsewhere

PAPER_MODELS = {
    "Gemma-2B": "gemma2b", "Gemma-7B": "gemma7b", "Llama2-7B": "llama2_7b", "Llama3-8B": "llama3_8b", "Phi-2": "phi2",
    "Codestral-22B": "codestral22b",
}  # fmt: skip


def cells(table: str, profile: str, **some) -> list:
    grid = Grid(table, profile, **some)
    return grid.cells(dict.fromkeys(grid.searches(), 1e-3))


def settings(table: str, model: str, method: str, profile: str = "paper") -> dict:
    (cell, *_) = [cell for cell in cells(table, profile) if (cell.model, cell.method) == (model, method)]
    return cell.runs[0].settings


@pytest.mark.parametrize("table", tables())
def test_a_table_has_the_rows_that_the_paper_prints(table, shared):
    printed = json.loads((shared / "paper" / "tables.json").read_text())[f"Table {table[5:]}"]
    rows = printed["rows"] if isinstance(printed, dict) else printed
    ours = {(cell.model, cell.method) for cell in cells(table, "paper")}
    assert ours == {(PAPER_MODELS[row["model"]], row["method"]) for row in rows}


def test_all_tables_of_results_are_there():
    assert tables() == [f"table{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 14, 15, 16, 17)]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("table", tables())
def test_every_profile_of_every_table_can_be_expanded(table, profile):
    found = cells(table, profile)
    assert found and all(cell.runs and not cell.search for cell in found)
    assert len({cell.name for cell in found}) == len(found)


def test_table_1_is_the_papers_setting():
    """PAPER.md, section 2: 3000 updates of 10 at 3e-4, rank 8, theta_init 0.01, 512 tokens, three seeds."""
    said = settings("table1", "gemma2b", "Bitune")
    assert said["model"] == {
        "base": "google/gemma-2b", "method": "bitune", "adapter": "lora", "theta_init": 0.01, "lr": 3e-4,
    }  # fmt: skip
    assert said["data"] == {"source": "ultrafeedback", "batch_size": 1, "max_length": 512}
    assert (said["trainer"]["max_steps"], said["trainer"]["accumulate_grad_batches"]) == (3000, 10)
    assert list(said["tasks"]) == ["piqa", "arc_challenge", "commonsense_qa", "social_i_qa", "mmlu"]
    assert set(said["tasks"].values()) == {None}
    assert {cell.seed for cell in cells("table1", "paper") if cell.method == "Bitune"} == {42, 43, 44}
    assert {cell.seed for cell in cells("table1", "paper") if cell.method == "Pretrained"} == {42}


def test_table_2_trains_once_for_each_task():
    """Tables 10 and 11: updates, and the rates of Gemma-7B and of the others."""
    (cell, *_) = [c for c in cells("table2", "paper") if (c.model, c.method) == ("gemma2b", "Bitune")]
    updates = {run.settings["data"]["source"]: run.settings["trainer"]["max_steps"] for run in cell.runs}
    expected = {"piqa": 1605, "arc_challenge": 555, "commonsense_qa": 974, "social_i_qa": 3341, "gsm8k": 747}
    assert updates == expected
    assert settings("table2", "gemma2b", "LoRA")["model"]["lr"] == 1e-3
    assert settings("table2", "gemma7b", "LoRA")["model"]["lr"] == 3e-4


def test_adapters_have_their_own_rates_and_settings():
    assert settings("table6", "gemma2b", "DoRA")["model"]["lr"] == 3e-4
    assert settings("table6", "llama3_8b", "Bitune (IA3)")["model"]["lr"] == 1e-3
    assert settings("table1", "phi2", "LoRA16")["model"]["adapter_settings"] == {"r": 16}
    assert settings("table15", "llama3_8b", "0.1")["model"]["theta_init"] == 0.1


def test_rows_that_are_the_same_run_are_one_run():
    """Tables 5, 6, 8, 14 and 15 repeat LoRA and Bitune of Table 1."""
    for profile in PROFILES:
        one = {(c.model, c.method, c.seed): c.key for c in cells("table1", profile)}
        for table, method, same in [
            ("table5", "LoRA", "LoRA"), ("table5", "Bitune", "Bitune"), ("table6", "Bitune", "Bitune"),
            ("table8", "Bidirectional", "Bitune"), ("table14", "LoRA", "LoRA"), ("table15", "0.01", "Bitune"),
        ]:  # fmt: skip
            for cell in [c for c in cells(table, profile) if c.method == method]:
                assert one[cell.model, same, cell.seed] == cell.key, (profile, table, method)
    causal = {c.key for c in cells("table8", "cpu") if c.method == "Causal"}
    assert causal == {c.key for c in cells("table5", "cpu") if c.method == "Only Causal"}


def test_the_search_is_on_lora_and_its_winner_is_everybodys():
    grid = Grid("table1", "cpu")
    ((name, tried),) = grid.searches().items()
    assert [cell.runs[0].settings["model"]["lr"] for cell in tried] == [1e-4, 3e-4, 1e-3, 3e-3]
    assert all(c.table == SEARCH and "tasks" not in c.runs[0].settings and c.seed == 42 for c in tried)
    found = grid.cells({name: 3e-3})
    assert {run.settings["model"]["lr"] for c in found for run in c.runs if run.trains} == {3e-3}
    (lora,) = [c for c in found if c.method == "LoRA" and c.seed == 42]
    assert lora.runs[0].training == tried[3].runs[0].training  # so it is not trained again
    assert [c.method for c in grid.cells({}) if not c.search] == ["Pretrained"]


def test_full_finetuning_searches_for_itself():
    ((name, tried),) = Grid("table7", "cpu").searches().items()
    assert {cell.runs[0].settings["model"]["adapter"] for cell in tried} == {"full"} and "full-ft" in name


def test_a_published_rate_can_be_searched_all_the_same():
    assert not Grid("table1", "paper").searches()
    assert len(Grid("table1", "paper", models=["gemma2b"], search=True).searches()) == 1


def test_another_setting_is_another_run():
    first, second = (cells("table1", "cpu", seeds=[seed])[-1] for seed in (42, 43))
    assert first.key != second.key and first.runs[0].training != second.runs[0].training


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (("tabel1", "cpu"), "There is no table 'tabel1'; did you mean table1?"),
        (("table1", "gpu"), "There is no profile 'gpu'"),
        (("table1", "cpu", None, ["bitune"]), "There is no method of table1 'bitune'; did you mean Bitune?"),
        (("table1", "cpu", None, None, ["smolm2"]), "There is no model 'smolm2'; did you mean smollm2?"),
    ],
)
def test_a_mistake_names_what_there_is(what, message):
    with pytest.raises(ValueError) as error:
        Grid(*what)
    assert message in str(error.value)


def test_names_of_files():
    assert [slug(name) for name in ("Bitune (DoRA)", "Naive Bidir.", "0.01")] == ["bitune-dora", "naive-bidir", "0.01"]


@pytest.mark.parametrize("model", sorted(PAPER_MODELS.values()))
def test_the_users_config_of_a_model_is_its_cell(model):
    """`configs/<model>.yaml` trains what the first Bitune cell of the paper's profile does."""
    config = yaml.safe_load((ROOT / "configs" / f"{model}.yaml").read_text())
    table = "table17" if model == "codestral22b" else "table1"
    said = settings(table, model, "Bitune")
    assert config["model"] == {name: value for name, value in said["model"].items() if name != "theta_init"}
    assert config["data"] == said["data"] and config["seed_everything"] == 42
    assert config["trainer"]["max_steps"] == said["trainer"]["max_steps"]
    assert read("common")["models"][model]["base"] == config["model"]["base"]


@pytest.mark.parametrize("table", ["table1", "table5", "table15"])
def test_the_committed_results_are_those_of_todays_settings(table):
    """Otherwise README's tables would show what nobody can repeat."""
    known = finished_elsewhere(Path(experiment.__file__).parents[1] / "results")
    grid = Grid(table, "cpu")
    searched = {name: [known[cell.key] for cell in cells] for name, cells in grid.searches().items()}
    cells = grid.cells({name: winner(records) for name, records in searched.items()})
    assert cells and all(cell.key in known for cell in cells)
    assert not [record for record in known.values() if "/tmp" in str(record["run"])]
