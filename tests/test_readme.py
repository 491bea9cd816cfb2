"""README's commands and its Python, run as they stand, with a tiny decoder and two steps in place of the long way."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from places import ROOT
from tiny_base import CPU, tiny_base  # noqa: F401

from bitune_pl.cli import main

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, re.DOTALL)
LINES = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
COMMANDS = [line.split("  #")[0].strip() for line in LINES if line.startswith("bitune ")]
SNIPPETS = [text for kind, text in BLOCKS if kind == "python"]
SHORT = [*CPU, "--trainer.max_steps", "2", "--data.train_rows", "20", "--data.validation_rows", "4"]


@pytest.fixture(scope="module")
def place(tiny_base, tmp_path_factory):  # noqa: F811
    """A folder like the project's, with a finished run in it."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "configs", folder / "configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", "configs/smollm2.yaml", "--model.base", tiny_base, *SHORT]) == 0
    return folder


def filled(text: str, place: Path, base: str) -> str:
    """README's placeholders and bases by what is here."""
    (run,) = list((place / "runs/smollm2").iterdir())[:1]
    for was, here in {"runs/NAME/RUN": str(run), "smollm2 ": f"{base} ", '"smollm2"': repr(base)}.items():
        text = text.replace(was, here)
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command, place, tiny_base, monkeypatch, shared, capsys):  # noqa: F811
    monkeypatch.chdir(place)
    argv = shlex.split(filled(command, place, tiny_base).replace("FOLDER", str(shared / "data")))[1:]
    if argv[0] == "fit":
        argv += SHORT[: None if "--resume" not in argv else 6]
        argv += [] if "--resume" in argv else ["--model.base", tiny_base]
    for file in argv[1:] if argv[0] == "compare" else ():
        assert main(["evaluate", "--base", tiny_base, "--tasks", "categories", "--limit", "4", "--out", file]) == 0
    if "--limit" in argv:
        argv[argv.index("--limit") + 1] = "4"
    assert main(argv) == 0, capsys.readouterr().err


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs(snippet, place, tiny_base, monkeypatch):  # noqa: F811
    monkeypatch.chdir(place)
    exec(filled(snippet, place, tiny_base), {})


def test_there_is_something_to_run():
    assert len(COMMANDS) >= 5 and SNIPPETS
