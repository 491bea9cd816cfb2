"""The loss of an update, the schedule, seeds, scores, and which settings are refused."""

import math
from importlib.util import find_spec

import pytest
import torch
from lightning.pytorch import Callback

from bitune_pl.training.checkpoints import trained_tensors
from bitune_pl.training.module import BituneModule

UNEVEN = [
    ("Q: a b\nA:", " c"),
    ("Question: which?\n\nAnswer:", " a much longer answer, of many tokens"),
    ("x", " y"),
    ("z z", " 12345"),
]


class Recorder(Callback):
    """Gradients, learning rate and number of rows of each update."""

    def __init__(self):
        self.gradients, self.rates, self.rows, self.seen = [], [], [], 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen += len(batch.samples)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.gradients.append({n: p.grad.clone() for n, p in trained_tensors(pl_module).items()})
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.rows.append(self.seen)
        self.seen = 0


class PlainMean(Callback):
    """The gradient of the mean over all rows, taken at once before training."""

    def on_train_start(self, trainer, pl_module):
        samples = [row.sample for row in trainer.datamodule.rows["train"]]
        loss = pl_module.model.loss(samples, pl_module.hparams.weighting)
        trained = trained_tensors(pl_module)
        self.gradient = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))


@pytest.mark.parametrize("weighting", ["sample", "token"])
@pytest.mark.parametrize(("size", "accumulate"), [(4, 1), (2, 2), (1, 4)])
def test_an_update_is_the_mean_over_its_rows_however_it_is_cut(train, rows, weighting, size, accumulate):
    """E01: answers of 2 to 20 tokens, in one batch, in two micro-batches, and one by one."""
    recorder, mean = Recorder(), PlainMean()
    trainer = {"max_steps": 1, "accumulate_grad_batches": accumulate, "callbacks": [recorder, mean]}
    train({"source": rows("train.jsonl", UNEVEN), "batch_size": size}, trainer, weighting=weighting)
    assert recorder.rows == [4]
    for name, gradient in mean.gradient.items():
        torch.testing.assert_close(recorder.gradients[0][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_updates_rates_and_rows_follow_the_formula(train, rows):
    """F05: 23 rows, batch 1, accumulation 10, 6 updates, warm-up of 2; an epoch's last update takes the 3 left."""
    recorder = Recorder()
    file = rows("train.jsonl", [(f"row {i}", " yes") for i in range(23)])
    trainer = {"max_steps": 6, "accumulate_grad_batches": 10, "callbacks": [recorder]}
    data = {"source": file, "validation_source": rows("validation.jsonl", UNEVEN), "batch_size": 1}
    made = train(data, trainer, lr=1.0, warmup=0.34, adapter_settings={"r": 1})
    assert made.global_step == 6
    assert recorder.rows == [10, 10, 3, 10, 10, 3]
    assert recorder.rates == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25])


def test_the_seed_decides_the_adapters_and_the_two_differ(train, rows):
    """D09: seeds 7, 7 and 8, before the first update and after the second."""

    class Start(Callback):
        def on_train_start(self, trainer, pl_module):
            self.state = {n: v.clone() for n, v in pl_module.state_dict().items()}

    file, found = rows("train.jsonl", UNEVEN), []
    for seed in (7, 7, 8):
        start = Start()
        made = train(
            {"source": file, "batch_size": 2, "seed": seed}, {"max_steps": 2, "callbacks": [start]}, seed=seed, lr=0.01
        )
        found.append((start.state, made.lightning_module.state_dict()))
    for first, again, other in zip(*found, strict=True):
        name = next(n for n in first if "lora_A.causal" in n)
        assert all(torch.equal(first[n], again[n]) for n in first)
        assert not torch.equal(first[name], other[name])
        assert not torch.equal(first[name], first[name.replace("causal", "bidirectional")])


def test_a_subclass_that_leaves_the_type_of_the_base_open():
    class Mine(BituneModule):
        def __init__(self, base: str, base_dtype: str | None = None) -> None:
            super().__init__(base, base_dtype=base_dtype)

    assert Mine("smollm2").hparams.base_dtype in ("bfloat16", "float32")

    class OfItsOwn(BituneModule):
        def __init__(self, base: str, base_dtype: str | None = None) -> None:
            super().__init__(base, base_dtype=base_dtype or "float32")

    assert OfItsOwn("smollm2").hparams.base_dtype == "float32"
    assert OfItsOwn("smollm2", base_dtype="bfloat16").hparams.base_dtype == "bfloat16"


def test_only_adapters_and_theta_are_trained_and_all_of_them_move(train, rows):
    """D01 through the trainer: both sets of weights and theta change, the base does not."""
    made = train({"source": rows("train.jsonl", UNEVEN), "batch_size": 4}, {"max_steps": 3}, lr=0.1, warmup=0.0)
    module = made.lightning_module
    base = BituneModule(module.hparams.base, base_dtype="float32")
    base.configure_model()
    before = dict(base.named_parameters())
    trained = trained_tensors(module)
    parts = {"causal", "bidirectional", "theta_k", "theta_v"}
    assert {part for name in trained for part in name.split(".")} >= parts
    for name, parameter in module.named_parameters():
        moved = not torch.equal(parameter.cpu(), before[name])
        assert moved == (name in trained), name


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("weighting", ["sample", "token"])
def test_validation_loss_is_the_mean_over_its_rows_in_every_layout(train, rows, size, weighting):
    """E04, and A02: a validation row that is too long is left out, and leaves no trace in the mean."""
    own = rows("train.jsonl", UNEVEN)
    other = rows("validation.jsonl", [*UNEVEN[:3], ("long " * 200, " no")])
    data = {"source": own, "validation_source": other, "batch_size": size}
    made = train(data, {"max_steps": 1}, weighting=weighting)
    model, samples = made.lightning_module.model, [row.sample for row in made.datamodule.rows["validation"]]
    assert len(samples) == 3
    with torch.no_grad():
        means = {w: float(model.loss(samples, w)) for w in ("sample", "token")}
    made.validate(made.lightning_module, datamodule=made.datamodule, verbose=False)
    scores = {name: float(value) for name, value in made.callback_metrics.items()}
    assert scores == pytest.approx(
        {"loss/validation": means[weighting], "loss_per_token/validation": means["token"]}, rel=1e-5
    )


