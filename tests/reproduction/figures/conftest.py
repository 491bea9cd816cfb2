"""Runs that figures are drawn from, trained on the spot."""

import shutil
from pathlib import Path

import pytest
from tiny_base import CPU, tiny_base  # noqa: F401

from bitune_pl.cli import main

UPDATES = 4
SHORT = ["--data.train_rows", "60", "--data.validation_rows", "2", "--data.source", "sums", "--model.lr", "0.01"]


@pytest.fixture(scope="session")
def runs(tiny_base, tmp_path_factory) -> dict[str, str]:  # noqa: F811
    """Finished runs by what is special about them."""
    made = {}
    special = {
        "usual": [],
        "seed 43": ["--seed_everything", "43"],
        "0.1": ["--model.theta_init", "0.1"],
        "plain": ["--model.method", "plain"],
        "anti-causal": ["--model.method", "anti_causal"],
    }
    for name, settings in special.items():
        root = tmp_path_factory.mktemp("runs")
        few = [*SHORT, "--trainer.max_steps", str(UPDATES if name != "anti-causal" else 1)]
        few += ["--trainer.default_root_dir", str(root)]
        assert main(["fit", "--model.base", tiny_base, *CPU, *few, *settings]) == 0
        [run] = (root / "sums").iterdir()
        made[name] = str(run)
    return made | {"silent": _without_events(made["usual"], tmp_path_factory.mktemp("silent") / "run")}


def _without_events(run: str, place: Path) -> str:
    """As a run looks that was trained with `--trainer.logger false`."""
    return str(shutil.copytree(run, place, ignore=shutil.ignore_patterns("events.*")))


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
