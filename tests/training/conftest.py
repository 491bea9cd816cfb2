"""What the training tests share: a tiny base, rows, and a way to train on them from Python."""

import json

import pytest
from lightning.pytorch import Trainer, seed_everything
from tiny_base import tiny_base, wide_base  # noqa: F401

from bitune_pl.data.datamodule import BituneData
from bitune_pl.training.commands import quiet
from bitune_pl.training.module import BituneModule

quiet()


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture
def rows(tmp_path):
    """Writes rows of prompt and answer, and returns the path."""

    def write(name: str, pairs) -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in pairs))
        return str(path)

    return write


@pytest.fixture
def train(tiny_base):  # noqa: F811
    """Trains in float32 and returns the trainer: `train(data={...}, trainer={...}, lr=...)`."""

    def run(data: dict, trainer: dict, ckpt_path=None, seed: int = 42, **model) -> Trainer:
        seed_everything(seed)
        module = BituneModule(**{"base": tiny_base, "base_dtype": "float32", **model})
        quietly = {
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
        }
        made = Trainer(accelerator="cpu", devices=1, num_sanity_val_steps=0, **{**quietly, **trainer})
        made.fit(module, BituneData(**data), ckpt_path=ckpt_path)
        return made

    return run
