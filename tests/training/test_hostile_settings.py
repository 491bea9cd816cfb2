"""Settings that only the end of a run, or nothing at all, would notice are refused before anything is loaded."""

import pytest

from bitune_pl.cli import main
from tests.tiny_base import CPU


def fit(tiny_base, tmp_path, *settings):
    start = ["fit", "--model.base", tiny_base, *CPU, "--data.train_rows", "12", "--data.validation_rows", "4"]
    return main([*start, "--trainer.default_root_dir", str(tmp_path), *settings])


REFUSED = {
    "data.validation_rows": ["--trainer.max_steps=1", "--compare_untuned=true", "--trainer.limit_val_batches=1"],
    "trainer.max_steps": ["--trainer.max_time=00:00:00:01"],
    "trainer.max_epochs": ["--trainer.max_epochs=-1"],
    "limit_train_batches": [
        "--trainer.max_steps=2", "--trainer.limit_train_batches=3", "--trainer.accumulate_grad_batches=2"
    ],
    "model.eps": ["--trainer.max_steps=1", "--model.eps=-1"],
    "model.betas": ["--trainer.max_steps=1", "--model.betas=[2,3]"],
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_refused(tiny_base, tmp_path, capsys, said):
    assert fit(tiny_base, tmp_path, *REFUSED[said]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_without_checkpoints_keeps_its_best_model(tiny_base, tmp_path):
    assert not fit(tiny_base, tmp_path, "--trainer.max_steps=1", "--trainer.enable_checkpointing=false")
    assert list(tmp_path.glob("categories/*/model/theta.safetensors"))
