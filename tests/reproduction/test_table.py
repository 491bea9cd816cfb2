"""From cells to a table: what counts, what is left out and named, what is refused, and what a reader sees."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_cells import TASKS, cell, failed, put

from bitune_pl.cli import main
from bitune_pl.reproduction.tables import formats
from bitune_pl.reproduction.tables.cells import parse
from bitune_pl.reproduction.tables.rows import rows
from bitune_pl.reproduction.tables.table import FORMATS, rows_of, write


def made(*records, seeds=None):
    """Rows by method."""
    return {row.method: row for row in rows([parse(record, f"{i}.json") for i, record in enumerate(records)], seeds)}


def accuracy(right: int, n: int = 100) -> list[int]:
    return [1] * right + [0] * (n - right)


def three(method="LoRA", **said):
    """Field report H10's seeds: 0.10, 0.12 and 0.30."""
    return [cell(method, seed, (), right={"piqa": accuracy(k)}, **said) for seed, k in ((42, 10), (43, 12), (44, 30))]


# -- means -------------------------------------------------------------------------------------------------------------


def test_the_same_numbers_in_every_format():
    """H10: mean, sample deviation and n; the same in terminal, Markdown, LaTeX and CSV."""
    said = list(made(*three()).values())
    for text in (formats.terminal(said), formats.markdown(said)):
        assert "17.3 ± 11.0" in text and "ddof 1" in text
    assert "17.3 $\\pm$ 11.0" in formats.latex(said)
    line = next(row for row in csv.DictReader(io.StringIO(formats.as_csv(said))) if row["method"] == "LoRA")
    assert (line["n"], line["seeds"], line["column"]) == ("3", "42 43 44", "PIQA")
    assert (float(line["mean"]), float(line["deviation"])) == pytest.approx((17.333333, 11.015141))


def test_one_seed_has_no_deviation():
    row = made(cell("LoRA", right={"piqa": accuracy(50)}, tasks=()))["LoRA"]
    assert formats.ours(row, "PIQA") == "50.0"
    assert row.columns["PIQA"].ours.deviation is None


@pytest.mark.parametrize("lost", ["failed", "nan", "null", "missing"])
def test_a_lost_seed_is_named_and_not_counted(lost):
    first, second, last = three()
    if lost == "failed":
        last = failed("LoRA", 44, "It ran out\nof memory.")
    elif lost != "missing":
        last["scores"]["piqa"]["acc"] = math.nan if lost == "nan" else None
        last["right"] = {}
    row = made(first, second, *([] if lost == "missing" else [last]), seeds=[42, 43, 44])["LoRA"]
    assert row.columns["PIQA"].ours.mean == pytest.approx(11)
    assert formats.count(row) == "2 of 3"
    why = {"failed": "failed (It ran out of memory)", "missing": "not run"}.get(lost, "no number for PIQA")
    assert f"LoRA: seed 44 left out: {why}." in formats.terminal([row])


def test_seeds_of_another_method_are_missed():
    row = made(cell("LoRA", 42), cell("LoRA", 43), cell("Bitune", 42))["Bitune"]
    assert formats.count(row) == "1 of 2" and set(row.columns["PIQA"].missing) == {43}


def test_more_seeds_than_asked_for_count_too():
    row = made(*three()[::-1], seeds=[42])["LoRA"]
    assert (formats.count(row), [c.seed for c in row.cells]) == ("3", [42, 43, 44])


def test_a_pretrained_model_needs_one_seed():
    row = made(cell("Pretrained", 42), cell("LoRA", 42), cell("LoRA", 43))["Pretrained"]
    assert formats.count(row) == "1" and not row.columns["PIQA"].missing


def test_an_average_is_taken_within_seeds_that_have_every_task():
    one = cell("LoRA", 42, (), right={"piqa": accuracy(40), "mmlu": accuracy(20)})
    two = cell("LoRA", 43, (), right={"piqa": accuracy(60)})
    row = made(one, two)["LoRA"]
    assert row.columns["PIQA"].ours.mean == pytest.approx(50)
    assert (row.columns["Avg."].ours.mean, row.columns["Avg."].ours.n) == (pytest.approx(30), 1)
    assert "LoRA: seed 43 left out of MMLU, Avg.: MMLU not evaluated." in formats.terminal([row])
    assert formats.ours(row, "MMLU").endswith("(n=1)")


