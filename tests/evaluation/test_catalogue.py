"""Tasks: the data room's rows word for word, the paper's splits, and what an unknown name is told."""

import pytest
from evaluation_models import asked
from lm_eval.tasks._yaml_loader import load_yaml

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.sources import contents
from bitune_pl.data.sources import load as rows_of
from bitune_pl.evaluation import catalogue
from bitune_pl.evaluation.answers import number, worked

PAPER = {"piqa": 1838, "arc_challenge": 1172, "commonsense_qa": 1221, "social_i_qa": 1954, "gsm8k": 1319}


def requests(task, limit: int = 20) -> list:
    task.build_all_requests(limit=limit)
    return task.instances


@pytest.mark.parametrize("name", ["piqa", "arc_challenge", "commonsense_qa", "social_i_qa", "categories"])
def test_H03_the_strings_scored_are_the_data_rooms(name, shared, encoder):
    """One space between prompt and answer; ids that are those of training."""
    task = catalogue.load([name], shared / "data", limit=20)[name]["tasks"][name]
    asked_for, encoder = iter(requests(task)), Encoder(encoder.tokenizer, max_length=5000)
    for row in rows_of(name, "test", shared / "data", limit=20).examples:
        trained = encoder.training(row)
        for answer in row.answers:
            context, continuation = next(asked_for).args
            assert context == row.prompt and context.endswith("Answer:")
            assert continuation == answer and continuation[0] == " " and continuation[1] != " "
        ids = encoder.prompt(context).tolist()
        assert ids == trained.prompt.tolist()
        assert ids + trained.answers[0].tolist()[:-1] == encoder.prompt(context + row.answer).tolist()
    assert next(asked_for, None) is None and task.config.target_delimiter == " "


@pytest.mark.slow
def test_H03_the_strings_of_mmlu(shared):
    loaded = catalogue.load(["mmlu"], shared / "data", limit=4)
    subjects = {}
    examples = rows_of("mmlu", "test", shared / "data").examples
    for row, (_, said) in zip(examples, contents("mmlu", "test", shared / "data"), strict=True):
        subjects.setdefault(said.fields["subject"], []).append(row)
    tasks = loaded["mmlu"]["tasks"]
    assert set(tasks) == {f"mmlu_{subject}" for subject in subjects} and len(tasks) == 57
    for subject, rows in subjects.items():
        found = [(r.args, r.doc["gold"]) for r in requests(tasks[f"mmlu_{subject}"], 4)]
        assert found == [((row.prompt, answer), row.gold) for row in rows[:4] for answer in row.answers]
        assert found[2][0][1] == " (2)"


def test_H03_the_strings_of_generated_tasks(shared):
    loaded = catalogue.load(["gsm8k"], shared / "data", limit=4)
    rows = rows_of("gsm8k", "test", shared / "data", limit=4).examples
    assert [r.args[0] for r in requests(loaded["gsm8k"]["tasks"]["gsm8k"])] == [row.prompt for row in rows]


@pytest.mark.slow
def test_the_splits_are_the_papers(shared):
    loaded = catalogue.load([*PAPER, "mmlu"], shared / "data")
    assert {name: len(loaded[name]["tasks"][name].eval_docs) for name in PAPER} == PAPER
    assert sum(len(task.eval_docs) for task in loaded["mmlu"]["tasks"].values()) == 14042


@pytest.mark.parametrize(
    ("name", "same"),
    [("cot_piqa", "cot_piqa_tinyllm"), ("cot_gsm8k", "cot_gsm8k_flan"), ("cot_commonsense_qa", "cot_csqa_ecqa"),
     ("cot_arc_challenge", "arc_challenge_cot")],
)  # fmt: skip
def test_worked_answers_are_asked_for_in_the_trained_form(name, same, shared):
    one, other = catalogue.load([name], shared / "data", limit=3), catalogue.load([same], shared / "data", limit=3)
    found = [(r.args, r.doc["answer"]) for r in requests(one[name]["tasks"][name])]
    rows = rows_of(same, "test", shared / "data", limit=3).examples
    assert [(context, answer) for (context, _), answer in found] == [(row.prompt, row.answer) for row in rows]
    assert found == [(r.args, r.doc["answer"]) for r in requests(other[same]["tasks"][same])]
    assert all(context.endswith("\n\nSteps:") and answer.startswith(" Answer: ") for (context, _), answer in found)


