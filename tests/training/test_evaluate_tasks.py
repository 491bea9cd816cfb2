"""Evaluation during training: it changes nothing, comes at whole updates only, and never ends a run."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_base import CPU

from bitune_pl.cli import main
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.sources import load
from bitune_pl.evaluation import harness
from bitune_pl.evaluation.live import LiveTasks
from bitune_pl.training import evaluate_tasks
from bitune_pl.training.evaluate_tasks import EvaluateTasks
from bitune_pl.training.module import BituneModule

ROWS = [(f"row {i}", f" {i * i}") for i in range(14)]
DROPOUT = {"r": 4, "lora_dropout": 0.3}


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    """A random decoder never ends an answer: 4 tokens are as good as 256."""
    kept = harness.normalize_gen_kwargs
    monkeypatch.setattr(harness, "normalize_gen_kwargs", lambda said: {**kept(said), "max_gen_toks": 4})


class Counted(EvaluateTasks):
    """Notes the micro-batches, updates and modes that evaluations fall on."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen, self.batches = [], 0

    def on_train_batch_end(self, trainer, *args):
        self.batches += 1
        super().on_train_batch_end(trainer, *args)

    def _scores(self, trainer, pl_module):
        self.seen.append((self.batches, trainer.global_step))
        return super()._scores(trainer, pl_module)


def everything(trainer) -> dict:
    """All that a run holds when it ends."""
    module = trainer.lightning_module
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {
        "weights": dict(module.state_dict()),
        "gradients": gradients,
        "modes": {name: m.training for name, m in module.named_modules()},
        "optimizer": trainer.optimizers[0].state_dict(),
        "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        "loops": {k: v for k, v in trainer.fit_loop.state_dict().items() if k != "state_dict"},
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1], np.random.get_state()[2:]),
    }


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def differing(one: dict, other: dict) -> list[str]:
    return [part for part in one if not same(one[part], other[part])]


def run(train, rows, callbacks, accumulate=1, updates=4, **model):
    data = {"source": rows("train.jsonl", ROWS), "batch_size": 2}
    trainer = {"max_steps": updates, "accumulate_grad_batches": accumulate, "callbacks": callbacks}
    return everything(train(data, trainer, lr=0.01, **model))


SLOW = [
    pytest.param(1, settings, marks=pytest.mark.slow)
    for settings in ({"method": "bitune"}, {"method": "plain"}, {"method": "echo", "start_token": "<sep>"})
]


@pytest.mark.parametrize(("accumulate", "settings"), [(3, {"method": "bitune"}), *SLOW])
def test_a_run_is_bit_for_bit_the_same_with_and_without(train, rows, accumulate, settings):
    """Two tasks, by choosing and by generating; with dropout, whose masks hang on the random state."""
    common = {"accumulate": accumulate, "adapter_settings": DROPOUT, **settings}
    without = run(train, rows, [], **common)
    evaluate = Counted(["categories", "sums"], every=1, limit=3)
    with_it = run(train, rows, [evaluate], **common)
    assert len(evaluate.seen) == 4 and evaluate.latest["eval/sums/exact_match_flexible"] == 0
    assert not differing(without, with_it)


def test_the_comparison_notices_a_random_state_that_is_not_kept(train, rows, monkeypatch):
    """`simple_evaluate` sets seeds: without `isolate_rng` dropout has other masks."""
    from contextlib import nullcontext

    monkeypatch.setattr(evaluate_tasks, "isolate_rng", nullcontext)
    without = run(train, rows, [], adapter_settings=DROPOUT)
    with_it = run(train, rows, [EvaluateTasks("categories", every=1, limit=3)], adapter_settings=DROPOUT)
    assert {"weights", "random"} <= set(differing(without, with_it))


def test_evaluations_come_at_whole_updates_and_at_the_end(train, rows):
    """14 rows in micro-batches of 2, three to an update: an epoch is 3, 3 and 1 of them."""
    evaluate = Counted("categories", every=2, limit=2)
    run(train, rows, [evaluate], accumulate=3, updates=5)
    assert evaluate.seen == [(6, 2), (10, 4), (13, 5)]
    assert evaluate.evaluated == 5
    last_only = Counted("categories", every=None, limit=2)
    run(train, rows, [last_only], accumulate=3, updates=2)
    assert last_only.seen == [(6, 2)]


class Watch(Callback):
    """Compares modes and gradients around the callback that stands between two of these."""

    def __init__(self, before=None):
        self.before, self.differing = before, []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.modes = {name: m.training for name, m in pl_module.named_modules()}
        self.gradients = {
            n: (p.requires_grad, p.grad is None or p.grad.clone()) for n, p in pl_module.named_parameters()
        }
        if self.before and not (same(self.modes, self.before.modes) and same(self.gradients, self.before.gradients)):
            self.differing.append(trainer.global_step)


