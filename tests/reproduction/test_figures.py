"""Figures from runs: what is drawn is what the runs say, what cannot be drawn is told in one sentence."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_base import CPU, tiny_base  # noqa: F401

from bitune_pl import Bitune, Sample
from bitune_pl.cli import main
from bitune_pl.data.sources import load
from bitune_pl.evaluation.run import open_run
from bitune_pl.method.recorder import attention_maps
from bitune_pl.reproduction.figures import samples
from bitune_pl.reproduction.figures.alpha import draw_blocks, draw_trajectories
from bitune_pl.reproduction.figures.attention import draw_attention, read_question, visible
from bitune_pl.reproduction.figures.trajectories import DEFAULTS, PARTS, labelled, read
from bitune_pl.training.module import BituneModule

UPDATES = 4
SHORT = ["--data.train_rows", "60", "--data.validation_rows", "2", "--data.source", "sums", "--model.lr", "0.01"]


@pytest.fixture(scope="module")
def runs(tiny_base, tmp_path_factory) -> dict[str, str]:  # noqa: F811
    """Finished runs by what is special about them."""
    made = {}
    special = {
        "usual": [],
        "seed 43": ["--seed_everything", "43"],
        "0.1": ["--model.theta_init", "0.1"],
        "plain": ["--model.method", "plain"],
        "silent": ["--trainer.logger", "false"],
        "anti-causal": ["--model.method", "anti_causal"],
    }
    for name, settings in special.items():
        root = tmp_path_factory.mktemp("runs")
        few = [*SHORT, "--trainer.max_steps", str(UPDATES if name != "anti-causal" else 1)]
        assert (
            main(["fit", "--model.base", tiny_base, *CPU, *few, *settings, "--trainer.default_root_dir", str(root)])
            == 0
        )
        [run] = (root / "sums").iterdir()
        made[name] = str(run)
    return made


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def logged(run: str, tag: str) -> tuple[list[int], list[float]]:
    events = EventAccumulator(run).Reload().Scalars(tag)
    return [event.step for event in events], [event.value for event in events]


def curves(axis) -> dict[str, tuple[list, list]]:
    """What is drawn with a label, by label."""
    lines = [line for line in axis.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): tuple(map(list, line.get_data())) for line in lines}


class TestAlpha:
    def test_curves_are_what_the_runs_logged(self, runs):
        figure = draw_trajectories([read(runs["usual"]), read(runs["0.1"])])
        for axis, part in zip(figure.axes, PARTS, strict=True):
            drawn = list(curves(axis).values())
            assert drawn == [logged(runs[name], f"{part}/mean") for name in ("0.1", "usual")]
            assert len(drawn[0][0]) == UPDATES and len(set(drawn[0][1])) > 1
            assert axis.get_title() == PARTS[part]

    def test_labels_name_theta_init_and_the_largest_comes_first(self, runs):
        figure = draw_trajectories([read(runs["usual"]), read(runs["0.1"])])
        found = [text.get_text() for text in figure.legends[0].get_texts()]
        assert [label.rpartition("= ")[2] for label in found] == ["0.1", "0.01"]

    def test_seeds_are_averaged_within_a_band(self, runs):
        first, second = logged(runs["usual"], "alpha_v/mean")[1], logged(runs["seed 43"], "alpha_v/mean")[1]
        figure = draw_trajectories([read(runs["usual"]), read(runs["seed 43"])])
        [(label, (updates, mean))] = curves(figure.axes[1]).items()
        assert label.endswith("(2 seeds)") and updates == [1, 2, 3, 4]
        assert mean == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)])
        [band] = figure.axes[1].collections
        corners = band.get_paths()[0].vertices
        assert corners[:, 1].min() == pytest.approx(min(first + second))

    def test_runs_of_two_methods_are_told_apart(self, runs):
        assert set(labelled([read(runs["usual"]), read(runs["anti-causal"])])) == {"bitune", "anti_causal"}

    def test_a_curve_of_one_update_is_a_dot(self, runs):
        [line] = [
            line
            for line in draw_trajectories([read(runs["anti-causal"])]).axes[0].get_lines()
            if not line.get_label().startswith("_")
        ]
        assert line.get_marker() == "o" and len(line.get_xdata()) == 1

    def test_the_final_alphas_are_those_of_the_model(self, runs):
        model = open_run(runs["usual"]).model
        last = {part: [logged(runs["usual"], f"{part}/layer_{i:02d}")[1][-1] for i in range(2)] for part in PARTS}
        drawn = curves(draw_blocks([read(runs["usual"])]).axes[0])
        for part, (label, (blocks, alphas)) in zip(PARTS, drawn.items(), strict=True):
            assert blocks == [0, 1] and alphas == last[part]
            assert label == f"{PARTS[part]} (mean {sum(alphas) / 2:.3f})"
        assert torch.allclose(torch.tensor(last["alpha_k"]), model.alphas()["alpha_k"], atol=1e-6)

    def test_each_run_has_a_panel(self, runs):
        figure = draw_blocks([read(runs["usual"]), read(runs["0.1"])])
        titles = [axis.get_legend().get_title().get_text() for axis in figure.axes]
        assert [title.partition("= ")[2] for title in titles] == ["0.1, after update 4", "0.01, after update 4"]

    def test_a_cell_of_the_reproduction_draws_the_same(self, runs, tmp_path):
        run = read(runs["0.1"])
        alpha = {"updates": run.updates} | {f"{part}_mean": run.mean[part] for part in PARTS} | run.final
        cell = {"model": "smollm2", "method": "Bitune", "seed": 42, "settings": {"theta_init": 0.1}, "alpha": alpha}
        (tmp_path / "cell.json").write_text(json.dumps(cell))
        again = read(tmp_path / "cell.json")
        assert (again.updates, again.mean, again.final) == (run.updates, run.mean, run.final)
        assert again.settings["theta_init"] == run.settings["theta_init"]

    def test_defaults_are_those_of_a_run(self):
        settings = inspect.signature(BituneModule).parameters
        assert {name: settings[name].default for name in DEFAULTS} == DEFAULTS
        assert inspect.signature(Bitune.build).parameters["theta_init"].default == DEFAULTS["theta_init"]


@pytest.fixture(scope="module")
def opened(runs):
    return open_run(runs["usual"])


class TestAttention:
    def test_maps_are_means_over_blocks_and_heads(self, opened):
        prompt = load("sums", "test", limit=1).examples[0].prompt
        question = read_question(opened.model, opened.encoder, prompt)
        with attention_maps(opened.model) as maps, torch.no_grad():
            opened.model.answer_logits([Sample(opened.encoder.prompt(prompt))])
        assert list(question.maps) == ["causal pass", "bidirectional second pass"]
        for found, expected in zip(question.maps.values(), (maps[0].causal, maps[0].second), strict=True):
            assert np.allclose(found, expected.mean((0, 1)).numpy(), atol=1e-6)
            assert np.allclose(found.sum(1), 1, atol=1e-5)
        assert not np.triu(question.maps["causal pass"], 1).any()
        assert (question.maps["bidirectional second pass"] > 0).all()

    def test_what_is_drawn_is_what_was_read_and_tokens_are_labels(self, opened):
        questions = [
            read_question(opened.model, opened.encoder, text) for text in ("Question: a $5?\n\nAnswer:", "b c d")
        ]
        figure = draw_attention(questions)
        maps = [axis for axis in figure.axes if axis.images and axis.get_label() != "<colorbar>"]
        expected = [weights for question in questions for weights in question.maps.values()]
        assert len(maps) == 4
        for axis, weights in zip(maps, expected, strict=True):
            drawn = axis.images[0].get_array()
            assert np.array_equal(drawn.filled(0), weights) and np.array_equal(drawn.mask, weights == 0)
        labels = [text.get_text() for text in maps[0].get_yticklabels()]
        ids = opened.encoder.prompt("Question: a $5?\n\nAnswer:")[:-1].tolist()
        assert labels == [visible(opened.encoder.tokenizer.decode([i])) for i in ids]
        assert {"$", "↵"} <= set("".join(labels))

    def test_labels_do_not_overlap(self, opened):
        """At the figure's own size, of 60 tokens."""
        prompt = load("sums", "test", limit=1).examples[0].prompt
        figure = draw_attention([read_question(opened.model, opened.encoder, prompt)])
        figure.draw_without_rendering()
        axis = figure.axes[0]
        boxes = [text.get_window_extent() for text in axis.get_yticklabels()]
        assert len(boxes) > 40
        assert all(low.y0 >= high.y1 or high.y0 >= low.y1 for low, high in zip(boxes, boxes[1:], strict=False))
        assert axis.get_yticklabels()[0].get_fontsize() >= 5
        columns = [text.get_window_extent() for text in axis.get_xticklabels()]
        assert all(a.x1 <= b.x0 for a, b in zip(columns, columns[1:], strict=False))

    def test_a_run_without_a_second_pass_has_one_map(self, runs):
        opened = open_run(runs["plain"])
        assert list(read_question(opened.model, opened.encoder, "a b").maps) == ["causal pass"]

    @pytest.mark.parametrize(("token", "shown"), [(" the", "the"), ("\n\n", "↵↵"), (" ", "␣"), ("$", "$"), ("", "␣")])
    def test_every_token_shows(self, token, shown):
        assert visible(token) == shown


