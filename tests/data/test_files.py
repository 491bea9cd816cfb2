"""Where a file may be written, which every command with `--out` asks before anything long starts."""

import os

import pytest

from bitune_pl.data.files import check_place


def test_a_new_file_and_an_old_one_are_places(tmp_path):
    (tmp_path / "old.json").write_text("{}")
    for name in ("new.json", "old.json", tmp_path / "new.json"):
        check_place(tmp_path / name, "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"], "nothing is written to find out"


def test_what_is_no_place_is_said_with_what_to_do(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no folder .*nowhere; make it first, or name another file"):
        check_place(tmp_path / "nowhere" / "a.json", "a.json")
    with pytest.raises(IsADirectoryError, match="name a file in it, such as .*folder/results.json"):
        check_place(tmp_path / "folder", "results.json")


@pytest.mark.parametrize("locked", ["file", "folder"])
def test_a_locked_file_or_folder_is_no_place(locked, tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.touch()
    place = file if locked == "file" else tmp_path
    real = os.access  # root may write everywhere, so the lock itself is played
    monkeypatch.setattr(os, "access", lambda path, mode: path != place and real(path, mode))
    with pytest.raises(PermissionError, match="may not be written: name a file elsewhere"):
        check_place(file, "a.json")
