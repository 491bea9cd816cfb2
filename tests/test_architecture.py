"""The rooms of the package: which may import which, and that nothing heavy is imported before a command is chosen."""

import statistics
import subprocess
import sys
import time

import pytest
from places import ROOT

LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports; exit(lint_imports(no_cache=True))"]
"""In a process of its own: it turns off the loggers of the one it runs in."""

HEAVY = ("torch", "transformers", "lightning", "peft", "datasets", "lm_eval", "jsonargparse", "numpy")


def test_imports_point_downward_and_each_library_has_its_room():
    """The contracts are in pyproject.toml, under `tool.importlinter`."""
    checked = subprocess.run(LINT, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


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
    done = subprocess.run(LINT, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "BROKEN" in done.stdout


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