def test_a_task_of_ones_own_has_a_column_after_the_papers():
    row = made(cell("LoRA", tasks=("categories", "mmlu", "piqa")))["LoRA"]
    assert list(row.columns) == ["PIQA", "MMLU", "categories", "Avg."]
    assert row.columns["categories"].verdict.word == "not in the paper"


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["LoRA", "Bitune", "Pretrained"]), st.integers(1, 4)), unique=True, min_size=1)
)
def test_order_of_cells_does_not_matter(which):
    """Of the rows run, and their means, gains and intervals."""
    records = [
        cell(method, seed, ("piqa", "mmlu"), 20) for method, seed in which if method != "Pretrained" or seed == 1
    ]
    if not records:
        return
    there, back = made(*records), made(*records[::-1])
    for method, row in there.items():
        for column, entry in row.columns.items():
            other = back[method].columns[column]
            assert (entry.ours, entry.gain, entry.interval, entry.missing) == (
                other.ours,
                other.gain,
                other.interval,
                other.missing,
            )
            if entry.interval:
                assert entry.interval.low <= entry.ours.mean + 1e-9 and entry.ours.mean - 1e-9 <= entry.interval.high


# -- gains -------------------------------------------------------------------------------------------------------------


def test_gain_is_paired_over_common_seeds():
    base = [cell("LoRA", seed, (), right={"piqa": accuracy(k)}) for seed, k in ((42, 40), (43, 50))]
    ours = [cell("Bitune", seed, (), right={"piqa": accuracy(k)}) for seed, k in ((43, 60), (44, 90))]
    gain = made(*base, *ours)["Bitune"].columns["PIQA"].gain
    assert gain.mean == pytest.approx(10), "only seed 43 is in both: 60 against 50"
    assert (gain.interval.seeds, gain.interval.questions) == (1, 100)
    assert gain.interval.mean == pytest.approx(10) and gain.interval.clear


def test_no_gain_without_a_common_seed():
    assert made(cell("LoRA", 42), cell("Bitune", 43))["Bitune"].columns["PIQA"].gain is None


def test_gain_without_single_answers_has_no_interval():
    gain = made(cell("LoRA") | {"right": {}}, cell("Bitune"))["Bitune"].columns["PIQA"].gain
    assert gain.interval is None and math.isfinite(gain.mean)


def test_a_pretrained_model_stands_against_every_seed():
    base = [cell("LoRA", seed, (), right={"piqa": accuracy(k)}) for seed, k in ((42, 40), (43, 50))]
    gain = made(*base, cell("Pretrained", 42, (), right={"piqa": accuracy(30)}))["Pretrained"].columns["PIQA"].gain
    assert (gain.mean, gain.interval.seeds) == (pytest.approx(-15), 2)


def test_gains_are_over_the_same_adapter_and_measures_are_divided():
    said = made(*(cell(method, table="table6") for method in ("LoRA", "Bitune", "IA3", "Bitune (IA3)")))
    assert said["IA3"].columns["PIQA"].gain is None and said["LoRA"].columns["PIQA"].gain is None
    assert said["Bitune (IA3)"].columns["PIQA"].gain.mean == pytest.approx(
        said["Bitune (IA3)"].columns["PIQA"].ours.mean - said["IA3"].columns["PIQA"].ours.mean
    )
    cost = made(*(cell(m, table="table14", train_seconds=s) for m, s in (("LoRA", 3600), ("Bitune", 9000))))["Bitune"]
    assert list(cost.columns) == ["Train. Time [h]", "Memory [GB]", "Avg."]
    assert cost.columns["Train. Time [h]"].ours.mean == 2.5
    assert formats.gain(cost.columns["Train. Time [h]"].gain) == "2.50x"
    assert formats.paper_gain(cost.columns["Train. Time [h]"]) == "3.10x"


