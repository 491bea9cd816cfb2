"""The published numbers: equal to the transcription they were made from, and consistent with one another."""

import json
from statistics import fmean

import pytest
from places import SHARED

from bitune_pl.reproduction.tables.published import PAPER, as_cells, paper_model, paper_scores, paper_task

TRANSCRIPTION = SHARED / "paper" / "tables.json"
AVERAGES = {"Acc.", "Avg. Acc", "Avg. Acc.", "Avg."}


@pytest.fixture(scope="module")
def transcription():
    if not TRANSCRIPTION.exists():
        pytest.skip("the transcription of the paper's tables is not here")
    return json.loads(TRANSCRIPTION.read_text())


def _numbers(rows: dict, columns: list[str]) -> dict:
    return {
        (model, method, column): value
        for model, methods in rows.items()
        for method, values in methods.items()
        for column, value in zip(columns, values, strict=True)
    }


@pytest.mark.parametrize("name", PAPER["tables"])
def test_tables_equal_the_transcription(name, transcription):
    ours, theirs = PAPER["tables"][name], transcription[f"Table {name.removeprefix('table')}"]
    expected = {
        (row["model"], row["method"], "Avg." if column in AVERAGES else column): row[column]
        for row in theirs["rows"]
        for column in theirs["columns"]
        if not isinstance(row[column], bool)
    }
    assert _numbers(ours["rows"], ours["columns"]) == expected
    ticks = {row["method"]: [row[name] for name in ours.get("components", [])] for row in theirs["rows"]}
    assert "parts" not in ours or ours["parts"] == ticks


@pytest.mark.parametrize("name", PAPER["deviations"])
def test_deviations_equal_the_transcription(name, transcription):
    ours, theirs = PAPER["deviations"][name], transcription[f"Table {name.removeprefix('table')}"]
    expected = {
        (row["model"], row["method"], task): [row[task], row[f"{task}_std"]]
        for row in theirs["rows"]
        for task in theirs["columns"]
        if not task.endswith("_std")
    }
    assert _numbers(ours["rows"], ours["columns"]) == expected


def test_figures_and_settings_equal_the_transcription(transcription):
    curves, bars = PAPER["figures"]["figure2"], PAPER["figures"]["figure3"]
    assert curves["points"] == {str(row["theta_init"]): row["points"] for row in transcription["Figure 2"]["rows"]}
    assert curves["ends"] == transcription["Figure 2"]["summary"]
    assert bars["ends"] == transcription["Figure 3"]["summary"]
    for name in ("alpha_k", "alpha_v"):
        assert bars[name] == [row[name] for row in transcription["Figure 3"]["rows"]]
    samples = transcription["GSM8K samples (A.13)"]
    for name in ("reference", "LoRA", "Bitune"):
        assert PAPER["figures"]["table27"][name] == [row[name] for row in samples["rows"]]
    steps = next(row for row in transcription["Table 10"]["rows"] if row["method"] == "Update Steps")
    assert PAPER["updates"] == {name: steps[name] for name in PAPER["updates"]}


def test_every_table_of_the_transcription_with_results_is_here(transcription):
    printed = {name for name in transcription if name.startswith("Table ")}
    settings = {f"Table {n}" for n in (*range(9, 14), 18, 19, 20)}
    here = {f"Table {name.removeprefix('table')}" for part in ("tables", "deviations") for name in PAPER[part]}
    assert here == printed - settings


def test_means_with_two_decimals_round_to_the_table():
    for name, table in PAPER["tables"].items():
        for model, methods in table["rows"].items():
            for method, values in methods.items():
                scores = paper_scores(name, model, method)
                for column, value in zip(table["columns"], values, strict=True):
                    assert scores[column].mean == pytest.approx(value, abs=0.0551), (name, model, method, column)


@pytest.mark.parametrize("name", [name for name in PAPER["tables"] if name not in ("table4", "table14")])
def test_printed_averages_are_those_of_the_tasks(name):
    table = PAPER["tables"][name]
    for model, methods in table["rows"].items():
        for method in methods:
            scores = paper_scores(name, model, method)
            tasks = [scores[task].mean for task in PAPER["tasks"] if task in scores]
            if "Avg." in scores and tasks:
                assert fmean(tasks) == pytest.approx(scores["Avg."].mean, abs=0.06), (name, model, method)


def test_the_deviations_of_a_task_come_with_its_mean():
    bitune = paper_scores("table1", "Gemma-2B", "Bitune")
    assert (bitune["MMLU"].mean, bitune["MMLU"].deviation) == (35.29, 0.08)
    assert bitune["Avg."].deviation is None
    assert paper_scores("table8", "Gemma-2B", "Causal")["PIQA"].mean == 66.39, "Only Causal, under another name"
    assert paper_scores("table2", "Phi-2", "LoRA16")["PIQA"].deviation is None
    assert paper_scores("table1", "Gemma-2B", "Prefix") == {}


def test_names():
    assert paper_model("gemma2b") == paper_model("google/gemma-2b") == paper_model("Gemma-2B") == "Gemma-2B"
    assert paper_model("smollm2") is None
    assert paper_task("arc_challenge") == "ARC"
    assert paper_task("categories") == "categories"


def test_cells_from_published_numbers_say_what_they_are():
    cells = as_cells("table1")
    lora = [cell for cell in cells if (cell["model"], cell["method"]) == ("Gemma-2B", "LoRA")]
    assert [cell["seed"] for cell in lora] == [42, 43, 44]
    assert fmean(cell["scores"]["PIQA"]["acc"] for cell in lora) == pytest.approx(0.6674)
    assert {cell["profile"] for cell in cells} == {"published"} and not any(cell["right"] for cell in cells)
