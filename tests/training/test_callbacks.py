from types import SimpleNamespace

import pytest
import torch

from bitune_pl.training import callbacks
from bitune_pl.training.callbacks import BestModel


@pytest.mark.parametrize(("mode", "expected"), [("min", [3.0, 1.0]), ("max", [3.0, 5.0])])
def test_the_best_model_is_kept_and_a_score_that_is_no_number_never_is(monkeypatch, tmp_path, mode, expected):
    """A02: the best is the one with the lowest finite loss."""
    written = []
    monkeypatch.setattr(callbacks, "write_model", lambda folder, model, data: (folder.mkdir(), written.append(model)))
    best = BestModel(tmp_path / "model")
    module = SimpleNamespace(right=[1.0], model=None)
    trainer = SimpleNamespace(
        checkpoint_callback=SimpleNamespace(monitor="loss", mode=mode),
        state=SimpleNamespace(fn="fit"),
        sanity_checking=False,
        is_global_zero=True,
        datamodule=None,
    )
    for trainer.global_step, score in enumerate((3.0, float("nan"), 1.0, 5.0, 2.0)):
        trainer.callback_metrics, module.model = {"loss": torch.tensor(score)}, score
        best.on_validation_end(trainer, module)
    best.on_train_end(trainer, module)
    assert written == expected and best.right == [1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_without_a_validation_the_last_model_is_kept(monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(callbacks, "write_model", lambda folder, model, data: (folder.mkdir(), written.append(model)))
    trainer = SimpleNamespace(is_global_zero=True, datamodule=None)
    BestModel(tmp_path / "model").on_train_end(trainer, SimpleNamespace(model="last"))
    assert written == ["last"]
