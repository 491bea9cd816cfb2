"""`bitune evaluate` and `evaluate()`: the table, the JSON, bad input, and an evaluation that was stopped."""

import json
import math
from copy import copy

import lm_eval
import pytest
import torch
from datasets import Dataset
from evaluation_models import asked, built
from lm_eval.tasks import TaskManager

from bitune_pl import load_decoder, load_tokenizer
from bitune_pl.cli import main
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.sources import load
from bitune_pl.evaluation import catalogue, harness, results
from bitune_pl.evaluation.evaluate import HEAD, evaluate, line
from bitune_pl.evaluation.finished import Asked, Finished, digest
from bitune_pl.evaluation.harness import BituneLM
from bitune_pl.method.backbone import name_of_dtype, usual_device, usual_dtype
from bitune_pl.method.model import Bitune


def test_scores_are_those_of_the_choices(bitune, encoder):
    """acc and acc_norm from log-likelihoods that are computed here, one answer at a time."""
    found = evaluate(bitune, encoder, ["categories"], limit=25, progress=False)
    rows = load("categories", "test", limit=25).examples
    right = {"acc": [], "acc_norm": []}
    for row, question in zip(rows, found["questions"], strict=True):
        with torch.no_grad():
            sums = [float(tokens.sum()) for tokens in bitune.log_likelihood([encoder.choices(row)])[0]]
        by_character = [value / len(answer.strip()) for value, answer in zip(sums, row.answers, strict=True)]
        right["acc"].append(max(range(len(sums)), key=sums.__getitem__) == row.gold)
        right["acc_norm"].append(max(range(len(sums)), key=by_character.__getitem__) == row.gold)
        assert question["loglikelihoods"] == pytest.approx(sums, abs=1e-4) and question["gold"] == row.gold
        assert (question["chosen"] == row.gold) == question["acc"] == right["acc"][-1]
        assert question["acc_norm"] == right["acc_norm"][-1]
    scores = found["tasks"]["categories"]
    for metric, outcomes in right.items():
        mean = sum(outcomes) / 25
        assert scores[metric] == pytest.approx(mean)
        assert scores[f"{metric}_stderr"] == pytest.approx(math.sqrt(mean * (1 - mean) / 24))


def test_generated_numbers_are_compared_and_silence_is_counted(told, encoder):
    rows = load("sums", "test", limit=4).examples
    said = [
        rows[0].answer,
        " no idea",
        " #### 123456",
        " That is $" + rows[3].answer.rpartition("####")[2].strip() + ".00.",
    ]
    model = told({row.prompt: [*encoder.prompt(t).tolist(), encoder.eos] for row, t in zip(rows, said, strict=True)})
    found = evaluate(model, encoder, ["sums"], limit=4, progress=False)
    scores = found["tasks"]["sums"]
    assert (scores["n"], scores["exact_match_flexible"], scores["exact_match_strict"]) == (4, 0.5, 0.25)
    assert scores["without_answer"] == 0.25
    assert [question["extracted"] is None for question in found["questions"]] == [False, True, False, False]
    assert found["questions"][1]["answer"] == " no idea"
    assert found["questions"][3]["extracted"].split(".")[0] == found["questions"][3]["gold"]


def test_worked_answers_are_compared_by_their_letter(told, encoder, tmp_path):
    """Marked; stated in words; another letter; none; marked, before the model asks a question of its own."""
    said = [
        " It barks.\n\nAnswer: B",
        " So the answer is the dog.",
        " Answer: A",
        " It has 4 legs.",
        " Answer: B\nQuestion: x",
    ]
    row = {"choices": {"text": ["cat", "dog"], "label": ["1", "2"]}, "answerKey": "2"}
    rows = [json.dumps(row | {"question": f"Who barks, {i}?"}) for i in range(5)]
    (tmp_path / "arc_challenge").mkdir()
    (tmp_path / "arc_challenge/test.jsonl").write_text("\n".join(rows))
    prompts = [f"Question: Who barks, {i}?\n\nChoices:\nA: cat\nB: dog\n\nSteps:" for i in range(5)]
    model = told({p: [*encoder.prompt(t).tolist(), encoder.eos] for p, t in zip(prompts, said, strict=True)})
    found = evaluate(model, encoder, ["cot_arc_challenge"], tmp_path, progress=False)
    scores = found["tasks"]["cot_arc_challenge"]
    assert (scores["n"], scores["exact_match_strict"], scores["exact_match_flexible"]) == (5, 0.4, 0.6)
    assert scores["without_answer"] == 0.2
    assert [(q["extracted"], q["gold"]) for q in found["questions"]] == [(x, "B") for x in ("B", "B", "A", None, "B")]
    assert found["questions"][4]["answer"] == " Answer: B"


