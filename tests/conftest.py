"""Fixtures that all tests share."""

import os
from pathlib import Path

# Of the processes that tests start: two of two threads each wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import shape_checks
import torch
from places import SHARED

shape_checks.install()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and published values that some tests read; absent on most machines."""
    if not SHARED.is_dir():
        pytest.skip(f"no folder of shared data at {SHARED} (set BITUNE_SHARED)")
    return SHARED


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads what another has tokenised, nor the user's own cache."""
    monkeypatch.setenv("BITUNE_CACHE", str(tmp_path / "cache"))