def test_modes_and_gradients_stay_as_they_were(train, rows):
    """One module is frozen in evaluation mode by a user, and stays so."""

    class Freeze(Callback):
        def on_train_start(self, trainer, pl_module):
            pl_module.model.decoder.get_input_embeddings().eval()

    before = Watch()
    after = Watch(before)
    run(train, rows, [Freeze(), before, EvaluateTasks("categories,sums", every=1, limit=2), after], accumulate=2)
    assert not after.differing
    assert set(after.modes.values()) == {True, False} and sum(not mode for mode in after.modes.values()) == 1
    assert any(isinstance(g, torch.Tensor) and g.abs().sum() > 0 for _, g in after.gradients.values())


def test_the_scores_are_those_of_the_live_weights(train, rows):
    """By hand from the model's own log-likelihoods, after training in which the weights moved far."""
    evaluate = EvaluateTasks("categories", every=None, limit=40)
    data = {"source": rows("train.jsonl", ROWS), "batch_size": 2}
    made = train(data, {"max_steps": 3, "callbacks": [evaluate]}, lr=0.5, warmup=0.0)
    model, encoder = made.lightning_module.model, made.datamodule.encoder
    model.eval()
    right, right_norm = [], []
    for row in load("categories", "test", limit=40).examples:
        with torch.no_grad():
            (choices,) = model.log_likelihood([encoder.choices(row)])
        sums = [float(tokens.sum()) for tokens in choices]
        lengths = [len(answer.strip()) for answer in row.answers]
        right.append(max(range(len(sums)), key=lambda i: sums[i]) == row.gold)
        right_norm.append(max(range(len(sums)), key=lambda i: sums[i] / lengths[i]) == row.gold)
    expected = {"eval/categories/acc": sum(right) / 40, "eval/categories/acc_norm": sum(right_norm) / 40}
    assert evaluate.latest == pytest.approx(expected)


def test_an_evaluation_that_fails_is_told_once_and_the_run_goes_on(train, rows, monkeypatch):
    """It may fail half-way, after seeds were set."""

    def fail(*args):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        raise OSError("the disk is\n gone")

    without = run(train, rows, [], adapter_settings=DROPOUT)
    monkeypatch.setattr(LiveTasks, "scores", fail)
    with pytest.warns(
        UserWarning, match="evaluation after update 1 failed, and the run goes on: the disk is gone"
    ) as said:
        evaluate = EvaluateTasks("categories", every=1, limit=2)
        with_it = run(train, rows, [evaluate], adapter_settings=DROPOUT)
    assert sum("failed" in str(warning.message) for warning in said) == 1
    assert not differing(without, with_it) and evaluate.latest == {}


def test_an_interruption_is_no_failure_of_the_evaluation(train, rows, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveTasks, "scores", stop)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(train, rows, [EvaluateTasks("categories", every=1, limit=2)])


