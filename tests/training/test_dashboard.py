"""What TensorBoard is given: measured on real runs where it can be, on a stand-in of 30 blocks where it must be large."""

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback
from stand_in import a_thousand_updates, advance, read, stand_in
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams_of
from torch._subclasses.fake_tensor import FakeTensorMode

from bitune_pl.training.dashboard.alpha_maps import MOST, AlphaMaps
from bitune_pl.training.dashboard.callbacks import dashboard
from bitune_pl.training.dashboard.events import EventLogger, FlushEvents
from bitune_pl.training.dashboard.heat_map import colours, heat_map, ticks
from bitune_pl.training.dashboard.scalars import UpdateLog, by_block, to_host
from bitune_pl.training.dashboard.texts import Answered, as_table, from_table


def steps(events: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in events.Scalars(tag)]


def values(events: EventAccumulator, tag: str) -> list[float]:
    return [event.value for event in events.Scalars(tag)]


@pytest.fixture
def pairs(rows):
    return {"source": rows("train.jsonl", [(f"row {i}", f" {i * i}") for i in range(20)]), "batch_size": 2}


@pytest.fixture
def validated(pairs, rows):
    return pairs | {"validation_source": rows("validation.jsonl", [(f"row {i}", f" {i}") for i in range(4)])}


def logged(folder, log_every: int = 1, purge: int | None = None) -> dict:
    """Trainer settings of a run whose events go to a folder."""
    log = EventLogger(folder, name="", version="", default_hp_metric=False, purge_step=purge)
    return {"logger": log, "callbacks": dashboard(UpdateLog()), "log_every_n_steps": log_every}