class TestSamples:
    def test_answers_are_those_of_the_runs(self, runs):
        examples = load("sums", "test", limit=3).examples
        answers = [samples.ask(open_run(runs[name]), examples, 8) for name in ("usual", "plain")]
        rows = samples.rows(examples, answers)
        for place, name in enumerate(("usual", "plain")):
            model, encoder, _ = open_run(runs[name])
            for row, example in zip(rows, examples, strict=True):
                [ids] = model.generate(
                    [encoder.prompt(example.prompt)], max_new_tokens=8, do_sample=False, eos_token_id=encoder.eos
                )
                assert row.answers[place][0] == encoder.decode(ids).partition("\nQuestion:")[0].strip()
                assert (row.question, row.gold) == (example.prompt, example.answer.strip())

    def test_right_is_the_number_at_the_end(self):
        assert samples._is_right("3 + 4 = 7 balls. #### 7", " It is 7.\n#### 7")
        assert not samples._is_right("7 - 1 = 6", "#### 7") and not samples._is_right("many", "#### 7")

    def test_every_format_holds_every_answer_and_spoils_none(self):
        row = samples.Row("a | b < c\n$x$ #1", "#### 7", (("1 < 2\n**7**", True), ("x|y", False)))
        web, markdown, text = (
            write(["A", "B & C"], [row, row]) for write in (samples.web, samples.markdown, samples.text)
        )
        assert web.count("1 &lt; 2<br>**7**") == 2 and "B &amp; C (0 of 2 right)" in web and "<script" not in web
        head, rule, *lines = markdown.splitlines()
        assert head == "| question | right answer | A (2 of 2 right) | B & C (0 of 2 right) |"
        assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in (head, rule, *lines)) and len(lines) == 2
        assert "1 < 2\n**7**" in text and "[B & C, wrong]\nx|y" in text and "A (2 of 2 right)" in text


