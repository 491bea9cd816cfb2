"""Two ranks make the updates that one makes (E01, I04, G01); slow, as it starts processes."""

import subprocess
import sys

import pytest
import torch
from tiny_base import CPU

ROWS = ["--data.train_rows", "40", "--data.validation_rows", "7", "--trainer.max_steps", "3"]
# With its usual eps AdamW divides a gradient by about its own size, and makes of a tiny one's roundings a share of lr.
COMMON = ["--model.base_dtype", "float32", "--model.eps", "0.01", *ROWS]


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["sample", "token"])
def test_two_ranks_equal_one(tiny_base, tmp_path, weighting):  # noqa: F811
    found = []
    for ranks, size in [("1", "8"), ("2", "4")]:
        split = ["--trainer.devices", ranks, "--data.batch_size", size, "--trainer.default_root_dir", ranks]
        settings = ["--model.base", tiny_base, "--model.weighting", weighting, "--model.lr", "0.01"]
        command = [sys.executable, "-m", "bitune_pl", "fit", *CPU, *COMMON, *split, *settings]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        (run,) = (tmp_path / ranks / "categories").iterdir()
        found.append((torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"], done.stderr))
    (one, said_by_one), (two, said_by_two) = found
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6, msg=name)
    told = (said_by_one.splitlines(), said_by_two.splitlines())
    scores = [next(line for line in lines if "validation after" in line) for lines in told]
    assert scores[0] == scores[1]
