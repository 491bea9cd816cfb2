"""Where a file may be written, which every command with `--out` asks before anything long starts."""

import os
import tempfile

import pytest

from bitune_pl.data.files import check_place, put


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


def locked(*_, **__):
    raise PermissionError


@pytest.mark.parametrize(("module", "name"), [(os, "access"), (tempfile, "TemporaryFile")], ids=["file", "folder"])
def test_a_locked_file_or_folder_is_no_place(module, name, tmp_path, monkeypatch):
    (tmp_path / "a.json").touch()
    monkeypatch.setattr(module, name, locked)  # root may write everywhere, so the lock itself is played
    with pytest.raises(PermissionError, match="may not be written: name a file elsewhere"):
        check_place(tmp_path / "a.json", "a.json")


def test_what_is_no_file_is_no_place(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(FileExistsError, match=f"{name} is a device or a pipe: name a file"):
            check_place(tmp_path / name, "a.json")
    with pytest.raises(ValueError, match="the name is too long for a file"):
        check_place(tmp_path / ("a" * 256), "a.json")


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    check_place(tmp_path / "link", "a.json")
    put(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"