TABLE = """\
task                           n  accuracy  std.err.  normalised  seconds
piqa                        1838    0.6100    0.0110      0.7200     12.3
gsm8k                       1319    0.4000    0.0130           -     99.0  (strict 0.2500)  (66 without a final answer)
mmlu                       14042    0.3000         -           -      1.0  (2 prompts cut)
wikitext                      62    9.5000         -           -      1.0  (word_perplexity)
"""
ROWS = {
    "piqa": {"n": 1838, "seconds": 12.34, "acc_norm": 0.72, "acc_norm_stderr": 0.022, "acc": 0.61, "acc_stderr": 0.011},
    "gsm8k": {
        "n": 1319, "seconds": 99.0, "exact_match_strict": 0.25, "exact_match_strict_stderr": 0.012,
        "exact_match_flexible": 0.4, "exact_match_flexible_stderr": 0.013, "without_answer": 0.05,
        "without_answer_stderr": 0.006,
    },
    "mmlu": {"n": 14042, "seconds": 1.0, "cut_contexts": 2, "acc": 0.3, "acc_stderr": None},
    "wikitext": {"n": 62, "seconds": 1.0, "word_perplexity": 9.5, "word_perplexity_stderr": None},
}  # fmt: skip


def test_the_table_has_each_number_in_its_column():
    lines = [line(task, {"cut_contexts": 0} | row) for task, row in ROWS.items()]
    assert "\n".join([HEAD, *lines]) + "\n" == TABLE