def test_latency_is_a_table_without_accuracies():
    latency = {"prompt_tokens": 60, "new_tokens": 8, "prefill_seconds": 0.5, "decode_seconds": 2.0, "device": "cpu"}
    row = made(cell("LoRA", tasks=(), table="table4", latency=latency))["LoRA"]
    assert {column: entry.ours.mean for column, entry in row.columns.items()} == {"Prefill": 0.5, "Generation": 2.0}
    assert row.columns["Prefill"].verdict.why == "other model"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"profile": "paper", "device": "NVIDIA A100-SXM4-80GB"}, "-0.90 from the paper's mean"),
        ({"profile": "paper", "device": "cpu, 2 threads"}, "other hardware"),
        ({"profile": "paper"}, "other hardware"),
        ({"profile": "smoke", "device": "NVIDIA A100-SXM4-80GB"}, "other settings (profile smoke)"),
    ],
)
def test_measures_are_compared_on_the_papers_hardware_and_settings(said, why):
    """Table 14: LoRA on Gemma-2B took 1.0 h; Table 4 is latency."""
    cost = made(cell("LoRA", table="table14", model="gemma2b", train_seconds=360, **said))["LoRA"]
    assert cost.columns["Train. Time [h]"].verdict.why == why
    latency = {"prefill_seconds": 0.5, "decode_seconds": 2.0, "device": said.get("device")}
    fast = made(cell("LoRA", tasks=(), table="table4", model="gemma2b", latency=latency, profile=said["profile"]))[
        "LoRA"
    ]
    assert ("from the paper's mean" in fast.columns["Prefill"].verdict.why) == ("from the paper's mean" in why)


# -- the paper beside it -----------------------------------------------------------------------------------------------


def test_another_model_has_the_smallest_ones_numbers_and_no_verdict():
    row = made(cell("LoRA"))["LoRA"]
    assert (row.reference, row.comparable) == ("Gemma-2B", False)
    assert {str(entry.verdict) for entry in row.columns.values()} == {"not comparable: other model"}
    assert row.columns["PIQA"].paper == (66.74, 0.52)


def _whole(method, seed, right, **said):
    """A cell of the paper's setting: Gemma-2B, 3000 updates, all 1838 questions of PIQA."""
    return (
        cell(method, seed, (), right={"piqa": accuracy(right, 1838)}, model="gemma2b", profile="paper", updates=3000)
        | said
    )


def test_verdicts_in_the_papers_setting():
    near, far = _whole("LoRA", 42, round(0.67 * 1838)), _whole("Bitune", 42, round(0.5 * 1838))
    said = made(near, far)
    assert said["LoRA"].columns["PIQA"].verdict.word == "within the published spread"
    assert said["Bitune"].columns["PIQA"].verdict.word == "outside"
    assert "Outside: Bitune PIQA" in formats.terminal(list(said.values()))
    few = made(_whole("LoRA", 42, 1230, updates=40))["LoRA"].columns["PIQA"].verdict
    assert str(few) == "not comparable: other settings (40 updates, paper 3000)"


def test_an_average_over_fewer_tasks_is_another_average():
    said = list(made(cell("LoRA", tasks=("piqa", "mmlu")), cell("Bitune", tasks=("piqa", "mmlu"))).values())
    entry = said[-1].columns["Avg."]
    assert (entry.paper, entry.paper_gain, entry.verdict.word) == (None, None, "not in the paper")
    assert said[-1].columns["PIQA"].paper_gain == pytest.approx(2.85)
    assert "Avg. is over PIQA, MMLU; the paper's, over PIQA, ARC" in " ".join(formats.terminal(said).split())


def test_the_same_answers_have_no_interval():
    """Nothing differs, so there is nothing to draw from; "0.0 to 0.0" would read as certainty."""
    same = {"piqa": accuracy(40)}
    row = made(*(cell(method, tasks=(), right=same) for method in ("LoRA", "Bitune")))["Bitune"]
    assert formats.ends(row.columns["PIQA"].gain) == "same answers"


def test_rows_of_the_paper_that_were_not_run_say_so():
    said = made(cell("LoRA"))
    assert list(said) == ["Pretrained", "LoRA", "LoRA16", "Bitune"]
    assert formats.count(said["Bitune"]) == "not run"
    assert "Not run: Pretrained, LoRA16, Bitune." in formats.terminal(list(said.values()))


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"table": "table5"}, "table is table1 for LoRA on smollm2, seed 42 .* and table5"),
        ({"profile": "paper"}, "profile is cpu .* and paper"),
        ({"updates": 80}, "updates is 40 for .* and 80 for LoRA on smollm2, seed 43"),
        ({"lr": 0.1}, "lr is 0.001 .* and 0.1"),
        ({"prompt_hash": {"piqa": "other"}}, "prompt_hash.PIQA is piqa-100 .* and other"),
        ({"seed": 42}, "0.json and 1.json are both LoRA on smollm2, seed 42"),
    ],
)
def test_cells_that_do_not_belong_together_are_named(change, named):
    with pytest.raises(ValueError, match=named):
        made(cell("LoRA", 42), cell("LoRA", 43) | change)