def test_a_gradient_that_is_no_number_never_reaches_the_weights(train, rows):
    """A01: the run stops with a sentence, and what was trained so far is finite."""

    class Poison(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            self.module = pl_module
            if trainer.global_step == 1:
                pl_module.model.theta_k.grad[0] = math.nan

    poison = Poison()
    with pytest.raises(ValueError, match="The gradient became nan at update 2; .* Lower model.lr"):
        train({"source": rows("train.jsonl", UNEVEN), "batch_size": 4}, {"max_steps": 3, "callbacks": [poison]})
    assert all(torch.isfinite(value).all() for value in poison.module.state_dict().values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "bitnue"}, "There is no variant 'bitnue'"),
        (
            {"method": {"mixing": False}},
            "model.method has mixing but not second_pass, separate_weights: one field of a named variant",
        ),
        ({"method": {"second_pass": "causal", "separate_weights": True, "mixing": True, "mix": 1}}, "mix is not one"),
        ({"method": None}, "A method is a variant's name .* or its four fields, not None"),
        ({"adapter": "lroa"}, "There is no adapter 'lroa'"),
        ({"theta_init": 0.0}, "above 0"),
        ({"lr": -1.0}, "above 0"),
        ({"warmup": 1.5}, "a share of the updates"),
        ({"adapter_settings": {"rank": 16}}, "rank"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(tiny_base, settings, message):
    with pytest.raises(ValueError, match=message):
        BituneModule(tiny_base, **settings).configure_model()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantization": "8bit"}, "8bit is not offered: one forward pass differed from three"),
        ({"quantization": "3bit"}, "null or '4bit'"),
        ({"quantization": "4bit", "adapter": "full"}, "weights of a quantised base cannot be trained"),
        ({"quantization": "4bit", "base": "x.gguf"}, "quantised already"),
        ({"paper_targets": True, "adapter": "none"}, "paper_targets chooses the layers of"),
        ({"paper_targets": True, "adapter_settings": {"target_modules": ["q_proj"]}}, "give one of them"),
        ({"adapter_settings": {"init_lora_weights": "pissa"}}, "takes its start out of the base"),
        ({"start_token": "<s>"}, "start_token is null .* or '<sep>'"),
    ],
)
def test_pairs_that_cannot_work_are_refused_when_the_config_is_read(settings, message):
    with pytest.raises(ValueError, match=message):
        BituneModule(**{"base": "nowhere", **settings})


def test_paper_targets_are_a_setting(tiny_base):
    module = BituneModule(tiny_base, paper_targets=True, adapter_settings={"r": 16})
    module.configure_model()
    assert module.model.decoder.peft_config["causal"].target_modules == {
        f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")
    }


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("adapter", ["lora", "dora", "ia3"])
def test_a_base_in_4_bits_is_trained_over(train, rows, adapter, wide_base):
    """In the trainer, in bfloat16 too: the loss falls, and the checkpoint holds no packed weight."""
    settings = {"base": wide_base, "quantization": "4bit", "base_dtype": "bfloat16", "adapter": adapter, "lr": 0.02}
    losses = []

    class Losses(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, *rest):
            losses.append(float(outputs["share"]))

    data = {"source": rows("train.jsonl", UNEVEN), "batch_size": 4}
    made = train(data, {"max_steps": 5, "callbacks": [Losses()]}, **settings)
    assert losses[-1] < losses[0]
    assert all(tensor.dtype == torch.float32 for tensor in made.lightning_module.state_dict().values())


def test_four_fields_are_a_method(tiny_base):
    fields = {"second_pass": "bidirectional", "separate_weights": False, "mixing": True}
    module = BituneModule(tiny_base, method=fields)
    module.configure_model()
    assert not module.model.method.separate_weights and module.model.method.mixing


def test_half_precision_trainers_are_refused(train, rows):
    with pytest.raises(ValueError, match="would cast theta too: leave it out"):
        train({"source": rows("train.jsonl", UNEVEN)}, {"max_steps": 1, "precision": "bf16-true"})


def test_an_adapter_of_none_without_mixing_has_nothing_to_train(train, rows):
    with pytest.raises(ValueError, match="Nothing is trained with model.adapter none"):
        train({"source": rows("train.jsonl", UNEVEN)}, {"max_steps": 1}, method="plain", adapter="none")


def test_activation_checkpointing_gives_the_same_gradients(train, rows):
    """D07: and every layer of both adapters has one."""
    file, found = rows("train.jsonl", UNEVEN), []
    for on in (False, True):
        recorder = Recorder()
        train(
            {"source": file, "batch_size": 4},
            {"max_steps": 3, "callbacks": [recorder]},
            activation_checkpointing=on,
            lr=0.01,
        )
        found.append(recorder.gradients[-1])
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-7, msg=name)
        assert gradient.abs().sum() > 0, name
