"""Faults that others have met, as far as data and a model are needed together: A01, A04, B03, E01, E04, J05, I05."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from decoders import randomise, tiny

from bitune_pl import Bitune
from bitune_pl.data.batching import InOrder, Loader
from bitune_pl.data.datamodule import BituneData
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped, Example
from bitune_pl.data.plan import Plan
from bitune_pl.data.rows import encode
from bitune_pl.data.sources import load


def examples(*pairs):
    return [Example(prompt, (answer,), 0, f"line {i}") for i, (prompt, answer) in enumerate(pairs, start=1)]


@pytest.fixture
def model(byte_level):
    """A tiny decoder with an embedding for every token, all of it in float64."""
    decoder = tiny("llama", vocab_size=len(byte_level), max_position_embeddings=512).double()
    return randomise(Bitune.build(decoder, "bitune", "lora", adapter_dtype=torch.float64).double().eval())


def learned(model, batches, weighting="token"):
    """The loss of an update in several parts, and its gradients."""
    model.zero_grad()
    total = sum(
        model.loss(b.samples, weighting, denominator=b.tokens if weighting == "token" else b.answers) for b in batches
    )
    total.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return total.detach(), gradients


class TestA01:
    """A prompt that fills the limit leaves no label."""

    def test_alone(self, byte_level, tmp_path):
        file = tmp_path / "t.jsonl"
        file.write_text(json.dumps({"prompt": "word " * 40, "answer": " Yes"}) + "\n")
        data = BituneData(str(file), max_length=32)
        data.tokenizer = byte_level
        with pytest.raises(
            ValueError, match=r"no usable rows \(0 of 1: 1 longer than 32 tokens, first t.jsonl line 1\)"
        ):
            data.setup("fit")

    def test_beside_a_good_row(self, byte_level, model):
        rows, dropped = encode(Encoder(byte_level, 32), examples(("word " * 40, " Yes"), ("Q:", " No")), False)
        assert [row.where for row in dropped] == ["line 1"] and len(rows) == 1
        loss, gradients = learned(model, Loader(rows, Plan(2)))
        assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients.values())


class TestA04:
    """The end is learned exactly once, and never after a cut."""

    @pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
    def test_end(self, request, name):
        tokenizer = request.getfixturevalue(name)
        encoder = Encoder(tokenizer, 128)
        short, long = examples(("Capital?", " Paris"), ("Capital?", " Paris" * 300))
        assert encoder.training(short).answers[0].tolist().count(tokenizer.eos_token_id) == 1
        assert encoder.training(short).answers[0][-1] == tokenizer.eos_token_id
        assert encoder.training(long) == Dropped("line 2", "longer than 128 tokens")


def test_b03_prompts_of_one_token_beside_longer_ones(byte_level, model):
    encoder = Encoder(byte_level)
    mixed = [encoder.training(row) for row in examples(("Q", " a"), ("What is it", " no"), ("The dog", " eats"))]
    assert [len(sample.prompt) == 1 for sample in mixed] == [True, False, False]
    together = model.log_likelihood(mixed)
    for sample, both in zip(mixed, together, strict=True):
        torch.testing.assert_close(both[0], model.log_likelihood([sample])[0][0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weighting", ["token", "sample"])
def test_e01_an_update_does_not_depend_on_how_it_is_cut(byte_level, model, weighting):
    pairs = [("Q:", " a"), ("What:", " a dog eats meat and bread"), ("Who:", " you"), ("It is", " so and so")]
    rows, _ = encode(Encoder(byte_level), examples(*pairs), False)
    assert min(rows.answer_tokens) < max(rows.answer_tokens) / 3
    plans = [Plan(4), Plan(1, 4), Plan(2, 2), Plan(2, 1, 2), Plan(1, 2, 2), Plan(4, 2, 1, batch_tokens=400)]
    whole, *others = (
        learned(model, [b for rank in range(plan.world_size) for b in Loader(rows, plan, rank)], weighting)
        for plan in plans
    )
    for loss, gradients in others:
        torch.testing.assert_close(loss, whole[0], rtol=1e-9, atol=1e-9)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, whole[1][name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_e04_a_validation_loss_is_a_mean_over_rows_or_tokens(byte_level, model, batch_size):
    rows, _ = encode(Encoder(byte_level), examples(("Q:", " a"), ("What:", " meat " * 6), ("Who:", " you")), False)
    batches = list(InOrder(rows, batch_size))
    assert sum(batch.answers for batch in batches) == 3
    assert sum(batch.tokens for batch in batches) == rows.answer_tokens.sum()
    losses = [-ll for batch in batches for answers in model.log_likelihood(batch.samples) for ll in answers]
    by_token = sum(model.loss(b.samples, "token", denominator=int(rows.answer_tokens.sum())) for b in batches)
    torch.testing.assert_close(by_token, torch.cat(losses).mean(), rtol=1e-9, atol=1e-9)


class TestJ05:
    """Offline, what is local works without a request, and what is not is named."""

    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch):
        def refuse(*args, **kwargs):
            raise AssertionError("the network was asked")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)

    def test_local_data(self, tmp_path, byte_level):
        folder = tmp_path / "piqa"
        folder.mkdir()
        for split in ("train", "validation"):
            row = {"goal": "Boil", "sol1": "x", "sol2": "y", "label": 1}
            (folder / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
        data = BituneData("piqa", root=str(tmp_path))
        data.tokenizer = byte_level
        for stage in ("fit", "test"):
            data.setup(stage)
        assert all(len(rows) == 1 for rows in data.rows.values())

    def test_data_in_the_cache_of_the_hub(self, tmp_path, monkeypatch):
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        for repository, row in {
            "baber/piqa": {"goal": "Boil", "sol1": "x", "sol2": "y", "label": 1},
            "some/things": {"prompt": "a", "answer": "b"},
        }.items():
            (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
            made = datasets.load_dataset("json", data_files={"train": str(tmp_path / "t.jsonl")})
            folder = Path(made["train"].cache_files[0]["filename"]).parent
            owner, name = repository.split("/")
            cached = tmp_path / "cache" / f"{owner}___{name}" / "default" / "0.0.0" / ("a" * 40)
            shutil.copytree(folder, cached)
            (cached / "json-train.arrow").rename(cached / f"{name}-train.arrow")
            info = cached / "dataset_info.json"
            info.write_text(json.dumps(json.loads(info.read_text()) | {"dataset_name": name}))
        assert load("piqa", "train").examples[0].where == "baber/piqa train row 1"
        assert load("some/things", "train", whole=True).examples[0].where == "some/things train row 1"

    def test_data_that_is_not_there(self):
        with pytest.raises(ConnectionError, match="'train' of baber/piqa .*data.root to a folder .*piqa/train.jsonl"):
            load("piqa", "train")
        with pytest.raises(ConnectionError, match="nobody/nothing could not be had .*check its name, or give the path"):
            load("nobody/nothing", "train")


TWO_RANKS = """
import sys
from lightning.pytorch import Trainer
from test_datamodule import Recorder
from bitune_pl.data import rows
from bitune_pl.data.datamodule import BituneData
from transformers import PreTrainedTokenizerFast

