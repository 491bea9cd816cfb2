"""`bitune report`: the page of a whole run, and of runs that lack something."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html import unescape

import numpy as np
import pytest
import torch
from tiny_base import CPU

from bitune_pl.cli import main
from bitune_pl.training.dashboard.texts import Answered
from bitune_pl.training.report.charts import _round_values, line_chart
from bitune_pl.training.report.page import page
from bitune_pl.training.report.proof import climb
from bitune_pl.training.report.record import Record, read

FEW = ["--data.train_rows", "60", "--data.validation_rows", "6", "--trainer.max_steps", "3"]


@pytest.fixture(scope="module")
def run(tiny_base, tmp_path_factory):
    """A finished run of three updates, with scores of tasks beside it."""
    root = tmp_path_factory.mktemp("runs")
    place = ["--model.base", tiny_base, "--trainer.default_root_dir", str(root), "--model.lr", "0.1"]
    assert main(["fit", *CPU, *FEW, *place]) == 0
    (folder,) = (root / "categories").iterdir()
    scores = {"n": 200, "acc": 0.5625, "acc_stderr": 0.0351, "acc_norm": 0.5}
    (folder / "scores.json").write_text(json.dumps({"tasks": {"piqa": scores}}))
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text('{"tasks": ["a"]}')
    return folder


def reported(folder, *options: str) -> str:
    assert main(["report", str(folder), "--out", "page.html", *options]) == 0
    with open("page.html", encoding="utf-8") as file:
        return file.read()


def test_a_page_has_everything_and_needs_no_network(run, capsys):
    text = reported(run)
    assert "The page is in page.html." in capsys.readouterr().out
    titles = re.findall(r"<h2>(\w[\w ]*\w)", text)
    assert titles == [
        "Curves",
        "Alpha",
        "More curves",
        "Answers to validation prompts",
        "Scores of tasks",
        "Cost",
        "Equivalence checks",
        "Settings",
    ]
    assert not re.search(r"""(src|href)=["'](?!data:)|url\(|@import|<script|https?:""", text)
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert len(charts) == 9 and "Finished: 3 updates." in text and "prefers-color-scheme: dark" in text
    assert "0.5625 &plusmn; 0.0351" in text and "<td>acc_norm</td>" in text


def test_the_last_alphas_are_those_of_the_last_checkpoint(run):
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    theta = torch.stack([saved["model.theta_k"], saved["model.theta_v"]], dim=1).abs()
    expected = [f"{alpha:.4f}" for alpha in (theta / (0.01 + theta)).flatten().tolist()]
    table = re.search(r"Numbers of each block.*?</table>", reported(run, "--without-checks"), re.DOTALL)[0]
    assert re.findall(r">(\d\.\d{4})<", table) == expected


def test_checks_are_those_of_verify(run, tiny_base, capsys):
    shown = re.findall(
        r"<td>([^<]*)</td><td class=\"number\">([^<]*)</td>", reported(run).split("Equivalence checks")[1]
    )
    assert main(["verify", "--base", tiny_base]) == 0
    lines = re.findall(r"^(\S.*?)\s{2,}(\S+) .*PASS", capsys.readouterr().out, re.MULTILINE)
    assert [(unescape(name), value) for name, value in shown] == lines and len(lines) == 13


def test_checks_that_fail_are_told_and_those_left_out_are_not(run, monkeypatch):
    assert "Equivalence" not in reported(run, "--without-checks")
    monkeypatch.setattr("bitune_pl.method.ladder._logits", lambda subject: 1.0)
    assert '<span class="bad">FAIL</span>' in page(
        read(run), climb(read(run).plain_config["model"]["base"], "bitune", "lora")
    )