def test_the_seed_decides_what_is_sampled(tiny_base, in_tmp_path, tmp_path, monkeypatch):
    known = catalogue.load

    def sampled(*asked):
        loaded = known(*asked)
        settings = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 8, "until": []}
        loaded["sums"]["tasks"]["sums"].set_config(key="generation_kwargs", value=settings)
        return loaded

    def said(*seed) -> list[str]:
        assert main(["evaluate", "--base", tiny_base, "--tasks", "sums", "--limit", "2", "--out", "r.json", *seed]) == 0
        return [question["answer"] for question in json.loads((tmp_path / "r.json").read_text())["questions"]]

    monkeypatch.setattr(catalogue, "load", sampled)
    assert said() == said("--seed", "0") != said("--seed", "1")


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_results_file_has_a_line_for_each_question(tiny_base, in_tmp_path, tmp_path, capsys):
    assert main(["evaluate", "--base", tiny_base, "--tasks", "categories,sums", "--limit", "2", "--out", "r.json"]) == 0
    text = (tmp_path / "r.json").read_text()
    found = json.loads(text)
    assert set(found) == {
        "bitune_pl", "versions", "model", "config", "settings", "seconds", "known_before", "tasks", "questions",
    }  # fmt: skip
    said = {"run": None, "base": tiny_base, "method": "plain", "adapter": "none"}
    computed = {
        "theta_init": None,
        "dtype": name_of_dtype(usual_dtype()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else usual_device().type,
        "threads": torch.get_num_threads(),
    }
    assert found["model"].items() >= (said | computed).items() and len(found["model"]["base_fingerprint"]) > 8
    assert found["model"]["date"].startswith("20")
    assert found["config"] is None
    assert found["settings"]["tasks"] == ["categories", "sums"] and found["settings"]["limit"] == 2
    assert found["settings"]["splits"] == {"categories": "validation", "sums": "validation"}
    told = capsys.readouterr()
    assert "note: categories, sums: the test rows are from split validation" in told.err
    assert set(found["tasks"]["categories"]) == {
        "n", "seconds", "cut_contexts", "acc", "acc_stderr", "acc_norm", "acc_norm_stderr",
    }  # fmt: skip
    lines = text.splitlines()
    assert lines[-1] == "]}" and [json.loads(row.rstrip(",")) for row in lines[-5:-1]] == found["questions"]
    assert [(q["task"], q["index"]) for q in found["questions"]] == [
        (t, i) for t in ("categories", "sums") for i in range(2)
    ]
    assert all(len(question["prompt_hash"]) == 16 for question in found["questions"])
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["r.json"]
    assert "The results are in r.json." in told.out


def test_a_group_is_weighted_by_questions(tmp_path, bitune, encoder):
    subjects = [path.stem for path in (catalogue.TASKS / "mmlu").glob("[a-z]*.yaml") if path.stem != "mmlu"]
    rows = [
        {"question": f"{subject} {i}?", "choices": list("abcd"), "answer": i % 4, "subject": subject}
        for subject in subjects
        for i in range(9 if subject == "anatomy" else 1)
    ]
    (tmp_path / "mmlu").mkdir()
    (tmp_path / "mmlu/test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = evaluate(bitune, encoder, ["mmlu"], tmp_path, progress=False)
    tasks = found["tasks"]
    assert len(subjects) == 57 and list(tasks)[0] == "mmlu" and set(tasks) == {"mmlu", *(f"mmlu_{s}" for s in subjects)}
    assert (tasks["mmlu"]["n"], tasks["mmlu_anatomy"]["n"], tasks["mmlu_virology"]["n"]) == (65, 9, 1)
    assert tasks["mmlu"]["acc"] == pytest.approx(sum(question["acc"] for question in found["questions"]) / 65)
    assert tasks["mmlu_anatomy"]["acc"] != pytest.approx(tasks["mmlu"]["acc"])
    assert {question["task"] for question in found["questions"]} == set(tasks) - {"mmlu"}
    (tmp_path / "mmlu/test.jsonl").write_text(
        "\n".join(map(json.dumps, rows[:-1]))
    )  # read anew, by the next evaluation
    with pytest.raises(ValueError, match=f"no rows of the subject {subjects[-1]}"):
        evaluate(bitune, encoder, ["mmlu"], tmp_path, progress=False)


OF_LM_EVAL = """
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
doc_to_text: "The capital of {{{{land}}}} is"
doc_to_target: " {{{{city}}}}"
"""
CHOSEN = """output_type: loglikelihood
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
SAID = """output_type: generate_until
generation_kwargs: {until: ["."], max_gen_toks: 4, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
filter_list:
  - {name: strict, filter: [{function: take_first}]}
  - {name: loose, filter: [{function: lowercase}, {function: take_first}]}
"""


@pytest.mark.parametrize(
    ("kind", "metrics"), [(CHOSEN, ["acc", "perplexity"]), (SAID, ["exact_match_loose", "exact_match_strict"])]
)
def test_a_task_of_lm_evals_own_works_too(kind, metrics, bitune, encoder, tmp_path, monkeypatch):
    rows = [{"land": "France", "city": "Paris"}, {"land": "Poland", "city": "Warsaw"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "capitals.yaml").write_text(OF_LM_EVAL.format(rows=tmp_path / "rows.jsonl") + kind)
    known = catalogue.TaskManager(include_path=[str(catalogue.TASKS), str(tmp_path)], include_defaults=False)
    ours = catalogue.manager
    monkeypatch.setattr(
        catalogue, "manager", lambda *a, all_of_lm_eval=False, **k: known if all_of_lm_eval else ours(*a, **k)
    )
    monkeypatch.setattr(catalogue, "is_of_lm_eval", lambda name: name == "capitals")
    found = evaluate(bitune, encoder, ["categories", "capitals"], limit=2, progress=False)
    scores = found["tasks"]["capitals"]
    assert [name for name in sorted(scores) if f"{name}_stderr" in scores] == metrics
    assert [q["task"] for q in found["questions"]] == ["categories"] * 2 + ["capitals"] * 2
    assert scores["n"] == 2 and line("capitals", scores).split()[:2] == ["capitals", "2"]
    results.write(found, tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["tasks"]["capitals"]["n"] == 2


def test_one_question_has_no_standard_error(bitune, encoder):
    found = evaluate(bitune, encoder, ["categories"], limit=1, progress=False)["tasks"]["categories"]
    assert found["acc_stderr"] is None and " - " in line("categories", found)


def test_cut_prompts_are_counted_in_the_results_and_in_the_table(bitune, encoder):
    found = evaluate(bitune, encoder, ["categories"], limit=4, max_length=32, progress=False)["tasks"]["categories"]
    assert found["cut_contexts"] == 4 and "(4 prompts cut)" in line("categories", found)


def test_evaluating_leaves_modes_gradients_and_random_state(tiny_base, encoder):
    """What the callback in training builds on."""
    model = built(tiny_base, adapter_settings={"lora_dropout": 0.5}).train()
    before, state = [m.training for m in model.modules()], torch.random.get_rng_state()
    evaluate(model, encoder, ["categories"], limit=2, progress=False)
    assert [m.training for m in model.modules()] == before and torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


# -- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--out", "nowhere/r.json"], "there is no folder nowhere; make it first"),
        (["--out", "."], "--out . is a folder: name a file in it, such as results.json."),
        (["--limit", "0"], "--limit is a number of rows, at least 1, not 0"),
        (["--max-length", "1"], "--max-length is a number of positions"),
        (["--limit", str(2**63)], "--limit is a number of rows, at least 1, not 9223372036854775808"),
        (["--seed", "-1"], "--seed is a whole number from 0 to 4294967295, not -1"),
        (["--out", "a" * 250], "the name is too long for a file"),
        (["--task", "piqa"], "There is no option --task (did you mean --tasks?); bitune evaluate --help"),
        (["--xyz=1"], "There is no option --xyz; bitune evaluate --help"),
        (["--run", "x"], "Say which model, by one of the two: --run FOLDER"),
        (["--tasks", "caf\udce9.jsonl"], "is no text in UTF-8: rename that file or folder"),
    ],
)
def test_bad_input_is_one_sentence_before_the_model_is_opened(argv, message, in_tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bitune_pl.evaluation.run.open_either", None)
    assert main(["evaluate", "--base", "x", "--tasks", "categories", *argv]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert message in said


def test_a_misspelt_option_is_told_before_a_missing_one(capsys):
    assert main(["evaluate", "--base", "x", "--task", "piqa"]) == 2
    assert "There is no option --task (did you mean --tasks?)" in capsys.readouterr().err


# -- an evaluation that was stopped -------------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.fixture
def reads(monkeypatch):
    """How many samples were read; after so many batches, the power goes off."""
    seen, read = {"samples": 0, "batches": 0, "stop": None}, Bitune.read

    def counted(self, samples, *more):
        if seen["batches"] == seen["stop"]:
            raise Stop
        seen["samples"], seen["batches"] = seen["samples"] + len(samples), seen["batches"] + 1
        return read(self, samples, *more)

    monkeypatch.setattr(Bitune, "read", counted)
    monkeypatch.setitem(__import__("bitune_pl.evaluation.harness").evaluation.harness.TOKENS, "cpu", 600)
    return seen


def test_a_stopped_evaluation_goes_on_where_it_was(tiny_base, in_tmp_path, tmp_path, reads, capsys):
    command = ["evaluate", "--base", tiny_base, "--tasks", "categories", "--limit", "20"]
    assert main([*command, "--out", "whole.json"]) == 0
    batches, all_samples = reads["batches"], reads["samples"]
    assert batches >= 4
    reads |= {"samples": 0, "batches": 0, "stop": 2}
    with pytest.raises(Stop):
        main([*command, "--out", "r.json"])
    (left,) = tmp_path.glob("r.json.*.unfinished")
    left.write_text(left.read_text() + '["0123456789abcdef", [-1.0, fal')  # the power went off while a line was written
    done, reads["samples"], reads["stop"] = reads["samples"], 0, None
    assert main([*command, "--out", "r.json"]) == 0
    assert 0 < reads["samples"] == all_samples - done < all_samples
    assert "answers (each choice is one) are known from an evaluation that was stopped" in capsys.readouterr().out
    whole, resumed = (json.loads((tmp_path / name).read_text()) for name in ("whole.json", "r.json"))
    assert resumed["questions"] == whole["questions"] and not left.exists()
    assert whole["known_before"] == 0 < resumed["known_before"]


def test_an_evaluation_with_other_settings_leaves_the_answers_of_a_stopped_one(tiny_base, in_tmp_path, tmp_path, reads):
    command = ["evaluate", "--base", tiny_base, "--tasks", "categories", "--limit", "20", "--out", "r.json"]
    reads["stop"] = 2
    with pytest.raises(Stop):
        main(command)
    (left,) = tmp_path.glob("r.json.*.unfinished")
    before, reads["stop"] = left.read_bytes(), None
    assert main([*command, "--max-length", "256", "--tasks", "categories,sums"]) == 2  # refused
    assert main([*command, "--limit", "3"]) == 0
    assert left.read_bytes() == before
    assert main(command) == 0 and not left.exists()


@pytest.mark.parametrize(
    "text",
    ['{"question": "Why?", "choices": ["a", "b"], "answer": 0}\n', "model: {base: smollm2}\n"],
    ids=["task", "config"],
)
def test_a_file_that_is_no_results_is_not_written_over(text, tiny_base, in_tmp_path, tmp_path, capsys):
    (tmp_path / "mine").write_text(text)
    command = ["evaluate", "--base", tiny_base, "--tasks", "categories", "--limit", "1", "--out"]
    assert main([*command, "./mine"]) == 2
    assert "--out mine holds something else than results" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == text
    (tmp_path / "r.json").touch()
    assert [main([*command, "r.json"]) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("said", [b"data: [a, b\nmodel: {x", b"a: \xff", b"- a"])
def test_a_damaged_config_of_a_run_is_said_before_anything_is_scored(said, bitune, encoder, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_bytes(said)
    (tmp_path / "config.yaml").write_bytes(said)  # of something else: a run's folder stands alone
    monkeypatch.setattr(BituneLM, "_read", None)
    for folder in ("run", "run/model"):
        with pytest.raises(ValueError, match="run/config.yaml is no"):
            evaluate(bitune, encoder, ["categories"], run=str(tmp_path / folder), progress=False)
    assert results.config_of(str(tmp_path / "copied")) is None


@pytest.mark.parametrize(
    ("out", "whole", "message"),
    [
        (["--out", "r.json"], 1, "The same command goes on from there."),
        (["--out", "r.json"], 0, "No answer is whole yet: the same command would begin anew."),
        ([], 1, "With --out FILE the same command would go on."),
    ],
)
def test_ctrl_c_says_how_to_go_on(tiny_base, in_tmp_path, monkeypatch, capsys, out, whole, message):
    reads, read = [], BituneLM._read

    def interrupted(lm, samples):
        reads.append(samples)
        if len(reads) > whole:
            raise KeyboardInterrupt
        return read(lm, samples)

    monkeypatch.setattr(harness, "TOKENS", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr(BituneLM, "_read", interrupted)
    assert main(["evaluate", "--base", tiny_base, "--tasks", "categories", "--limit", "2", *out]) == 130
    assert f"bitune: Stopped. {message}" in capsys.readouterr().err


def test_ctrl_c_while_the_model_is_opened(in_tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bitune_pl.evaluation.run.open_either", interrupted)
    assert main(["evaluate", "--base", "x", "--tasks", "categories", "--out", "r.json"]) == 130
    assert "bitune: Stopped. Nothing was asked yet." in capsys.readouterr().err


def test_another_model_or_setting_uses_nothing_of_it(tiny_base, encoder, tmp_path):
    one, path = built(tiny_base), tmp_path / "r.json"
    finished = Finished(path, results.fingerprint(one, encoder, max_length=None))
    evaluate(one, encoder, ["categories"], limit=3, finished=finished, progress=False)
    finished.close()
    assert len(Finished(path, results.fingerprint(one, encoder, max_length=None)).answers) == len(finished.answers) > 3
    prints = {results.fingerprint(one, encoder, max_length=None), results.fingerprint(one, encoder, max_length=64)}
    for change in ("theta", "adapter", "theta_init"):
        other = built(tiny_base, theta_init=0.02 if change == "theta_init" else 0.01)
        parameter = (
            other.theta_k if change == "theta" else next(p for n, p in other.named_parameters() if "lora_B" in n)
        )
        parameter.data.view(-1)[0] += 0 if change == "theta_init" else 1e-6
        prints.add(results.fingerprint(other, encoder, max_length=None))
    prints |= {results.fingerprint(built(tiny_base, "no_mixing"), encoder, max_length=None)}
    scaled = built(tiny_base, adapter_settings={"lora_alpha": 8})  # the same tensors, which count for more
    prints |= {results.fingerprint(scaled, encoder, max_length=None)}
    assert len(prints) == 7
    assert not Finished(path, next(iter(prints - {results.fingerprint(one, encoder, max_length=None)}))).answers


def test_every_trained_weight_changes_the_fingerprint(tiny_base, encoder):
    model = built(tiny_base, start_token="<sep>")
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    prints = [results.fingerprint(model, encoder)]
    for parameter in trained.values():
        parameter.data.view(-1)[-1] += 1e-6
        prints.append(results.fingerprint(model, encoder))
    assert len(set(prints)) == len(trained) + 1
    assert trained.keys() >= {"theta_k", "theta_v"} and any("start_token" in name for name in trained)


def test_another_base_or_tokenizer_or_start_token_changes_the_fingerprint(plain, tiny_base, encoder):
    other, tokenizer, opened = load_decoder(tiny_base, dtype=torch.float32), load_tokenizer(tiny_base), copy(encoder)
    other.lm_head.weight.data *= 1.5
    tokenizer.add_tokens(["a new one"])
    opened.opening = [encoder.tokenizer.bos_token_id]
    bases = other, load_decoder(tiny_base, dtype=torch.bfloat16)
    models = [plain, *(Bitune.build(base, "plain", "none") for base in bases)]
    encoders = [Encoder(tokenizer), opened, *(Encoder(encoder.tokenizer, start_token=i) for i in (2, 3))]
    prints = [results.fingerprint(model, encoder) for model in models]
    other.generation_config.repetition_penalty = 1.5
    prints.append(results.fingerprint(models[1], encoder))
    assert len({*prints, *(results.fingerprint(plain, one) for one in encoders)}) == 8
    assert results.fingerprint(built(tiny_base, "plain", "none"), Encoder(load_tokenizer(tiny_base))) == prints[0]


def test_H04_an_impossible_budget_stops_all_tasks_before_the_first(tiny_base, in_tmp_path, tmp_path, capsys):
    command = ["evaluate", "--base", tiny_base, "--tasks", "categories,sums", "--limit", "2", "--out", "r.json"]
    assert main([*command, "--max-length", "256"]) == 2
    said = capsys.readouterr()
    assert (
        "Task sums, sums validation row 1: beside 256 new tokens nothing is left of the prompt, for 256 pos" in said.err
    )
    assert "categories" not in said.out and not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    "line",
    ['["a", [NaN, false]]', '["a", null]', '["a", ["x", true]]', '["a", [1.0]]', '[["a"], [1.0, true]]', "[" * 10_000],
)
def test_what_is_no_answer_is_not_taken_up(tmp_path, line):
    finished = Finished(tmp_path / "x", "me")
    finished.add({"b": (-1.0, True), "c": "text", "d": -2.5})
    finished.close()
    finished.path.write_text(finished.path.read_text() + line + "\n")
    assert Finished(tmp_path / "x", "me").answers == {"b": (-1.0, True), "c": "text", "d": -2.5}


def test_rolling_texts_are_not_read_twice(plain, encoder, tmp_path, monkeypatch):
    said = asked(("dog",), ("apple pie",), ("cat",), kind="loglikelihood_rolling")
    finished = Finished(tmp_path / "x", digest("me"))
    lm = BituneLM(plain, encoder, finished=finished, progress=False, together=2)
    first = lm.loglikelihood_rolling(said)
    assert len(finished.answers) == 3
    monkeypatch.setattr(BituneLM, "_read", None)
    assert lm.loglikelihood_rolling(said) == first


def test_what_is_known_is_not_asked_again(bitune, encoder, tmp_path, monkeypatch):
    chosen = asked(("Question: dog?\n\nAnswer:", " apple"), ("Question: dog?\n\nAnswer:", " dog"), ("", "dog"))
    said = asked(
        ("dog", {"until": ["."], "max_gen_toks": 4}), ("apple", {"until": [], "max_gen_toks": 3}), kind="generate_until"
    )

    def answers(finished) -> tuple[list, list]:
        lm = BituneLM(bitune, encoder, finished=finished, progress=False)
        return lm.loglikelihood(chosen), lm.generate_until(said)

    finished = Finished(tmp_path / "x", digest("me"))
    first = answers(finished)
    finished.close()
    monkeypatch.setattr(BituneLM, "_read", None)
    monkeypatch.setattr(BituneLM, "_continue", None)
    assert answers(Finished(tmp_path / "x", digest("me"))) == first


def test_a_tag_is_its_tasks(bitune, encoder, tmp_path, monkeypatch):
    (tmp_path / "mmlu").mkdir()
    subjects = [path.stem for path in (catalogue.TASKS / "mmlu").glob("[a-z]*.yaml") if path.stem != "mmlu"]
    rows = [{"question": f"{s}?", "choices": list("abcd"), "answer": 1, "subject": s} for s in subjects]
    (tmp_path / "mmlu/test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = []
    found = evaluate(
        bitune,
        encoder,
        ["mmlu_subjects"],
        tmp_path,
        progress=False,
        tell=lambda task, row: told.append((task, row["n"])),
    )
    assert sorted(told) == sorted((f"mmlu_{subject}", 1) for subject in subjects)
    assert set(found["tasks"]) == {f"mmlu_{subject}" for subject in subjects}


def test_drawn_examples_are_those_of_simple_evaluate_each_time(plain, encoder):
    """A task of lm-eval's that puts two examples before the question, drawn at random."""

    def rows(**_) -> dict[str, Dataset]:
        asked = [{"q": f"What is {i} plus {i}?", "c": [str(2 * i), str(2 * i + 1)], "g": 0} for i in range(40)]
        return {"train": Dataset.from_list(asked), "test": Dataset.from_list(asked[:3])}

    config = {
        "task": "drawn", "custom_dataset": rows, "training_split": "train", "fewshot_split": "train",
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "{{c}}",
        "doc_to_target": "{{g}}", "num_fewshot": 2, "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    manager = TaskManager(include_defaults=False)
    lm = BituneLM(plain, encoder, progress=False)
    stock = lm_eval.simple_evaluate(lm, tasks=[dict(config)], task_manager=manager, bootstrap_iters=0)
    expected = [sample["prompt_hash"][:16] for sample in stock["samples"]["drawn"]]
    loaded = {name: manager.load([dict(config)]) for name in ("drawn", "asked_twice")}
    for _ in range(2):
        found = evaluate(plain, encoder, loaded, progress=False)
        assert [question["prompt_hash"] for question in found["questions"]] == expected
        first, second = (one["tasks"]["drawn"].instances for one in loaded.values())
        assert [request.args for request in first] == [request.args for request in second]


def test_repeated_requests_keep_answers_of_their_own(tmp_path):
    requests = [("a", {}), ("b", {}), ("a", {}), ("a", {})]
    finished = Finished(tmp_path / "x", digest("me"))
    Asked(finished, "generate_until", requests).add({0: "one", 1: "two", 3: "four"})
    finished.close()
    again = Asked(Finished(tmp_path / "x", digest("me")), "generate_until", requests)
    assert again.known == {0: "one", 1: "two", 3: "four"}
    assert not Asked(Finished(tmp_path / "x", digest("me")), "loglikelihood", requests).known


def test_answers_are_known_to_the_next_call_too(plain, encoder, tmp_path, monkeypatch):
    """As in a notebook, where a call that was stopped is made again with the same object."""
    finished = Finished(tmp_path / "x", digest("me"))
    evaluate(plain, encoder, ["sums"], limit=2, finished=finished, progress=False)
    known = dict(finished.answers)
    monkeypatch.setattr(BituneLM, "_continue", None)
    again = evaluate(plain, encoder, ["sums"], limit=2, finished=finished, progress=False)
    assert finished.answers == known and again["known_before"] == len(known) == 2


def test_a_later_task_does_not_take_the_answer_of_an_earlier_one(tmp_path):
    """Sampled answers to the same prompt differ, also when two tasks ask it."""
    finished = Finished(tmp_path / "x", digest("me"))
    first, second = (Asked(finished, "generate_until", [("a", {})]) for _ in range(2))
    first.add({0: "one"})
    second.add({0: "two"})
    finished.close()
    again = Finished(tmp_path / "x", digest("me"))
    assert [Asked(again, "generate_until", [("a", {})]).known for _ in range(3)] == [{0: "one"}, {0: "two"}, {}]


def test_a_full_disk_is_said_with_the_files_name(tmp_path, monkeypatch):
    finished = Finished(tmp_path / "x", digest("me"))
    finished.add({"a": "b"})
    monkeypatch.setattr(finished.file, "flush", lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match=rf"No space left on device: .*x[.]{digest('me')[:8]}"):
        finished.add({"c": "d"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"part": "dev"}, "The part of a task is test, validation, train, not 'dev'"),
        ({"max_length": 1}, "takes a number of positions from 2 to 1024, what the decoder was made for, not 1"),
        ({"max_length": 1025}, "takes a number of positions from 2 to 1024, what the decoder was made for, not 1025"),
    ],
)
def test_what_cannot_be_is_said_from_python_too(change, message, bitune, encoder, monkeypatch):
    monkeypatch.setattr(BituneLM, "_read", None)
    with pytest.raises(ValueError, match=message):
        evaluate(bitune, encoder, "categories", limit=2, progress=False, **change)


QUESTION = {"question": "Which?", "choices": ["one", "two"], "answer": 1}


def test_of_a_users_own_file_every_row_is_scored_and_those_left_out_are_told(tiny_base, in_tmp_path, tmp_path, capsys):
    rows = [QUESTION | {"question": f"Which {i}?"} for i in range(12)] + [QUESTION | {"question": " "}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["evaluate", "--base", tiny_base, "--tasks", "mine.jsonl,./mine.jsonl", "--out", "r.json"]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["tasks"]["mine.jsonl"]["n"] == len(found["questions"]) == 12, "the same file is one task"
    said = capsys.readouterr().err
    assert "note: mine.jsonl (test), rows scored: 12 of 13: 1 " in said and "mine.jsonl line 13" in said


def test_answers_are_kept_until_the_results_are_written(tiny_base, in_tmp_path, tmp_path, monkeypatch, capsys):
    argv = ["evaluate", "--base", tiny_base, "--tasks", "categories", "--limit", "3", "--out", "r.json"]
    with monkeypatch.context() as patch:
        patch.setattr(results, "write", lambda *_: (_ for _ in ()).throw(OSError("No space left on device")))
        assert main(argv) == 2
    assert [path.suffix for path in tmp_path.glob("r.json*")] == [".unfinished"]
    assert main(argv) == 0 and "12 answers (each choice is one) are known" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("r.json*")] == ["r.json"]


def test_a_line_cut_within_a_character_is_dropped(tmp_path):
    finished = Finished(tmp_path / "x", "me")
    finished.add({"a": "漢"})
    finished.close()
    with finished.path.open("ab") as file:
        file.write('["b", "漢'.encode()[:-1])
    assert Finished(tmp_path / "x", "me").answers == {"a": "漢"}


def test_a_group_and_its_own_subject_hold_each_question_once(tmp_path, bitune, encoder):
    subjects = [path.stem for path in (catalogue.TASKS / "mmlu").glob("[a-z]*.yaml") if path.stem != "mmlu"]
    rows = [{"question": f"{s}?" * 30, "choices": list("abcd"), "answer": 1, "subject": s} for s in subjects]
    (tmp_path / "mmlu").mkdir()
    (tmp_path / "mmlu/test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = evaluate(bitune, encoder, ["mmlu", "mmlu_anatomy"], tmp_path, max_length=60, progress=False)
    assert [q["task"] for q in found["questions"]].count("mmlu_anatomy") == 1
    assert found["tasks"]["mmlu_anatomy"]["cut_contexts"] == 1


def test_weights_that_are_no_numbers_score_nothing(tiny_base, encoder):
    broken = built(tiny_base)
    with torch.no_grad():
        next(p for p in broken.parameters() if p.requires_grad).fill_(float("nan"))
    with pytest.raises(ValueError, match="categories: the model gives a log-likelihood that is no number"):
        evaluate(broken, encoder, ["categories"], limit=2, progress=False)