folder, encoded = sys.argv[1], []
plain = rows.encode
rows.encode = lambda *args: encoded.append(1) or plain(*args)
data = BituneData(folder + "/t.jsonl", validation_source=folder + "/v.jsonl", batch_size=2)
module = Recorder(PreTrainedTokenizerFast.from_pretrained(folder + "/tokenizer"))
trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, num_sanity_val_steps=0)
trainer.fit(module, data)
trainer.test(module, data, verbose=False)
counts = {part: len(rows) for part, rows in data.rows.items()}
out = open(f"{folder}/rank{trainer.global_rank}", "w")
print(repr((counts, sorted(module.shown), sorted(module.validated), len(encoded))), file=out)
"""


@pytest.mark.slow
def test_i05_two_processes(byte_level, tmp_path):
    """Nothing is kept in prepare_data; rows are tokenised once, and each is seen by one rank."""
    byte_level.save_pretrained(tmp_path / "tokenizer")
    for name, n in (("t", 13), ("v", 7)):
        rows = [{"prompt": f"{name}{i}:", "answer": "a"} for i in range(n)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "two_ranks.py").write_text(TWO_RANKS)
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "tests" / "data"), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, tmp_path / "two_ranks.py", tmp_path], env=settings, check=True, timeout=300)
    ranks = [eval((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert ranks[0][0] == ranks[1][0] == {"train": 13, "validation": 7, "test": 7}
    assert sorted(ranks[0][1] + ranks[1][1]) == sorted(f"t{i}:" for i in range(13))
    assert sorted(ranks[0][2] + ranks[1][2]) == sorted([f"v{i}:" for i in range(7)] * 2)
    assert (ranks[0][3], ranks[1][3]) == (2, 0), "each file is tokenised once, by one rank"