GREEDY = {
    "do_sample": False, "max_gen_toks": 256, "until": ["\nQuestion:", "</s>", "<|im_end|>", "<|end_of_text|>"],
}  # fmt: skip
SAID = ["exact_match_strict", "exact_match_flexible", "without_answer"]
CHOSEN, PLACED = (("multiple_choice", None, None, metrics, 0) for metrics in (["acc", "acc_norm"], ["acc"]))
SUMMED, WORKED = (("generate_until", GREEDY, scores, SAID, 0) for scores in (number, worked))
SCORED = {
    "piqa": ({"source": "piqa"}, *CHOSEN),
    "arc_challenge": ({"source": "arc_challenge"}, *CHOSEN),
    "commonsense_qa": ({"source": "commonsense_qa"}, *CHOSEN),
    "social_i_qa": ({"source": "social_i_qa"}, *PLACED),
    "gsm8k": ({"source": "gsm8k"}, *SUMMED),
    "cot_piqa": ({"source": "piqa_cot"}, *WORKED),
    "cot_arc_challenge": ({"source": "arc_challenge_cot"}, *WORKED),
    "cot_commonsense_qa": ({"source": "commonsense_qa_cot"}, *WORKED),
    "cot_gsm8k": ({"source": "gsm8k_cot"}, *WORKED),
}


def scored(files: str) -> dict[str, tuple]:
    """How tasks are asked and scored, as their YAML files say."""
    said = [load_yaml(path) for path in catalogue.TASKS.glob(files) if path.stem != "mmlu"]
    names = "dataset_kwargs", "output_type", "generation_kwargs", "process_results", "metric_list", "num_fewshot"
    listed = [one | {"metric_list": [metric["metric"] for metric in one["metric_list"]]} for one in said]
    return {one["task"]: tuple(map(one.get, names)) for one in listed}


def test_how_each_task_is_asked_and_scored():
    assert scored("[a-z]*.yaml") == SCORED
    subjects = scored("mmlu/[a-z]*.yaml")
    assert len(subjects) == 57
    for name, how in subjects.items():
        assert how == ({"source": "mmlu", "subject": name.removeprefix("mmlu_")}, *PLACED)


def write(folder, name: str, lines: str):
    (folder / name).mkdir()
    for split in ("validation", "test"):
        (folder / name / f"{split}.jsonl").write_text(lines)


ARC = '{"question": "q", "choices": {"text": %s, "label": %s}, "answerKey": "%s"}\n'
FOUR, FIVE = '["a", "b", "c", "d"]', '["a", "b", "c", "d", "e"]'


def test_H08_golds_are_found_in_the_rows_own_labels(tmp_path):
    rows = [ARC % (FOUR, '["1", "2", "3", "4"]', 3), ARC % (FIVE, '["A", "B", "C", "D", "E"]', "E")]
    write(tmp_path, "arc_challenge", "".join([*rows, ARC % ('["a", "b", "c"]', '["A", "B", "C"]', "A")]))
    answers = '"answerA": "x", "answerB": "y", "answerC": "z"'
    write(tmp_path, "social_i_qa", f'{{"context": "c", "question": "q", {answers}, "label": "1"}}\n')
    loaded = catalogue.load(["arc_challenge", "social_i_qa"], tmp_path)
    docs = loaded["arc_challenge"]["tasks"]["arc_challenge"].eval_docs
    assert [doc["gold"] for doc in docs] == [2, 4, 0] and [len(doc["choices"]) for doc in docs] == [4, 5, 3]
    (doc,) = loaded["social_i_qa"]["tasks"]["social_i_qa"].eval_docs
    assert doc["gold"] == 0 and doc["choices"] == ["(0)", "(1)", "(2)"]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("commonsense_qa", ARC % (FIVE, '["A", "B", "C", "D", "E"]', "")),
        ("piqa", '{"goal": "g", "sol1": "a", "sol2": "b", "label": -1}\n'),
    ],
)
def test_H08_a_split_without_answers_is_refused_by_name(name, row, tmp_path):
    write(tmp_path, name, row)
    with pytest.raises(ValueError, match=f"no right answer in split 'validation' of {name}"):
        catalogue.load([name], tmp_path)


