"""`bitune figure`: one command each, files in every format, and mistakes in one sentence."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bitune_pl.data.sources
from bitune_pl.cli import main


@pytest.mark.parametrize(("kind", "ending"), [("alpha", ""), ("blocks", ".pdf"), ("blocks", ".svg"), ("alpha", ".png")])
def test_alpha_and_blocks(runs, kind, ending, capsys, tmp_path):
    out = tmp_path / f"mine{ending}"
    assert main(["figure", kind, "--run", runs["usual"], "--run", runs["0.1"], "--out", str(out)]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [file.suffix for file in files] == ([ending] if ending else [".pdf", ".png"])
    starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}
    assert all(file.read_bytes().startswith(starts[file.suffix]) for file in files)


def test_the_same_figure_is_the_same_file(runs):
    for out in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
        assert main(["figure", "blocks", "--run", runs["usual"], "--out", out]) == 0
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()
    assert Path("a.pdf").read_bytes() == Path("b.pdf").read_bytes()


def test_attention(runs, capsys):
    asked = ["--prompt", "Is it 3?", "--prompt", "Is it 4 or 5?"]
    assert main(["figure", "attention", "--run", runs["usual"], *asked]) == 0
    assert capsys.readouterr().out.split() == ["attention.pdf", "attention.png"]


@pytest.mark.parametrize(
    ("trained_on", "argv", "asked"),
    [
        ("categories", [], "categories"),
        ("sums", [], "sums"),
        ("piqa", [], "gsm8k"),
        ("sums", ["--data.root", "copies"], "gsm8k"),
        ("sums", ["--data.source", "categories"], "categories"),
    ],
)
def test_a_run_of_embedded_data_is_asked_that(runs, trained_on, argv, asked, tmp_path, monkeypatch):
    run = shutil.copytree(runs["usual"], tmp_path / "run")
    (run / "config.yaml").write_text(f"data: {{source: {trained_on}}}")
    sources, load = [], bitune_pl.data.sources.load
    monkeypatch.setattr(
        "bitune_pl.data.sources.load", lambda name, *_, **__: sources.append(name) or load("sums", "test", limit=1)
    )
    assert main(["figure", "attention", "--run", str(run / "model"), *argv, "--out", "a.svg"]) == 0
    assert sources == [asked]


@pytest.mark.parametrize("kind", ["attention", "samples"])
def test_what_the_hub_does_not_give_is_a_sentence(runs, kind, tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    assert main(["figure", kind, "--run", runs["usual"], "--data.source", "gsm8k"]) == 2
    said = capsys.readouterr().err
    assert "The split 'test' of openai/gsm8k (configuration main, revision main) could not be had from" in said
    assert "(no route): give --data.source sums, which" in said
    assert "or --data.root FOLDER" in said and len(said.splitlines()) == 1


def test_samples(runs, capsys, tiny_base):
    few = ["--data.source", "sums", "--questions", "2", "--max-new-tokens", "4"]
    for out in ("samples.md", "page.html", "plain.txt"):
        assert main(["figure", "samples", "--run", runs["usual"], "--base", tiny_base, *few, "--out", out]) == 0
    assert Path(tiny_base).name in Path("samples.md").read_text()
    assert f"bitune, lora, {Path(runs['usual']).name} (" in Path("page.html").read_text()


@pytest.mark.slow
def test_attention_over_embedded_questions(runs):
    few = ["--data.source", "sums", "--questions", "1", "--out", "sums.svg"]
    assert main(["figure", "attention", "--run", runs["usual"], *few]) == 0


@pytest.mark.slow
def test_gsm8k_from_local_copies(runs, shared):
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
        (["alpha", "--run", "cell.json"], "cell.json holds no alpha: LoRA mixes no two readings"),
        (["alpha", "--run", "other.json"], "other.json is no cell of the reproduction"),
        (["alpha", "--run", "YOUNG"], "has logged no alpha yet"),
        (["alpha", "--run", "SILENT"], "has no TensorBoard events"),
        (["alpha", "--run", "USUAL", "--out", "a.gif"], "--out ends in .pdf, .svg, .png"),
        (["alpha", "--run", "USUAL", "--out", "nowhere/a.pdf"], "there is no folder nowhere"),
        (
            ["attention", "--run", "nowhere", "--prompt", "a"],
            "nowhere does not exist: give the folder of a finished",
        ),
        (["attention", "--run", "USUAL", "--run", "PLAIN"], "Attention maps are of one run"),
        (["samples", "--run", "USUAL", "--data.source", "categories"], "categories is answered by choosing"),
        (["attention", "--run", "USUAL", "--data.root", "nowhere"], "There is no file nowhere/gsm8k"),
        (["samples", "--run", "USUAL", "--questions", "0"], "--questions is a number of questions"),
        (["samples", "--run", "USUAL", "--out", "a.pdf"], "--out ends in .txt, .md, .html"),
        (
            ["samples", "--run", "nowhere", "--out", "nowhere/a.md"],
            "there is no folder nowhere; make it first",
        ),
        (["samples", "--run", "nowhere", "--out", "folder.md"], "folder.md is a folder"),
        (["alpha", "--run", "USUAL", "--out", "."], "--out . is a folder: name a file in it, such as figure.pdf."),
        (
            ["attention", "--run", "nowhere", "--out", "nowhere/a.pdf", "--prompt", "a"],
            "there is no folder nowhere",
        ),
        (
            ["attention", "--run", "USUAL", "--prompt", "a b" * 2000],
            "has room for 512 tokens, and these questions have",
        ),
        (["alfa"], "There is no figure 'alfa'; the figures are alpha, blocks, attention, samples."),
        (["alpha", "--runs", "x"], "--runs"),
    ],
)
def test_a_mistake_is_one_sentence(argv, message, runs, capsys):
    Path("cell.json").write_text('{"model": "smollm2", "method": "LoRA", "seed": 42, "alpha": null}')
    Path("other.json").write_text("[]")
    Path("folder.md").mkdir()
    Path("young").mkdir()
    Path("young/config.yaml").write_text("model: {method: bitune}")
    Path("young/events.out.tfevents.1").touch()
    places = {"USUAL": runs["usual"], "PLAIN": runs["plain"], "SILENT": runs["silent"], "YOUNG": "young"}
    assert main(["figure", *(places.get(word, word) for word in argv)]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("bitune: ") and message in line


def test_help_lists_the_figures(capsys):
    assert main(["figure"]) == main(["figure", "--help"]) == 0
    assert "alpha" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["figure", "attention", "--help"])
    assert "--data.root" in capsys.readouterr().out


def test_without_matplotlib_there_is_one_sentence(runs):
    argv = ["figure", "alpha", "--run", runs["usual"]]
    code = f"import sys; sys.modules['matplotlib'] = None; from bitune_pl.cli import main; sys.exit(main({argv}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "bitune: Figures are drawn with matplotlib, which is not installed: pip install matplotlib\n"
