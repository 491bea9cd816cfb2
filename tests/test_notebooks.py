"""Every notebook runs from top to bottom on a tiny decoder, and lies in git without outputs."""

import json

import pytest
from places import ROOT
from tiny_base import tiny_base  # noqa: F401

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(notebook) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tiny_base, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in cells(notebook):
        source = "".join(cell["source"]).replace('BASE = "smollm2"', f"BASE = {tiny_base!r}")
        exec(compile(source, notebook.name, "exec"), names)
    assert names["losses"][-1] < names["losses"][0]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(notebook):
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))


def test_there_are_notebooks():
    assert NOTEBOOKS