def test_nested_settings_are_named():
    other = cell("Bitune", 42)
    other["settings"] = other["settings"] | {"data": other["settings"]["data"] | {"max_length": 512}}
    with pytest.raises(ValueError, match="settings.data.max_length is 224 for LoRA .* and 512 for Bitune"):
        made(cell("LoRA", 42), other)
    with pytest.raises(ValueError, match="questions.PIQA is 100 .* and 50"):
        made(cell("LoRA"), cell("Bitune", n=50))


def test_failed_cells_do_not_have_to_fit():
    assert made(cell("LoRA"), failed("Bitune", updates=0))["Bitune"].done == []


def test_a_cell_that_contradicts_itself_is_refused():
    record = cell("LoRA")
    record["scores"]["piqa"]["acc"] += 0.1
    with pytest.raises(ValueError, match="contradicts itself: PIQA"):
        parse(record, "x.json")


BIG = 10**401
ODD = [BIG, math.nan, "x", [1], {"a": [1]}, True, None]


@pytest.mark.parametrize("key", ["table", "profile", "model", "method", "seed", "status"])
@pytest.mark.parametrize("value", [[1], {}, None, 1.5, True, "", "a\nb", "\ud800"], ids=repr)
def test_a_needed_field_of_another_type_is_refused_by_name(key, value):
    with pytest.raises(ValueError, match=f"x.json is (not a cell of a table: its {key} is|a damaged cell)"):
        parse(cell("LoRA") | {key: value}, "x.json")


@pytest.mark.parametrize(
    "key",
    ["settings", "scores", "right", "prompt_hash", "versions", "latency", "updates", "lr", "train_seconds", "evaluate_seconds",
     "peak_memory_gb", "trained_parameters", "loss_validation", "run", "alpha", "error", "key", "device"],
)  # fmt: skip
@pytest.mark.parametrize("value", ODD, ids=lambda value: f"{value!r:.5}")
def test_an_odd_field_is_refused_by_the_name_of_its_file_or_does_no_harm(key, value, tmp_path):
    folder = put(tmp_path / "cells", cell("Bitune") | {key: value}, cell("LoRA"))
    try:
        write(folder, tmp_path / "out")
    except ValueError as error:
        assert "smollm2--bitune--42.json" in str(error)
    else:
        assert not re.search(r"\b(nan|inf)\b", (tmp_path / "out" / "table1-cpu.html").read_text())


@pytest.mark.parametrize(
    "said",
    [
        {"settings": {"runs": [3]}},
        {"settings": {"data": "x"}},
        {"settings": {"runs": 5}},
        {"scores": {"piqa": {"acc": BIG, "n": 100}}},
        {"scores": {"piqa": {"acc": "0.5", "n": 100}}},
        {"scores": {"piqa": {"acc": 0.5, "n": "100"}}},
        {"scores": {"piqa": {"acc": 0.5}}},
        {"scores": {"a\nb": {"acc": 0.5, "n": 100}}},
        {"right": {"piqa": [[1], [0, 1]]}},
        {"right": {"piqa": [[1, 0]]}},
        {"lr": "0.001"},
        {"trained_parameters": "4815420"},
        {"latency": {"prefill_seconds": "fast"}, "table": "table4"},
    ],
)
def test_a_damaged_cell_is_named(said):
    with pytest.raises(ValueError, match="x.json is a damaged cell"):
        parse(cell("LoRA") | said, "x.json")


@pytest.mark.parametrize("levels", [30, 900, 100_000])
def test_a_deep_cell_is_named(levels, tmp_path):
    text = json.dumps(cell("LoRA") | {"settings": "DEEP"}).replace('"DEEP"', '{"a": ' * levels + "1" + "}" * levels)
    (tmp_path / "deep.json").write_text(text)
    with pytest.raises(ValueError, match="deep.json is (a damaged cell|not whole JSON)"):
        rows_of(tmp_path)


