"""Faults that others have met in data, and where data and a model meet (A01 to A06, B03, B04, E01, E04, H08, J01, J05, I05)."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from decoders import randomise, tiny
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.data import warning_cache
from tiny_base import tiny_base  # noqa: F401

from bitune_pl import Bitune
from bitune_pl.cli import main
from bitune_pl.data.batching import InOrder, Loader
from bitune_pl.data.datamodule import BituneData
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped, Example
from bitune_pl.data.plan import Plan
from bitune_pl.data.rows import encode
from bitune_pl.data.sources import load
from bitune_pl.training.module import BituneModule

NO_TOKEN = 10**6
PLAIN = ["--model.adapter", "none", "--model.method", "plain"]


def examples(*pairs):
    return [Example(prompt, (answer,), 0, f"line {i}") for i, (prompt, answer) in enumerate(pairs, start=1)]


@pytest.fixture
def model(byte_level):
    """A tiny decoder with an embedding for every token, all of it in float64, and the same for every test."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
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


@pytest.mark.parametrize("size", [1, 2, 4])
def test_e04_two_and_eighteen_tokens_in_the_trainer(tiny_base, tmp_path, size, monkeypatch, recwarn):  # noqa: F811
    """2 and 18 answer tokens that cost 4 and 1 each: 1.3, in validation and in training, however they are batched."""

    def costs(model, samples):
        costs = {2: -4.0, 18: -1.0}
        return [[0 * model.theta_k.sum() + torch.full((len(a),), costs[len(a)]) for a in s.answers] for s in samples]

    class Shares(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, *rest):
            shares.append(float(outputs["share"]))

    warning_cache.clear()  # it tells everything once in a process
    monkeypatch.setattr(Bitune, "log_likelihood", costs)
    shares, file = [], jsonl(tmp_path / "t.jsonl", *({"prompt": "Q:", "answer": a} for a in ("a", "z" * 16)))
    copy = shutil.copy(file, tmp_path / "v.jsonl")
    module = BituneModule(tiny_base, base_dtype="float32", weighting="token")
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = Trainer(
        accelerator="cpu", max_steps=1, accumulate_grad_batches=max(1, 2 // size), callbacks=[Shares()], **quiet
    )
    trainer.fit(module, BituneData(file, validation_source=copy, batch_size=size))
    assert sorted(trainer.datamodule.rows["validation"].answer_tokens) == [2, 18]
    assert sum(shares) == pytest.approx(1.3)
    assert float(trainer.callback_metrics["loss/validation"]) == pytest.approx(1.3)
    assert not [
        str(said.message) for said in recwarn if "batch size" in str(said.message) or "batch_size" in str(said.message)
    ]


def jsonl(path, *rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def test_a06_empty_and_null_fields(tmp_path, byte_level, caplog):
    """Rows without an answer or a prompt are left out and counted; null is no word."""
    file = jsonl(
        tmp_path / "t.jsonl",
        {"instruction": "Name a colour", "input": "", "output": ""},
        {"instruction": "Sum 1,2", "input": None, "output": "3"},
        {"instruction": "   ", "input": "", "output": "ok"},
    )
    data = BituneData(file, validation_source=file)
    data.tokenizer = byte_level
    with caplog.at_level("INFO"):
        data.setup("fit")
    said = next(line for line in caplog.messages if "(train)" in line)
    assert "rows kept: 1 of 3" in said and "t.jsonl line 1" in said and "t.jsonl line 3" in said
    (sample,) = (data.rows["train"][i].sample for i in range(len(data.rows["train"])))
    text = byte_level.decode(sample.prompt)
    assert "Sum 1,2" in text and "None" not in text and "nan" not in text and "Input" not in text
    with pytest.raises(ValueError, match=r"no usable rows \(0 of 1: 1 .*first u.jsonl line 1\)"):
        load(jsonl(tmp_path / "u.jsonl", {"instruction": "Name a colour", "input": "", "output": ""}), "train")


def test_b04_control_token_text_in_a_row_stays_text(byte_level, model):
    """Neither learned as an end, nor does it stop anything; the same ids in training and evaluation."""
    row = {"prompt": "What does </s> mean?", "answer": " </s> closes a sequence. <|endoftext|> is another."}
    (example,) = examples((row["prompt"], row["answer"]))
    encoder = Encoder(byte_level)
    trained, scored = encoder.training(example), encoder.choices(example)
    assert trained.prompt.equal(scored.prompt) and trained.prompt.equal(encoder.prompt(row["prompt"]))
    assert trained.answers[0][:-1].equal(scored.answers[0])
    ids = trained.answers[0].tolist()
    assert ids.count(encoder.eos) == 1 and ids[-1] == encoder.eos and encoder.eos not in trained.prompt.tolist()
    assert byte_level.decode(ids[:-1]) == row["answer"], "what follows the literal is learned"
    literal = [byte_level.convert_tokens_to_ids(letter) for letter in ("Ġ", *"</s>")]
    before, after = encoder.prompt("What does").tolist(), encoder.prompt(" mean?").tolist()
    assert trained.prompt.tolist() == [*before, *literal, *after], "spelled out, and the rest as it is without"
    prompts = [trained.prompt, encoder.prompt("What does mean?"), encoder.prompt("mean </s>")]
    settings = {"max_new_tokens": 20, "do_sample": False}
    answers = model.generate(prompts, **settings, eos_token_id=encoder.eos)
    for prompt, answer in zip(prompts, answers, strict=True):
        (endless,) = (found.tolist() for found in model.generate([prompt], **settings, eos_token_id=NO_TOKEN))
        length = (endless + [encoder.eos]).index(encoder.eos) + 1
        assert len(endless) == 20 and answer.tolist() == endless[:length], "only an end in the answer ends it"


def _arc(labels, key):
    return {"question": "Q?", "choices": {"text": [f"c{label}" for label in labels], "label": labels}, "answerKey": key}


@pytest.mark.parametrize(
    "name, row, gold",
    [
        ("arc_challenge", _arc(["1", "2", "3", "4"], "3"), 2),
        ("arc_challenge", _arc(["A", "B", "C", "D", "E"], "E"), 4),
        ("arc_challenge", _arc(["A", "B", "C"], "B"), 1),
        (
            "social_i_qa",
            {"context": "c", "question": "Q?", "answerA": "a", "answerB": "b", "answerC": "d", "label": "1"},
            0,
        ),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": 1}, 1),
    ],
)
def test_h08_the_right_choice_is_found_by_position_in_the_rows_own_labels(tmp_path, name, row, gold):
    (tmp_path / name).mkdir()
    jsonl(tmp_path / name / "train.jsonl", row)
    (example,) = load(name, "train", tmp_path).examples
    assert example.gold == gold


@pytest.mark.parametrize(
    "name, row",
    [
        ("commonsense_qa", _arc(["A", "B", "C", "D", "E"], "")),
        ("piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": -1}),
    ],
)
def test_h08_a_split_without_labels_is_refused(tmp_path, name, row):
    (tmp_path / name).mkdir()
    jsonl(tmp_path / name / "train.jsonl", row)
    with pytest.raises(ValueError, match="train.jsonl line 1: no right answer in split 'train'"):
        load(name, "train", tmp_path)


class TestJ01:
    """A bad row is named by file and line; nothing usable is said, with the reasons."""

    def test_a_line_that_is_cut_short(self, tmp_path):
        good = {"prompt": "a", "answer": "b"}
        file = jsonl(tmp_path / "train.jsonl", good, "", '{"prompt":"a","answer": ', good)
        with pytest.raises(ValueError, match=r"train.jsonl line 3: .*not JSON"):
            load(file, "train")

    def test_a_line_that_is_no_row(self, tmp_path):
        with pytest.raises(ValueError, match="train.jsonl line 2: "):
            load(jsonl(tmp_path / "train.jsonl", {"prompt": "a", "answer": "b"}, "[]"), "train")

    def test_an_empty_file(self, tmp_path):
        with pytest.raises(ValueError, match=r"train.jsonl.*(empty|no rows|no usable rows)"):
            load(jsonl(tmp_path / "train.jsonl"), "train")

    def test_one_huge_row(self, tmp_path, byte_level):
        file = jsonl(
            tmp_path / "train.jsonl", {"prompt": "a", "answer": "b"}, {"prompt": "x" * 40_000_000, "answer": "b"}
        )
        rows, dropped = encode(Encoder(byte_level), load(file, "train").examples, False)
        assert len(rows) == 1 and [row.where for row in dropped] == ["train.jsonl line 2"]


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

    def test_data_in_the_cache_of_the_hub(self, tmp_path, monkeypatch, tiny_base, capsys):  # noqa: F811
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
        assert main(["evaluate", "--base", tiny_base, "--tasks", "piqa", "--part", "train"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["piqa", "1"]

    def test_evaluate_with_local_data(self, tmp_path, tiny_base, capsys):  # noqa: F811
        (tmp_path / "piqa").mkdir()
        jsonl(tmp_path / "piqa" / "validation.jsonl", {"goal": "Boil", "sol1": "x", "sol2": "y", "label": 1})
        command = ["evaluate", "--base", tiny_base, "--tasks", "piqa", "--data.root", str(tmp_path)]
        assert main(command) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["piqa", "1"]

    ARC = r"allenai/ai2_arc \(configuration ARC-Challenge, revision main\) could not be had .*data.root to a folder .*"

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("arc_challenge", rf"'{{split}}' of {ARC}arc_challenge/{{split}}.jsonl\.$"),
            (
                "nobody/nothing",
                r"nobody/nothing \(configuration default, revision main\) could not be had .*check its name",
            ),
            (
                "nobody/nothing:some",
                r"nobody/nothing \(configuration some, revision main\) could not be had .*check its name",
            ),
        ],
    )
    def test_data_that_is_not_there(self, source, message, tiny_base, tmp_path, monkeypatch, capsys):  # noqa: F811
        """Repository, configuration, revision and what to set, in one sentence, from every command."""
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConnectionError, match=message.format(split="train")):
            load(source, "train")
        for command, split in (
            (["evaluate", "--base", tiny_base, "--tasks", source], "test"),
            (["fit", "--model.base", tiny_base, "--data.source", source], "train"),
            (["test", "--model.base", tiny_base, "--data.source", source, *PLAIN], "test"),
        ):
            assert main(command) == 2
            (said,) = capsys.readouterr().err.splitlines()
            assert re.search(message.format(split=split), said)


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