class Probe(Callback):
    """Keeps what an update is computed from, by ways of its own."""

    def __init__(self):
        self.rates, self.norms = [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(trainer.lr_scheduler_configs[0].scheduler.get_last_lr()[0])
        squares = {"theta": 0.0, "causal": 0.0, "bidirectional": 0.0}
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                squares[next(part for part in squares if part in name)] += parameter.grad.square().sum().item()
        self.norms.append({name: value**0.5 for name, value in squares.items()})


def test_scalars_are_those_of_their_update(train, pairs, tmp_path):
    """Gradient norms before clipping, by set of weights; the learning rate of the update and not of the next one."""
    probe, settings = Probe(), logged(tmp_path / "run")
    settings["callbacks"].append(probe)
    train(pairs, {**settings, "max_steps": 4, "gradient_clip_val": 1e-3}, lr=0.01)
    events = read(tmp_path / "run")
    assert values(events, "learning_rate") == pytest.approx(probe.rates) and probe.rates[0] != probe.rates[1]
    for name in ("theta", "causal", "bidirectional"):
        expected = [norms[name] for norms in probe.norms]
        assert values(events, f"gradient_norm/{name}") == pytest.approx(expected, rel=1e-5)
    whole = [sum(value**2 for value in norms.values()) ** 0.5 for norms in probe.norms]
    assert values(events, "gradient_norm/all") == pytest.approx(whole, rel=1e-5)
    tokens = np.diff([0, *values(events, "cost/tokens")])
    seconds = np.diff([0, *values(events, "cost/seconds")])
    assert values(events, "tokens_per_second") == pytest.approx(tokens / seconds, rel=1e-3)
    assert 0.05 < values(events, "cost/peak_memory_gb")[-1] < 50


def test_alphas_are_named_by_block_and_sort_like_them():
    found = by_block({"alpha_k": [0.25, 0.75]})
    assert found == {
        "alpha_k/layer_00": 0.25,
        "alpha_k/layer_01": 0.75,
        "alpha_k/mean": 0.5,
        "alpha_k/minimum": 0.25,
        "alpha_k/maximum": 0.75,
    }
    many = [name for name in by_block({"alpha_k": [i / 120 for i in range(120)]}) if "layer" in name]
    assert many == sorted(many) and len(many) == 120


def test_a_method_without_mixing_has_no_alpha_and_no_map(train, pairs, tmp_path):
    train(pairs, {**logged(tmp_path / "run"), "max_steps": 2}, method="plain")
    tags = read(tmp_path / "run").Tags()
    assert not tags["images"] and not [tag for tag in tags["scalars"] if "alpha" in tag or "bidirectional" in tag]
    assert "gradient_norm/causal" in tags["scalars"]


def test_a_learned_start_token_has_a_gradient_norm_of_its_own(train, pairs, tmp_path):
    train(pairs, {**logged(tmp_path / "run"), "max_steps": 2}, start_token="<sep>")
    events = read(tmp_path / "run")
    parts = ("causal", "bidirectional", "theta", "start_token")
    squares = np.sum([np.square(values(events, f"gradient_norm/{part}")) for part in parts], axis=0)
    assert np.sqrt(squares) == pytest.approx(values(events, "gradient_norm/all"), rel=1e-5)
    assert min(values(events, "gradient_norm/start_token")) > 0


def test_sixty_curves_of_a_thousand_updates_take_less_than_ten_megabytes(tmp_path):
    trainer, module, callbacks = a_thousand_updates(tmp_path)
    callbacks[1].on_train_end(trainer, module)
    trainer.loggers[0].finalize("success")
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 3e6  # 2.3 MB; at most 10 are asked for
    events = read(tmp_path)
    curves = [tag for tag in events.Tags()["scalars"] if "/layer_" in tag]
    assert len(curves) == 60 and all(steps(events, tag) == list(range(1001)) for tag in curves)
    assert [image.step for image in events.Images("heat_map/alpha_k")] == list(range(100, 1001, 100))


MOVES = ("item", "tolist", "__float__", "__int__", "__bool__", "cpu", "numpy")


@pytest.mark.parametrize("layers", [2, 30])
def test_an_update_is_moved_from_its_device_at_once(tmp_path, monkeypatch, layers):
    """However many blocks: everything that waits for a device is counted."""
    trainer, module, log = stand_in(tmp_path, layers)
    log.on_train_start(trainer, module)
    advance(trainer, module, [log])
    calls = []
    for name in MOVES:
        kept = getattr(torch.Tensor, name)
        wrapped = lambda self, *args, _name=name, _kept=kept, **kw: (calls.append(_name), _kept(self, *args, **kw))[1]  # noqa: E731
        monkeypatch.setattr(torch.Tensor, name, wrapped)
    advance(trainer, module, [log])
    monkeypatch.undo()
    assert calls == ["tolist"]


def test_many_tensors_come_to_the_host_in_order():
    found = to_host({"a": torch.tensor(1.0), "b": torch.tensor([[2.0, 3.0]]), "c": torch.tensor(4, dtype=torch.int64)})
    assert found == {"a": [1.0], "b": [2.0, 3.0], "c": [4.0]} and to_host({}) == {}


def test_the_loss_of_an_update_is_added_up_on_any_device():
    """Fake tensors know their device, so that no GPU is needed."""
    log, trainer = UpdateLog(), SimpleNamespace(global_step=0)
    log.on_train_start(trainer, SimpleNamespace(model=SimpleNamespace(alphas=dict)))
    with FakeTensorMode():
        share = torch.zeros((), device="cuda")
        for _ in range(2):
            log.on_train_batch_end(trainer, None, {"share": share}, SimpleNamespace(samples=[]), 0)
        assert log.loss.device.type == "cuda"


# -- going on ---------------------------------------------------------------------------------------------------------


class CheckpointThenKill(Callback):
    """A checkpoint after update 8 and, then or later, a copy of what a killed process would leave on the disk."""

    def __init__(self, run, left, killed_at: int):
        self.run, self.left, self.killed_at = run, left, killed_at

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 8:
            trainer.save_checkpoint(self.run / "8.ckpt")
        if trainer.global_step == self.killed_at:
            trainer.logger.experiment.flush() if self.killed_at > 8 else None
            shutil.copytree(self.run, self.left)
            trainer.should_stop = True


@pytest.mark.parametrize("killed_at", [8, 10])
def test_a_killed_run_goes_on_as_if_it_had_not_been(train, validated, tmp_path, killed_at):
    """F07: every tag has every update once, and every value is that of the run that nobody killed."""
    common = {"max_steps": 20, "val_check_interval": 5}
    train(validated, {**common, **logged(tmp_path / "whole")}, lr=0.01)
    settings, left = logged(tmp_path / "killed"), tmp_path / "left"
    settings["callbacks"].append(CheckpointThenKill(tmp_path / "killed", left, killed_at))
    train(validated, {**common, **settings}, lr=0.01)
    assert steps(read(left), "loss/train") == list(range(1, killed_at + 1))
    if killed_at > 8:
        (events,) = left.glob("events.*")
        os.truncate(events, events.stat().st_size - 7)  # while it wrote
    train(validated, {**common, **logged(left, purge=9)}, lr=0.01, ckpt_path=left / "8.ckpt")
    whole, resumed = read(tmp_path / "whole"), read(left)
    assert whole.Tags() == resumed.Tags()
    for tag in whole.Tags()["scalars"]:
        expected = list(range(5, 21, 5) if tag.endswith("/validation") else range("alpha" not in tag, 21))
        assert steps(resumed, tag) == steps(whole, tag) == expected, tag
        if "cost" not in tag and "per_second" not in tag:
            assert values(resumed, tag) == values(whole, tag), tag
    assert values(resumed, "cost/tokens") == values(whole, "cost/tokens")
    for tag in whole.Tags()["images"]:
        pictures = [[(i.step, i.encoded_image_string) for i in e.Images(tag)] for e in (whole, resumed)]
        assert pictures[0] == pictures[1] and len(pictures[0]) == 10
    assert resumed.Tensors("settings")[-1].step == 8


def test_events_are_on_disk_before_a_checkpoint_is(tmp_path):
    trainer, module, log = stand_in(tmp_path, 2)
    log.on_train_start(trainer, module)
    for _ in range(5):
        advance(trainer, module, [log])
    FlushEvents().on_save_checkpoint(trainer, module, {})
    assert steps(read(tmp_path), "loss/train") == [1, 2, 3, 4, 5]


def test_a_thinned_history_covers_the_run_and_keeps_its_last_update():
    maps = AlphaMaps(UpdateLog())
    for update in range(3, 3 * 4000 + 1, 3):  # logged every third update
        maps._remember(update, [[update / 12000] * 2] * 2, 3)
        assert maps.updates[-1] == update and len(maps.updates) <= MOST
    gaps = np.diff(maps.updates[:-1])
    assert set(gaps) == {3 * maps.stride} and maps.updates[0] <= gaps[0]
    assert maps.rows[-1][0][0] == 1.0 and len(maps.rows) == len(maps.updates) > MOST / 2


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_change_nothing(train, validated, tmp_path):
    """Weights, random state and modes, with a dropout that would show every draw."""
    dropout = {"adapter_settings": {"lora_dropout": 0.3}, "lr": 0.01}
    common = {"max_steps": 6, "val_check_interval": 2}
    alone = train(validated, common, **dropout)
    state = torch.get_rng_state()
    seen = train(validated, {**common, **logged(tmp_path / "run")}, **dropout)
    assert torch.equal(state, torch.get_rng_state())
    one, other = alone.lightning_module.state_dict(), seen.lightning_module.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert [m.training for m in alone.lightning_module.modules()] == [
        m.training for m in seen.lightning_module.modules()
    ]
    texts = read(tmp_path / "run").Tensors("samples/2")
    assert [text.step for text in texts] == [2, 4, 6]
    answered = Answered.read(texts[-1].tensor_proto.string_val[0].decode())
    assert (answered.prompt, answered.right_answer) == ("row 1", " 1")
    ids = [row.sample.prompt for row in seen.datamodule.rows["validation"]][:3]
    _, expected, _ = seen.lightning_module.model.generate(ids, do_sample=False, max_new_tokens=32, eos_token_id=1)
    assert answered.answer == seen.datamodule.encoder.decode(expected)


def test_prompts_that_cannot_be_answered_stop_no_run(train, validated, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("The longest prompt with its new tokens is too long.")

    monkeypatch.setattr("bitune_pl.method.model.Bitune.generate", refuse)
    train(validated, {**logged(tmp_path / "run"), "max_steps": 1, "val_check_interval": 1})
    (text,) = read(tmp_path / "run").Tensors("samples/1")
    assert Answered.read(text.tensor_proto.string_val[0].decode()).answer.startswith("(none: The longest prompt")


@given(*[st.text(alphabet=st.characters(codec="utf-8"), max_size=40)] * 3)
def test_a_text_is_read_as_it_was_written(prompt, answer, right):
    answered = Answered(prompt, answer, right)
    assert Answered.read(answered.markdown()) == answered


def test_a_table_is_read_as_it_was_written():
    settings = {"base": "a|b", "adapter_settings": "{'r': 16}", "lr": "0.001", "template": "a\nb", "empty": ""}
    assert from_table(as_table(settings)) == settings


# -- the entry and the pictures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("theta_init", "said"), [(0.01, "bitune, lora"), (0.1, "\u03b8 0.1, bitune, lora")])
def test_a_run_has_an_entry_with_settings_and_final_scores(train, validated, tmp_path, theta_init, said):
    train(validated, {**logged(tmp_path / "run"), "max_steps": 2}, lr=0.01, theta_init=theta_init)
    events = read(tmp_path / "run")
    start, experiment, end = (
        parse(events.SummaryMetadata(tag).plugin_data.content)
        for tag, parse in (
            (hparams_of.SESSION_START_INFO_TAG, hparams_of.parse_session_start_info_plugin_data),
            (hparams_of.EXPERIMENT_TAG, hparams_of.parse_experiment_plugin_data),
            (hparams_of.SESSION_END_INFO_TAG, hparams_of.parse_session_end_info_plugin_data),
        )
    )
    assert start.hparams["method"].string_value == said and start.hparams["lr"].number_value == 0.01
    scores = [info.name.tag for info in experiment.metric_infos]
    assert {"loss/validation", "accuracy/validation", "eval/piqa/acc"} <= set(scores) and end.status == 1
    assert {info.name for info in experiment.hparam_infos} == set(start.hparams)
    settings = from_table(events.Tensors("settings")[0].tensor_proto.string_val[0].decode())
    assert settings["updates"] == "2" and settings["answers_per_update"] == "2" and settings["lr"] == "0.01"


def test_a_map_is_white_at_one_half_and_its_lowest_row_is_the_first_block():
    alphas = np.tile([0.3, 0.5, 0.7], (4, 1))
    image = heat_map("alpha_k", [1, 2, 3, 4], alphas).astype(int)
    assert image.shape == (210, 350, 3)
    first, middle, last = (image[y, 150] for y in (150, 98, 50))
    assert first[2] > first[0] and last[0] > last[2] and np.ptp(middle) < 3
    assert (colours(np.array([[0.0, 1.0]]), 0.5)[0] == [[5, 48, 97], [140, 45, 4]]).all()


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 1000, [1, 200, 400, 600, 800, 1000]), (0, 29, [0, 10, 20]), (7, 7, [7]), (1, 2, [1, 2])],
)
def test_ticks_are_round(first, last, expected):
    assert ticks(first, last) == expected
