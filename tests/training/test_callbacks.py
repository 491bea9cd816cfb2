from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bitune_pl.training import callbacks
from bitune_pl.training.callbacks import BestModel, UpdateLog, alphas


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
    for score in (3.0, float("nan"), 1.0, 5.0, 2.0):
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


def test_alphas_are_named_by_layer():
    model = SimpleNamespace(alphas=lambda: {"alpha_k": torch.tensor([0.25, 0.75])})
    assert alphas(SimpleNamespace(model=model)) == {
        "alpha_k/layer_00": 0.25,
        "alpha_k/layer_01": 0.75,
        "alpha_k/mean": 0.5,
    }


def test_the_loss_of_an_update_is_added_up_on_any_device():
    """Fake tensors know their device, so that no GPU is needed."""
    log, trainer = UpdateLog(), SimpleNamespace(global_step=0)
    log.on_train_start(trainer, None)
    with FakeTensorMode():
        share = torch.zeros((), device="cuda")
        for _ in range(2):
            log.on_train_batch_end(trainer, None, {"share": share}, SimpleNamespace(samples=[]), 0)
        assert log.loss.device.type == "cuda"
