"""BituneData under Lightning: parts, counts, and a fit that stops and goes on."""

import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from bitune_pl.data.datamodule import BituneData


class Recorder(LightningModule):
    """Learns nothing, and remembers which rows it was shown."""

    def __init__(self, tokenizer):
        super().__init__()
        self.weight, self.tokenizer = torch.nn.Parameter(torch.zeros(1)), tokenizer
        self.shown, self.validated, self.updates = [], [], []

    def training_step(self, batch, batch_idx):
        self.shown += [self.tokenizer.decode(sample.prompt) for sample in batch.samples]
        return self.weight.sum() * len(batch) / batch.answers

    def validation_step(self, batch, batch_idx):
        self.validated += [self.tokenizer.decode(sample.prompt) for sample in batch.samples]

    test_step = predict_step = validation_step

    def on_before_optimizer_step(self, optimizer):
        self.updates.append(len(self.shown))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def write(path, n, prompt="Q{}:"):
    path.write_text("".join(json.dumps({"prompt": prompt.format(i), "answer": f"a{i}"}) + "\n" for i in range(n)))
    return str(path)


def trainer(tmp_path, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    settings.setdefault("enable_checkpointing", False)
    return Trainer(default_root_dir=tmp_path, num_sanity_val_steps=0, **quiet, **settings)


def test_the_default_needs_no_network(byte_level, tmp_path):
    data, module = BituneData(train_rows=30, validation_rows=8, batch_size=4), Recorder(byte_level)
    trainer(tmp_path, max_epochs=1).fit(module, data)
    assert len(set(module.shown)) == 30 and len(module.validated) == 8
    batch = next(iter(data.val_dataloader()))
    assert all(len(scored.answers) == 4 for scored in batch.choices) and set(batch.golds) <= {0, 1, 2, 3}
    assert next(iter(data.train_dataloader())).choices == [None] * 4


def test_updates_and_rows_per_update(byte_level, tmp_path):
    file, module = write(tmp_path / "t.jsonl", 23), Recorder(byte_level)
    data = BituneData(file, validation_source=write(tmp_path / "v.jsonl", 7), batch_size=1)
    trainer(tmp_path, max_steps=6, accumulate_grad_batches=10).fit(module, data)
    assert module.updates == [10, 20, 23, 33, 43, 46]
    assert sorted(module.shown[:23]) == sorted(module.shown[23:]) == sorted(f"Q{i}:" for i in range(23))
    assert sorted(module.validated[:7]) == sorted(f"Q{i}:" for i in range(7)), "all rows of a file of its own"
    assert module.weight.item() == pytest.approx(-0.1 * 6 / 10), (
        "every update adds up to a mean, which Lightning divides by ten"
    )


@pytest.mark.parametrize(
    ("stop", "num_workers", "size"),
    [
        (3, 0, {"batch_size": 4}),
        (10, 2, {"batch_size": 4}),
        (14, 2, {"batch_size": 4}),
        (3, 2, {"batch_tokens": 29}),
        (14, 0, {"batch_tokens": 29}),
    ],
)
def test_a_fit_that_stops_and_goes_on(byte_level, tmp_path, stop, num_workers, size):
    file, other = write(tmp_path / "t.jsonl", 40), write(tmp_path / "v.jsonl", 4)

    def fit(steps, ckpt_path=None):
        data = BituneData(file, validation_source=other, **size, num_workers=num_workers)
        module, saving = Recorder(byte_level), ModelCheckpoint(tmp_path, every_n_train_steps=stop)
        settings = {"callbacks": [saving], "enable_checkpointing": True, "limit_val_batches": 0}
        trainer(tmp_path, max_steps=steps, **settings).fit(module, data, ckpt_path=ckpt_path)
        return module.shown, saving.best_model_path

    whole, _ = fit(35)
    before, checkpoint = fit(stop)
    after, _ = fit(35, checkpoint)
    assert before + after == whole
    assert sorted(whole[:40]) == sorted(whole[40:80]) == sorted(f"Q{i}:" for i in range(40))
    torch.load(checkpoint, weights_only=True)


def test_a_small_file_is_all_trained_on_and_a_larger_one_holds_out(byte_level, tmp_path):
    for n, held_out in [(9, 0), (30, 3)]:
        module = Recorder(byte_level)
        trainer(tmp_path, max_epochs=1).fit(module, BituneData(write(tmp_path / "t.jsonl", n), batch_size=4))
        assert (len(module.shown), len(module.validated)) == (n - held_out, held_out)
        assert not set(module.shown) & set(module.validated)


def test_too_long_rows_are_left_out_of_validation_and_told_once(byte_level, tmp_path, caplog):
    """A02, whatever the number of validations."""
    rows = [{"prompt": f"Q{i}:", "answer": "yes"} for i in range(20)]
    rows[7]["prompt"] = "x" * 600
    file = tmp_path / "v.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, module = BituneData(write(tmp_path / "t.jsonl", 4), validation_source=str(file)), Recorder(byte_level)
    with caplog.at_level("INFO"):
        trainer(tmp_path, max_epochs=2).fit(module, data)
    assert len(module.validated) == 2 * 19
    (said,) = (line for line in caplog.messages if "longer than" in line or "v.jsonl line 8" in line)
    assert "v.jsonl (validation), rows kept: 19 of 20: 1 longer than 512 tokens, first v.jsonl line 8" in said


def test_rows_on_one_line_of_a_list_are_told_apart(byte_level, tmp_path):
    """A row that is left out takes no other with it out of the rows that are predicted."""
    (tmp_path / "v.json").write_text(json.dumps([{"prompt": p, "answer": "a"} for p in ("P:", "x" * 600, "R:")]))
    data = BituneData(write(tmp_path / "t.jsonl", 4), validation_source=str(tmp_path / "v.json"))
    trainer(tmp_path).predict(Recorder(byte_level), data)
    assert [(row.prompt, row.where) for row in data.kept["test"]] == [
        ("P:", "v.json line 1"),
        ("R:", "v.json line 1, row 3"),
    ]


def test_nothing_left(byte_level, tmp_path):
    data = BituneData(write(tmp_path / "t.jsonl", 3, prompt="word " * 40 + "{}"), max_length=32)
    data.tokenizer = byte_level
    with pytest.raises(ValueError, match=r"t.jsonl \(train\): no usable rows \(0 of 3: 3 longer than 32 tokens"):
        data.setup("fit")


def test_all_stages_and_setup_twice(byte_level, tmp_path):
    data, module = BituneData("sums", validation_rows=6, batch_size=4), Recorder(byte_level)
    runner = trainer(tmp_path)
    runner.validate(module, data, verbose=False)
    runner.test(module, data, verbose=False)
    runner.predict(module, data)
    rows = data.rows["test"]
    data.setup("test")
    assert data.rows["test"] is rows and len(module.validated) == 18


def test_mistakes_are_told_before_anything_is_read(tmp_path):
    for settings, message in [
        ({"source": "categorys"}, "no data source 'categorys'"),
        ({"validation_source": "nope"}, "no data source 'nope'"),
        ({"template": "{a.b}"}, "plain name"),
        ({"batch_size": 0}, "batch_size is at least 1"),
        ({"batch_tokens": 0}, "batch_tokens is at least 1"),
        ({"max_length": 2}, "max_length is at least 3"),
        ({"validation_rows": 0}, "validation_rows is a number of rows, at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            BituneData(**settings)
    with pytest.raises(ValueError, match="needs the tokenizer of its base"):
        BituneData(base="smollm2").setup("fit")


def test_a_template_of_the_users(byte_level, tmp_path):
    data = BituneData("categories", template="Frage: {question}\nWahl:\n{choices}\nAntwort:", validation_rows=1)
    prompt = data.examples("validation")[0].prompt
    assert prompt.startswith("Frage: ") and prompt.endswith("\nAntwort:") and prompt.count("\n") == 6


def test_which_sources_are_validated_on_what_they_are_tested_on(tmp_path):
    same = [
        "piqa",
        "commonsense_qa",
        "social_i_qa",
        "gsm8k",
        "categories",
        "ultrafeedback",
        write(tmp_path / "t.jsonl", 30),
    ]
    other = ["arc_challenge", "arc_easy", "gsm8k_cot", "cot_csqa_ecqa"]
    assert all(BituneData(name).validates_on_test for name in same)
    assert not any(BituneData(name).validates_on_test for name in other)
    assert not BituneData("gsm8k", validation_source="arc_easy").validates_on_test