class TestCommand:
    @pytest.mark.parametrize("kind", ["alpha", "blocks"])
    @pytest.mark.parametrize("ending", [".pdf", ".svg", ".png", ""])
    def test_alpha_and_blocks(self, runs, kind, ending, capsys, tmp_path):
        out = tmp_path / f"mine{ending}"
        assert main(["figure", kind, "--run", runs["usual"], "--run", runs["0.1"], "--out", str(out)]) == 0
        files = [Path(line) for line in capsys.readouterr().out.splitlines()]
        assert [file.suffix for file in files] == ([ending] if ending else [".pdf", ".png"])
        starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}
        assert all(file.read_bytes().startswith(starts[file.suffix]) for file in files)

    def test_the_same_figure_is_the_same_file(self, runs):
        for out in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
            assert main(["figure", "alpha", "--run", runs["usual"], "--out", out]) == 0
        assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()
        assert Path("a.pdf").read_bytes() == Path("b.pdf").read_bytes()

    def test_attention(self, runs, capsys):
        assert main(["figure", "attention", "--run", runs["usual"], "--data.source", "sums", "--questions", "1"]) == 0
        assert capsys.readouterr().out.split() == ["attention.pdf", "attention.png"]
        asked = ["--prompt", "Is it 3?", "--prompt", "Is it 4 or 5?"]
        assert main(["figure", "attention", "--run", runs["usual"], *asked, "--out", "asked.svg"]) == 0

    def test_samples(self, runs, capsys, tiny_base):  # noqa: F811
        few = ["--data.source", "sums", "--questions", "2", "--max-new-tokens", "4"]
        for out in ("samples.md", "page.html", "plain.txt"):
            assert main(["figure", "samples", "--run", runs["usual"], "--base", tiny_base, *few, "--out", out]) == 0
        assert Path(tiny_base).name in Path("samples.md").read_text()
        assert Path(runs["usual"]).name in Path("page.html").read_text()

    def test_gsm8k_from_local_copies(self, runs, shared):
        few = ["--data.root", str(shared / "data"), "--out", "a.png"]
        assert main(["figure", "attention", "--run", runs["usual"], *few, "--questions", "1"]) == 0

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["alpha"], "Say what to draw: --run FOLDER"),
            (["attention"], "Say what to draw: --run FOLDER"),
            (["samples"], "Say whose answers to show"),
            (["alpha", "--run", "nowhere"], "nowhere is not the folder of a run: it does not exist"),
            (["blocks", "--run", "."], "is not the folder of a run: it has no config.yaml"),
            (["alpha", "--run", "nowhere.json"], "There is no file nowhere.json"),
            (["alpha", "--run", "PLAIN"], "has no alpha: its method, plain, does not mix two readings"),
            (["blocks", "--run", "USUAL", "--run", "PLAIN"], "has no alpha"),
            (["alpha", "--run", "SILENT"], "has no TensorBoard events"),
            (["alpha", "--run", "USUAL", "--out", "a.gif"], "--out ends in .pdf, .svg, .png"),
            (["alpha", "--run", "USUAL", "--out", "nowhere/a.pdf"], "There is no folder nowhere"),
            (
                ["attention", "--run", "nowhere", "--prompt", "a"],
                "nowhere does not exist: give the folder of a finished",
            ),
            (["attention", "--run", "USUAL", "--run", "PLAIN"], "Attention maps are of one run"),
            (["attention", "--run", "USUAL", "--data.source", "categories"], "categories is answered by choosing"),
            (["attention", "--run", "USUAL", "--data.root", "nowhere"], "There is no file nowhere/gsm8k"),
            (["samples", "--run", "USUAL", "--questions", "0"], "--questions is a number of questions"),
            (["samples", "--run", "USUAL", "--out", "a.pdf"], "--out ends in .txt, .md, .html"),
            (["alfa"], "There is no figure 'alfa'; the figures are alpha, blocks, attention, samples."),
            (["alpha", "--runs", "x"], "--runs"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, argv, message, runs, capsys):
        places = {"USUAL": runs["usual"], "PLAIN": runs["plain"], "SILENT": runs["silent"]}
        assert main(["figure", *(places.get(word, word) for word in argv)]) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("bitune: ") and message in line

    def test_help_lists_the_figures(self, capsys):
        assert main(["figure"]) == main(["figure", "--help"]) == 0
        assert "alpha" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["figure", "attention", "--help"])
        assert "--data.root" in capsys.readouterr().out

    def test_without_matplotlib_there_is_one_sentence(self, runs):
        argv = ["figure", "alpha", "--run", runs["usual"]]
        code = f"import sys; sys.modules['matplotlib'] = None; from bitune_pl.cli import main; sys.exit(main({argv}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2
        assert (
            done.stderr == "bitune: Figures are drawn with matplotlib, which is not installed: pip install matplotlib\n"
        )