def test_files_that_are_no_cells_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        rows_of(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="Run the grid first"):
        rows_of(tmp_path)
    put(tmp_path / "table1" / "cpu", cell("LoRA"))
    with pytest.raises(FileNotFoundError, match=r"There are cells in .*table1/cpu: give one of those"):
        rows_of(tmp_path)
    (tmp_path / "broken.json").write_text('{"table": "tab')
    with pytest.raises(ValueError, match="broken.json is not whole JSON"):
        rows_of(tmp_path)
    (tmp_path / "broken.json").write_text('{"table": "table1"}')
    with pytest.raises(ValueError, match="broken.json is not a cell of a table: it lacks profile"):
        rows_of(tmp_path)
    with pytest.raises(ValueError, match="a record is a cell of 'learning_rate'; there are table1"):
        parse(cell("LoRA", table="learning_rate"))
    with pytest.raises(ValueError, match="there are none"):
        rows([])


# -- what a reader sees ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["usual", "few", "failed", "one", "smoke", "table15", "table4"])
def test_every_format_of_every_kind_of_table(what, tmp_path):
    latency = {"prefill_seconds": 0.03, "decode_seconds": 62.0}
    records = {
        "usual": [cell(m, s) for m in ("LoRA", "Bitune (Full FT)") for s in (42, 43, 44)] + [cell("Pretrained")],
        "few": [cell("LoRA"), failed("Bitune")],
        "failed": [failed("LoRA", 42, "a\nlong <b>error</b> " * 40), failed("Bitune", 43)],
        "one": [cell("Bitune")],
        "smoke": [cell(m, s, ("categories",), 20, model=d, profile="smoke")
                  for m in ("LoRA", "Bitune") for s in (42, 43) for d in ("tiny-llama", "tiny-gemma2")],
        "table15": [cell(m, table="table15") for m in ("0.1", "0.01", "0.001")],
        "table4": [cell(m, tasks=(), table="table4", latency=latency) for m in ("LoRA", "Bitune")],
    }[what]  # fmt: skip
    shown = write(put(tmp_path / "cells", *records), tmp_path / "out")
    assert max(map(len, shown.splitlines())) <= 120
    assert "nan" not in shown and "None" not in shown
    stem = f"{records[0]['table']}-{records[0]['profile']}"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{stem}.{ending}" for ending in FORMATS}
    assert (tmp_path / "out" / f"{stem}.txt").read_text() == shown
    for ending in FORMATS:
        text = (tmp_path / "out" / f"{stem}.{ending}").read_text()
        assert not re.search(r"\bnan\b|\bNone\b", text), ending
    assert str(tmp_path) not in (tmp_path / "out" / f"{stem}.html").read_text()


def test_seven_tasks_are_put_into_tables_that_fit():
    tasks = (*TASKS, "gsm8k", "categories", "sums")
    text = formats.terminal(
        list(made(cell("LoRA", tasks=tasks), cell("LoRA", 43, tasks), cell("Bitune", tasks=tasks)).values())
    )
    assert max(map(len, text.splitlines())) <= 120
    assert "sums" in text and "Avg." in text


def test_written_again_it_is_the_same(tmp_path):
    folder = put(tmp_path / "cells", cell("LoRA"), cell("Bitune"), cell("Bitune", 43))
    for out in ("a", "b"):
        write(folder, tmp_path / out)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_the_command(tmp_path, capsys):
    folder = put(tmp_path / "table1" / "cpu", cell("LoRA"), cell("Bitune"))
    assert main(["table", str(folder), "--seeds", "42,43"]) == 0
    assert "Bitune: seed 43 left out: not run." in capsys.readouterr().out
    assert (tmp_path / "table1" / "table1-cpu.html").exists()
    assert json.loads((folder / "smollm2--lora--42.json").read_text())["method"] == "LoRA", "cells are left alone"
    assert main(["table", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["table", str(folder), "--seeds", "x"]) == 2
    assert "seeds are whole numbers" in capsys.readouterr().err


def test_nothing_is_lost_on_the_way(tmp_path):
    """Answers drawn at random: the mean in the CSV is that of the answers."""
    right = np.random.default_rng(0).integers(0, 2, 77).tolist()
    rows_made = rows_of(put(tmp_path, cell("LoRA", tasks=(), right={"piqa": right})))
    line = next(row for row in csv.DictReader(io.StringIO(formats.as_csv(rows_made))) if row["method"] == "LoRA")
    assert float(line["mean"]) == pytest.approx(100 * sum(right) / 77, abs=1e-5)
