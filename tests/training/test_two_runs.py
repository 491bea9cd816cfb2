"""Runs of two ranks in one root have a folder each, and a resumed one goes on in its own (G01); slow: it starts processes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tiny_base import CPU

FEW = ["--data.train_rows", "8", "--data.validation_rows", "4", "--data.batch_size", "2", "--trainer.max_steps", "1"]


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def updates(run: Path) -> int:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]


@pytest.mark.slow
def test_two_ranks_share_a_folder_and_two_runs_do_not(tiny_base, tmp_path):  # noqa: F811
    def fit(*args: str) -> set[Path]:
        command = [sys.executable, "-m", "bitune_pl", "fit", *args, "--trainer.default_root_dir", "root"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return set((tmp_path / "root" / "categories").iterdir())

    new = ["--model.base", tiny_base, *CPU, *FEW, "--trainer.devices", "2"]
    (first,) = fit(*new, "--seed_everything", "1")
    before = contents(first)
    (second,) = fit(*new, "--seed_everything", "2", "--trainer.logger", "false") - {first}
    other = contents(second)
    assert contents(first) == before, "the second run changed the first"
    assert {name for name in before.keys() ^ other.keys() if "events" not in name} == set()
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in (first, second)]
    assert [config.pop("seed_everything") for config in configs] == [1, 2]
    assert configs[1]["trainer"].pop("logger") is False and configs[0] == configs[1]
    assert configs[0]["trainer"]["devices"] == "2"
    assert fit("--resume", str(first), "--trainer.max_steps", "2") == {first, second}
    assert (updates(first), updates(second)) == (2, 1) and contents(second) == other
