"""A new start token through a run: its id is in every row, its row in checkpoints and in `model/` (B05)."""

import json

import pytest
import torch
from lm_eval.api.instance import Instance
from test_module import UNEVEN
from test_runs import FEW, StopAfter, only_run
from tiny_base import CPU

from bitune_pl.cli import main
from bitune_pl.evaluation.harness import BituneLM
from bitune_pl.evaluation.run import open_run
from bitune_pl.training.module import BituneModule

SEP = "<sep>"


def test_a_run_trains_it_keeps_it_and_is_asked_with_it(tiny_base, tmp_path, capsys):
    fit = ["fit", "--model.base", tiny_base, *CPU, *FEW, "--trainer.max_steps", "2", "--compare_untuned", "true"]
    assert main([*fit, "--model.start_token", SEP, "--model.lr", "0.1"]) == 0, capsys.readouterr().err
    run = only_run(tmp_path)
    assert "Accuracy on 6 validation questions" in capsys.readouterr().out
    opened = open_run(run)
    rows = len(opened.encoder.tokenizer)
    assert opened.model.start_token_id == rows and opened.encoder.prompt("Q")[-1] == rows
    assert json.loads((run / "model/bitune.json").read_text())["start_token"] == SEP
    assert main(["generate", "--run", str(run), "--prompt", "Which?", "--max-new-tokens", "3"]) == 0
    assert main(["evaluate", "--run", str(run), "--tasks", "categories", "--limit", "4"]) == 0
    assert main(["validate", "--run", str(run), *CPU]) == 0
    saved = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    [name] = [name for name in saved if "embed" in name]
    assert name.endswith("embed_tokens.start_token.weight") and saved[name].shape == (1, 32)


def test_training_evaluation_and_generation_end_a_prompt_alike(train, rows):
    made = train({"source": rows("train.jsonl", UNEVEN), "batch_size": 4}, {"max_steps": 1}, start_token=SEP)
    module, encoder = made.lightning_module, made.datamodule.encoder
    for row, example in zip(made.datamodule.rows["train"], made.datamodule.examples("train"), strict=True):
        prompt = row.sample.prompt
        assert torch.equal(encoder.prompt(example.prompt), prompt)
        assert torch.equal(encoder.choices(example).prompt, prompt)
        assert prompt[-1] == module.start_token_id == module.model.start_token_id
        assert (prompt[:-1] < module.start_token_id).all()
    examples, scorer = made.datamodule.examples("train"), BituneLM(module.model, encoder, progress=False)
    asked = [Instance("loglikelihood", {}, (row.prompt, row.answers[0]), 0) for row in examples]
    by_tokens = module.model.log_likelihood([encoder.choices(row) for row in examples])
    for (score, _), (answer,) in zip(scorer.loglikelihood(asked), by_tokens, strict=True):
        assert score == pytest.approx(float(answer.sum()), abs=1e-4)


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(train, rows, tmp_path):
    data = {"source": rows("train.jsonl", [(f"row {i}", f" {i * i}") for i in range(20)]), "batch_size": 2}
    settings, path = {"lr": 0.01, "start_token": SEP}, str(tmp_path / "stopped.ckpt")
    whole = train(data, {"max_steps": 6}, **settings)
    train(data, {"max_steps": 6, "callbacks": [StopAfter(3, path)]}, **settings)
    resumed = train(data, {"max_steps": 6}, ckpt_path=path, **settings)
    end = resumed.lightning_module.state_dict()
    assert any("start_token" in name for name in end)
    assert all(torch.equal(value, end[name]) for name, value in whole.lightning_module.state_dict().items())
    with pytest.raises(ValueError, match="start_token: <sep> in the checkpoint, None here"):
        train(data, {"max_steps": 6}, ckpt_path=path, lr=0.01)


def test_another_name_is_refused_when_the_config_is_read(tiny_base):
    with pytest.raises(ValueError, match="start_token is null .* or '<sep>'"):
        BituneModule(tiny_base, start_token="<s>")
