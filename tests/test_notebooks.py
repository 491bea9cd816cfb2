"""Every notebook runs from top to bottom, lies in git without outputs, and leaves all logic to the package."""

import ast
import json
import re
import resource
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from places import ROOT
from tiny_base import CPU, tiny_base  # noqa: F401

from bitune_pl.cli import main

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
ON_A_BASE = [path for path in NOTEBOOKS if 'BASE = \\"smollm2\\"' in path.read_text()]
LIMIT = 180
"""Seconds of CPU time that a notebook may take with its defaults: so many minutes on idle cores, and no more on busy ones."""


def cells(notebook: Path) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def source(cell: dict) -> str:
    """A cell's Python, without what only a notebook knows."""
    return "".join(line for line in cell["source"] if not line.startswith("%"))


def run(notebook: Path, **settings: object) -> dict:
    """What the names of a notebook stand for after its last cell, with other settings in its first one."""
    names: dict = {}
    for number, cell in enumerate(cells(notebook)):
        exec(compile(source(cell), notebook.name, "exec"), names)
        names |= {} if number else settings
    return names


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A repository's root, from the folder `notebooks` of which Jupyter runs what lies there."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


@pytest.mark.parametrize("notebook", ON_A_BASE, ids=lambda path: path.stem)
def test_it_runs_on_a_tiny_decoder(notebook, tiny_base, root):  # noqa: F811
    names = run(notebook, BASE=tiny_base)
    if "losses" in names:
        assert names["losses"][-1] < names["losses"][0]
    assert not list((root / "notebooks").iterdir())


def test_one_run_of_the_roots_is_drawn(tiny_base, root, monkeypatch):  # noqa: F811
    argv = [
        "--model.base",
        tiny_base,
        *CPU,
        "--data.source",
        "sums",
        "--data.train_rows",
        "20",
        "--trainer.max_steps",
        "1",
    ]
    monkeypatch.chdir(root)
    assert main(["fit", *argv, "--data.validation_rows", "2", "--data.batch_size", "2"]) == 0
    [folder] = Path("runs/sums").iterdir()
    monkeypatch.chdir("notebooks")
    names = run(ROOT / "notebooks" / "02_alpha_and_attention.ipynb", BASE=tiny_base, RUNS=[str(folder)])
    assert [run.name for run in names["trajectories"]] == [folder.name]


@pytest.mark.slow
@each
def test_it_runs_with_its_defaults_in_time_and_shows_what_it_draws(notebook, root):
    made = nbformat.read(notebook, as_version=4)
    before = _seconds_of_children()
    NotebookClient(made, timeout=600, resources={"metadata": {"path": str(root / "notebooks")}}).execute()
    assert 0 < _seconds_of_children() - before < LIMIT
    shown = [output for cell in made.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.output_type == "error"]
    drawing = [c for c in made.cells if c.cell_type == "code" and re.search(r"^draw_\w+\(", c.source, re.MULTILINE)]
    for cell in drawing:
        assert any("image/png" in output.get("data", {}) for output in cell.outputs), cell.source
    assert drawing, "a notebook draws something"
    assert not list((root / "notebooks").iterdir())


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@each
def test_it_lies_in_git_without_outputs(notebook):
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))


@each
def test_it_has_no_logic_of_its_own(notebook):
    """No functions, classes, or branches that are statements; loops of a few lines at most."""
    for cell in cells(notebook):
        for node in ast.walk(ast.parse(source(cell))):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.If | ast.While | ast.Try), ast.unparse(
                node
            )
            if isinstance(node, ast.For):
                assert len(node.body) <= 5, ast.unparse(node)


@each
def test_it_names_nothing_outside_the_project(notebook):
    assert "../" not in notebook.read_text()


def test_there_are_notebooks():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{i:02d}" for i in range(1, len(NOTEBOOKS) + 1)]
    assert len(NOTEBOOKS) >= 2