def test_a_base_that_is_gone_costs_the_checks_only(run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    config = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(re.sub("base: .*", "base: ./nowhere", config))
    assert "The checks could not be made: There is no folder ./nowhere" in reported(moved)


def test_a_run_without_events_is_said_to_have_none(run, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(run / "config.yaml", bare)
    text = reported(bare, "--without-checks")
    assert "no TensorBoard events" in text and "theta_init" not in text and "max_steps: 3" in text


def test_an_unfinished_run_says_how_far_it_is(run):
    record = read(run)
    record.settings["updates"] = "20"
    assert record.ended and "Ended early: 3 of 20 updates." in page(record)
    record.ended = False
    assert "Unfinished: 3 of 20 updates so far." in page(record)
    record.settings["updates"], record.folder = "3", record.folder / "nowhere"
    assert "Stopped after 3 updates, with no model kept yet" in page(record)


def test_blocks_are_shown_where_all_of_them_have_a_ratio(tmp_path):
    curves = {f"{name}/layer_{i}": ([1, 2, 3], [0.5, 0.4, 0.3]) for name in ("alpha_k", "alpha_v") for i in range(2)}
    record = Record(tmp_path, "", curves=curves | {"alpha_k/layer_1": ([1, 3], [0.5, 0.2])})
    updates, alphas = record.alphas("alpha_k")
    assert updates == [1, 3] and alphas.tolist() == [[0.5, 0.5], [0.3, 0.2]]
    assert "<h2>Alpha" in page(record)
    del curves["alpha_v/layer_1"]
    assert "<h2>Alpha" not in page(Record(tmp_path, "", curves=curves))


def test_the_untuned_base_is_a_level_beside_the_run(tmp_path):
    curves = {
        "accuracy/untuned": ([0, 40], [0.25, 0.25]),
        "accuracy/validation": ([40], [0.75]),
        "loss/train": ([1, 40], [2.0, 1.0]),
    }
    text = page(Record(tmp_path, "", curves=curves))
    (chart,) = re.findall(r'<svg[^>]*aria-label="validation accuracy".*?</svg>', text, re.DOTALL)
    level = re.search(r'<polyline class="line s1" points="([^"]*)"', chart)[1].split()
    assert [point.split(",")[0] for point in level] == ["50.0", "348.0"] and len({p.split(",")[1] for p in level}) == 1
    assert re.search(r'<circle class="s0" cx="348.0"', chart) and "untuned base" in chart
    assert "<b>0.250</b><span>accuracy of the untuned base</span>" in text


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"no events", lambda whole: b""]
)
def test_damaged_events_cost_no_more_than_what_they_said(run, tmp_path, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(run, folder)
    (events,) = folder.glob("events.out.tfevents.*")
    events.write_bytes(damage(events.read_bytes()))
    assert "max_steps: 3" in reported(folder, "--without-checks")


def test_events_that_cannot_be_read_are_named(run, monkeypatch, capsys):
    def fail(*_, **__):
        raise KeyError("tag")

    monkeypatch.setattr("bitune_pl.training.report.record.EventAccumulator", fail)
    assert main(["report", str(run), "--out", "page.html"]) == 2
    assert "are damaged ('tag'): move them away" in capsys.readouterr().err


def test_a_plain_run_has_no_alpha(tiny_base, tmp_path):
    assert main(["fit", *CPU, *FEW, "--model.base", tiny_base, "--model.method", "plain"]) == 0
    (folder,) = (tmp_path / "runs" / "categories").iterdir()
    text = reported(folder)
    assert "<h2>Alpha" not in text and "mean alpha" not in text and "method plain" in text and "hold.</p>" in text


ODD = {
    "config.yaml": ["model: foo", "model: [1]\ndata: foo\ntrainer: 3", "trainer: {max_steps: soon}"],
    "b.json": [
        f'{{"tasks": {{"a": {{"acc": {10**400}, "acc_stderr": 0.1}}}}}}',
        "[" * 10_000,
        '{"tasks": {"\\ud800": {"acc": 0.5}}}',
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in ODD.items() for text in texts])
def test_odd_files_cost_no_more_than_what_they_said(run, tmp_path, name, text):
    folder = tmp_path / "odd"
    shutil.copytree(run, folder)
    (folder / name).write_text(text)
    assert "<h2>Curves" in reported(folder, "--without-checks")


def test_curves_that_lack_something(tmp_path):
    curves = {
        "cost/seconds": ([0], [1.0]),
        "cost/tokens": ([0], [10.0]),
        "loss/train": ([10**15, 10**15 + 1], [1.0, 2.0]),
    }
    text = page(Record(tmp_path, "", curves=curves))
    assert "<td>time of an update</td>" in text and "peak memory" not in text


def test_the_time_of_an_update_is_of_those_that_were_logged(tmp_path):
    curves = {"cost/seconds": ([10], [5.0]), "cost/tokens": ([10], [10.0]), "loss/validation": ([19], [1.0])}
    assert re.search(r"time of an update</td><td[^>]*>0.50 s<", page(Record(tmp_path, "", curves=curves)))


def test_a_page_is_written_whole_or_not_at_all(run, monkeypatch, capsys):
    before = reported(run, "--without-checks")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert main(["report", str(run), "--out", "page.html", "--without-checks"]) == 2
    assert "No space left on device: 'page.html'" in capsys.readouterr().err
    with open("page.html", encoding="utf-8") as file:
        assert file.read() == before


def test_texts_cannot_become_markup(tmp_path):
    sample = Answered("<script>alert(1)</script>", "</pre><b>", "&amp;")
    text = page(Record(tmp_path, "a: <i>", samples=[(3, sample)], settings={"base": "<u>"}))
    assert not re.search(r"<script|<i>|<u>|</pre><b>", text)
    assert "&lt;script&gt;" in text and "&amp;amp;" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere"], "nowhere is not the folder of a run"),
        (["."], "it has no config.yaml. There are runs below it: name one, such as cut."),
        ([], "The following arguments are required: RUN"),
        (["RUN", "--out", "nowhere/page.html"], "there is no folder nowhere"),
        (["RUN", "--out", "."], "is a folder"),
        (["cut"], "cannot be read as a config"),
    ],
)
def test_a_mistake_is_one_sentence(argv, message, run, tmp_path, capsys):
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.yaml").write_text("model: [")
    assert main(["report", *(str(run) if word == "RUN" else word for word in argv)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_chart_leaves_out_what_is_no_number():
    nan = float("nan")
    drawn = ElementTree.fromstring(line_chart("loss", {"a": ([1, 2, 3, 4], [1.0, nan, 3.0, float("inf")])}))
    (line,) = [element for element in drawn if "line s0" in element.get("class", "")]
    assert len(line.get("points").split()) == 2
    assert "no finite values" in line_chart("loss", {"a": ([1], [nan])})
    assert "<circle" in line_chart("loss", {"a": ([1], [2.0])})


def test_a_long_curve_is_thinned_and_keeps_its_end():
    values = np.linspace(0, 1, 3000).tolist()
    drawn = line_chart("loss", {"a": (list(range(1, 3001)), values)})
    points = re.search(r'points="([^"]*)"', drawn)[1].split()
    assert len(points) < 410 and points[-1].startswith("348.0,")


def test_a_logarithmic_axis_has_powers_of_ten():
    drawn = line_chart("norm", {"a": ([1, 2, 3], [0.01, 1.0, 0.0])}, log=True)
    assert {"0.01", "0.1", "1"} <= set(re.findall(r">([\d.]+)</text>", drawn))


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (4.4, 6.1, [4.5, 5, 5.5, 6])]
)
def test_values_on_an_axis_are_round(low, high, expected):
    assert _round_values(low, high) == pytest.approx(expected)
