"""Data that would be read otherwise than it was meant is an error."""

import json

import pytest

from bitune_pl.data import files
from bitune_pl.data.datamodule import BituneData


def test_a_header_that_names_a_column_twice(tmp_path):
    (tmp_path / "rows.csv").write_text("prompt,answer,answer\nq,a,b\n")
    with pytest.raises(ValueError, match="'answer' twice"):
        list(files.read(tmp_path / "rows.csv"))


def test_text_after_a_list(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([{"prompt": "q", "answer": "a"}]) + "[{}]")
    with pytest.raises(ValueError, match="after the end of the list"):
        list(files.read(tmp_path / "rows.json"))


def test_a_file_of_another_kind_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "rows.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"d/rows.txt.*\.jsonl"):
        BituneData("d/rows.txt")


@pytest.mark.parametrize("template", ["", "Answer the question."])
def test_a_template_without_a_field(template):
    with pytest.raises(ValueError, match="no field"):
        BituneData(template=template)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("said", [{"prompt": "q", "answer": "a"}, {"data": [{"prompt": "q", "answer": "a"}]}])
def test_one_object_is_no_list_of_rows(tmp_path, said, indent):
    (tmp_path / "rows.json").write_text(json.dumps(said, indent=indent))
    if indent is None and "prompt" in said:  # one row of JSONL
        assert [row for _, row in files.read(tmp_path / "rows.json")] == [said]
        return
    with pytest.raises(ValueError, match="^rows.json is one object, where a list of rows is expected"):
        list(files.read(tmp_path / "rows.json"))
