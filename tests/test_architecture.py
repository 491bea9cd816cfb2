"""The rooms of the package: which may import which, and that nothing heavy is imported before a command is chosen."""

import importlib.util
import statistics
import subprocess
import sys
import time

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports
from places import ROOT

HEAVY = ("torch", "transformers", "lightning", "peft", "datasets", "lm_eval", "jsonargparse", "numpy")


def test_imports_point_downward_and_each_library_has_its_room(monkeypatch, capsys):
    """The contracts are in pyproject.toml, under `tool.importlinter`."""
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


@pytest.mark.parametrize(
    "room, line",
    [
        ("method", "import bitune_pl.data"),
        ("data", "import bitune_pl.method"),
        ("sample.py", "import bitune_pl.method"),
        ("evaluation", "import bitune_pl.training"),
        ("method", "import lightning.pytorch"),
        ("data", "import lightning"),
        ("training", "import lm_eval"),
        ("training", "import peft"),
        ("method", "import datasets"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, room, line):
    """The contracts are not empty: each kind of wrong import breaks one."""
    for file in [*(ROOT / "bitune_pl").rglob("*.py"), ROOT / "pyproject.toml"]:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    place = tmp_path / "bitune_pl" / room
    with (place if place.suffix else place / "__init__.py").open("a") as file:
        file.write(f"\n{line}\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports; exit(lint_imports(no_cache=True))"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "BROKEN" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("bitune_pl.cli") is None, reason="there is no command line yet")
class TestHelp:
    def test_answers_within_a_second(self):
        command, took = [sys.executable, "-m", "bitune_pl", "--help"], []
        for _ in range(3):
            start = time.perf_counter()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            took.append(time.perf_counter() - start)
            assert done.returncode == 0 and "fit" in done.stdout, done.stderr
        assert statistics.median(took) < 1.0

    def test_imports_nothing_heavy(self):
        code = f"import sys, bitune_pl.cli as c; c.main(['--help']); print([n for n in {HEAVY} if n in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_the_package_itself_imports_nothing_heavy():
    code = f"import sys, bitune_pl; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