def test_a_run_interrupted_in_an_evaluation_makes_up_for_it(train, rows, tmp_path):
    data, path = {"source": rows("train.jsonl", ROWS), "batch_size": 2}, str(tmp_path / "stopped.ckpt")

    class Stop(Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 2:
                trainer.save_checkpoint(path)
                trainer.should_stop = True

    found = []
    for callbacks in (
        [Stop(), Counted("categories", every=2, limit=2)],
        [Counted("categories", every=2, limit=2), Stop()],
    ):
        train(data, {"max_steps": 4, "callbacks": callbacks}, lr=0.01)
        resumed = Counted("categories", every=2, limit=2)
        train(data, {"max_steps": 4, "callbacks": [resumed]}, lr=0.01, ckpt_path=path)
        found.append([update for _, update in resumed.seen])
    assert found == [[2, 4], [4]]  # saved before and after the evaluation of update 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--evaluate.tasks=categorie"], "There is no task 'categorie'; did you mean categories?"),
        (["--evaluate.tasks=,"], "evaluate.tasks names no task"),
        (["--evaluate.tasks=piqa", "--evaluate.root=nowhere"], "There is no file nowhere/piqa/validation.jsonl"),
        (["--evaluate.tasks=piqa", "--data.root=nowhere"], "There is no file nowhere/piqa/validation.jsonl"),
        (
            ["--evaluate.tasks=categories", "--evaluate.every=0"],
            "evaluate.every is a whole number, at least 1, or null, not 0",
        ),
        (
            ["--evaluate.tasks=categories", "--evaluate.limit=0"],
            "evaluate.limit is a whole number, at least 1, or null, not 0",
        ),
        (["--evaluate.tasks=categories", "--evaluate.limit=few"], "evaluate.limit is few"),
        (["--evaluate.task=categories"], "There is no setting evaluate.task; did you mean evaluate.tasks?"),
    ],
)
def test_what_cannot_be_is_refused_before_the_base_is_loaded(
    tiny_base, tmp_path, capsys, monkeypatch, settings, message
):
    monkeypatch.setattr("bitune_pl.training.module.load_decoder", None)
    few = ["--data.train_rows=12", "--data.validation_rows=4", "--trainer.max_steps=1"]
    start = ["fit", "--model.base", tiny_base, *CPU, *few, "--trainer.default_root_dir", str(tmp_path / "runs")]
    assert main([*start, *settings]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bitune: ")]
    assert message in line
    assert not list(tmp_path.glob("runs/*/*"))


def test_scores_are_logged_on_the_axis_of_updates_and_told(tiny_base, tmp_path, capsys):
    config = {"evaluate": {"tasks": ["categories"], "every": 2, "limit": 4}}
    (tmp_path / "mine.yaml").write_text(json.dumps(config))
    few = ["--data.train_rows=30", "--data.validation_rows=4", "--trainer.max_steps=3"]
    assert main(["fit", "--config", "mine.yaml", "--model.base", tiny_base, *CPU, *few]) == 0
    (run_folder,) = tmp_path.glob("runs/mine/*")
    told = capsys.readouterr().err
    assert [word in told for word in ("evaluation after update 2: categories acc 0.", "(4 questions)", "it/s", "fatal")] == [
        True, True, False, False
    ]  # fmt: skip
    assert main(["validate", "--run", str(run_folder)]) == 0  # whose config says `evaluate` too
    events = EventAccumulator(str(run_folder)).Reload()
    for tag in ("eval/categories/acc", "eval/categories/acc_norm"):
        assert [event.step for event in events.Scalars(tag)] == [2, 3]
    assert main(["fit", "--resume", str(run_folder), "--trainer.max_steps=5"]) == 0
    events = EventAccumulator(str(run_folder)).Reload()
    assert [event.step for event in events.Scalars("eval/categories/acc")] == [2, 3, 4, 5]


def test_the_time_of_an_evaluation_is_not_that_of_an_update(train, rows, monkeypatch):
    from bitune_pl.training.dashboard.scalars import UpdateLog

    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    class Seconds(Callback):
        def on_train_batch_start(self, *args):
            clock[0] += 1

    def slowly(*args):
        clock[0] += 1000
        return {"categories": {"acc": 0.5, "n": 2}}

    monkeypatch.setattr(LiveTasks, "scores", slowly)
    paces = []

    class Pace(Callback):
        def on_train_batch_end(self, trainer, *args):
            paces.append(log.latest["tokens_per_second"])

    log = UpdateLog()
    for order in (lambda e: [Seconds(), log, e, Pace()], lambda e: [Seconds(), e, log, Pace()]):
        run(train, rows, order(EvaluateTasks("categories", every=1, limit=2)))
    assert len(paces) == 8 and min(paces) > 5  # tokens of a batch in a second, not in a thousand


@pytest.mark.slow
def test_two_ranks_evaluate_together_and_train_as_without(tiny_base, tmp_path):
    """Bit for bit, and the scores are those that one process finds for the same weights."""
    few = ["--data.train_rows=40", "--data.validation_rows=7", "--data.batch_size=4", "--trainer.max_steps=3"]
    split = ["--trainer.devices=2", "--model.lr=0.1", "--model.base_dtype=float32", "--model.warmup=0"]
    found = []
    for name, more in [
        ("without", []),
        ("with", ["--evaluate.tasks=categories", "--evaluate.every=2", "--evaluate.limit=21"]),
    ]:
        command = [sys.executable, "-m", "bitune_pl", "fit", *CPU, *few, *split, "--model.base", tiny_base, *more]
        folder = ["--trainer.default_root_dir", name]
        done = subprocess.run([*command, *folder], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("evaluation after update") == (2 if more else 0)
        (run_folder,) = (tmp_path / name / "categories").iterdir()
        found.append(torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"])
    assert same(*found)
    module = BituneModule.load_from_checkpoint(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
    encoder = Encoder(module.tokenizer, start_token=module.start_token_id)
    alone = LiveTasks(["categories"], limit=21).scores(module.model, encoder)["categories"]
    events = EventAccumulator(str(run_folder)).Reload()
    for name in ("acc", "acc_norm"):
        logged = events.Scalars(f"eval/categories/{name}")
        assert [event.step for event in logged] == [2, 3] and logged[-1].value == pytest.approx(alone[name])