def test_a_file_of_ones_own_is_a_task(tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"question": "Which is a fruit?", "choices": ["apple", "dog"], "answer": 0}\n' * 12)
    task = catalogue.load([str(mine)], part="validation")[str(mine)]["tasks"][str(mine)]
    assert requests(task)[0].args[1] == " apple" and task.eval_docs[0]["gold"] == 0


def test_a_source_that_can_only_be_trained_on_is_refused(tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "a", "answer": " b"}\n' * 12)
    with pytest.raises(ValueError, match="has one answer to a prompt, so there is nothing to choose from"):
        catalogue.load([str(mine)], part="validation")


def test_an_unknown_task_is_told_the_nearest(monkeypatch):
    monkeypatch.setattr(catalogue, "is_of_lm_eval", lambda name: False)
    with pytest.raises(ValueError, match="no task 'comonsense_qa'; did you mean .*commonsense_qa"):
        catalogue.load(["comonsense_qa"])


def test_a_file_with_another_ending_is_told_which_are_read(tmp_path):
    (tmp_path / "mine.txt").write_text("question,choices,answer\n")
    with pytest.raises(ValueError, match="the path of a file that ends in .*csv"):
        catalogue.load([str(tmp_path / "mine.txt")])


def test_rows_from_another_split_are_told(shared, tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"question": "Which is a fruit?", "choices": ["apple", "dog"], "answer": 0}\n' * 12)
    loaded = catalogue.load(["piqa", "arc_challenge", "commonsense_qa", str(mine)], shared / "data", limit=1)
    assert catalogue.other_splits(loaded, "test") == {"validation": ["piqa", "commonsense_qa"]}
    loaded = catalogue.load(["gsm8k", "piqa", str(mine)], shared / "data", part="validation", limit=1)
    assert catalogue.other_splits(loaded, "validation") == {"test": ["gsm8k"]}


def test_data_of_lm_evals_own_task_that_is_not_there(monkeypatch):
    def load(self, names):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub.")

    monkeypatch.setattr(catalogue, "_spec", lambda name, ours: None)
    monkeypatch.setattr(catalogue.TaskManager, "load", load)
    with pytest.raises(ConnectionError, match="The data of piqa, a task of lm-eval's, is not there [(]Couldn't reach"):
        catalogue.load(["piqa"])


def test_lm_evals_own_list_is_not_read_for_our_tasks(monkeypatch, shared):
    monkeypatch.setattr(catalogue, "is_of_lm_eval", None)
    made = []
    manager = catalogue.manager
    monkeypatch.setattr(catalogue, "manager", lambda *a, **k: made.append(k) or manager(*a, **k))
    catalogue.load(["piqa", "categories"], shared / "data", limit=2)
    assert made == [{}]


def test_names_of_lm_evals_tasks_are_known():
    assert catalogue.is_of_lm_eval("hellaswag") and not catalogue.is_of_lm_eval("hellaswagg")
    assert catalogue.is_of_lm_eval("gpqa"), "a tag in a file without an ending"


@pytest.fixture
def without_lm_evals_list(monkeypatch):
    ours = catalogue.manager
    monkeypatch.setattr(catalogue, "manager", lambda *a, all_of_lm_eval=False: ours(*a))


def test_a_name_that_lm_eval_only_seems_to_have_is_unknown(monkeypatch, without_lm_evals_list):
    monkeypatch.setattr(catalogue, "is_of_lm_eval", lambda name: True)
    with pytest.raises(ValueError, match="There is no task 'Question'"):
        catalogue.load(["Question"])


def test_a_part_of_a_task_of_lm_evals_own_is_refused(monkeypatch, without_lm_evals_list):
    monkeypatch.setattr(catalogue, "_spec", lambda name, ours: None)
    with pytest.raises(
        ValueError, match="piqa is a task of lm-eval's, which knows what it is scored on: leave --part out"
    ):
        catalogue.load(["piqa"], part="train")


def test_a_row_of_lm_eval_is_no_row_of_the_data_room():
    """What the harness goes by when it moves white space."""
    assert "where" not in asked(("a ", "b"))[0].doc
