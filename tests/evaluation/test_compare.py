"""`bitune compare`: two files of results, question by question, and what files that do not match say."""

import json
import random

import pytest

from bitune_pl.cli import main
from bitune_pl.evaluation.compare import compare, read


def question(task, index, right, prompt="", **more):
    return {"task": task, "index": index, "prompt_hash": f"{task}{index}{prompt}", "gold": 1, "acc": right, **more}


def questions(task, outcomes, **more):
    return [question(task, index, int(right), **more) for index, right in enumerate(outcomes)]


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def to(name, rows, method="bitune"):
        model = {"run": None, "base": "smollm2", "method": method, "adapter": "lora"}
        (tmp_path / name).write_text(json.dumps({"model": model, "tasks": {}, "questions": rows}))
        return name

    return to


def rows_of(before, after, metric=None):
    return {row.name: row for row in compare(read(before), read(after), metric).rows()}


def test_other_types_of_the_base_are_told(write, tmp_path, capsys):
    for name, dtype in {"a.json": "bfloat16", "b.json": "float32"}.items():
        write(name, questions("piqa", [1, 0]))
        found = json.loads((tmp_path / name).read_text())
        found["model"]["dtype"] = dtype
        (tmp_path / name).write_text(json.dumps(found))
    assert main(["compare", "a.json", "b.json"]) == 0
    assert "A was scored in bfloat16, B in float32, which alone may move" in capsys.readouterr().out
    assert main(["compare", "a.json", "a.json"]) == 0
    assert "scored in" not in capsys.readouterr().out


def test_a_comparison_worked_out_by_hand(write, capsys):
    """Twelve questions, of which 2 only A and 6 only B answers right: 2 (1 + 8 + 28) / 256."""
    before, after = "110000001110", "001111111110"
    a = write("a.json", questions("piqa", map(int, before)), "plain")
    b = write("b.json", questions("piqa", map(int, after))[::-1])  # another order
    (row,) = rows_of(a, b).values()
    assert (row.n, row.before, row.after) == (12, pytest.approx(5 / 12), pytest.approx(9 / 12))
    assert row.gain.mean == pytest.approx(4 / 12) and row.gain.low < 4 / 12 < row.gain.high
    assert row.test == (2, 6, 0.2890625)
    assert main(["compare", a, b]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["A  a.json  plain, lora on smollm2", "B  b.json  bitune, lora on smollm2", "compared by acc"]
    assert said[5].split()[:5] == ["piqa", "12", "0.4167", "0.7500", "+0.3333"]
    assert said[5].split()[-3:] == ["2", "6", "0.29"] and len(said) == 6


def test_two_lines_over_all_tasks(write):
    """piqa gains 1/2 on 4 questions, arc_challenge nothing on 40."""
    a = write("a.json", questions("piqa", [0, 0, 1, 1]) + questions("arc_challenge", [1] * 40))
    b = write("b.json", questions("piqa", [1, 1, 1, 1]) + questions("arc_challenge", [1] * 40))
    found = rows_of(a, b)
    assert list(found) == ["piqa", "arc_challenge", "all questions", "mean of 2 tasks"]
    assert found["all questions"][:4] == ("all questions", 44, pytest.approx(42 / 44), 1.0)
    assert found["all questions"].test == (0, 2, 0.5)
    mean = found["mean of 2 tasks"]
    assert (mean.n, mean.before, mean.after, mean.gain.mean, mean.test) == (None, 0.75, 1.0, pytest.approx(0.25), None)


def test_the_subjects_of_mmlu_are_one_task(write):
    rows = [*questions("mmlu_astronomy", [1, 0]), *questions("mmlu_virology", [1, 1])]
    found = rows_of(write("a.json", rows), write("b.json", rows))
    assert [(row.name, row.n) for row in found.values()] == [("mmlu", 4)]


def test_each_task_by_the_metric_it_has(write, capsys):
    rows = questions("piqa", [1, 0], acc_norm=1)
    sums = [{**question("gsm8k", 0, 1), "exact_match_strict": 0, "exact_match_flexible": 1}]
    del sums[0]["acc"]
    a, b = write("a.json", rows + sums), write("b.json", rows + sums)
    assert rows_of(a, b)["gsm8k"].before == 1 and rows_of(a, b)["piqa"].before == 0.5
    assert (
        main(["compare", a, b]) == 0
        and "compared by acc (piqa), exact_match_flexible (gsm8k)" in capsys.readouterr().out
    )
    assert main(["compare", a, b, "--metric", "acc_norm"]) == 0
    said = capsys.readouterr().out
    assert "compared by acc_norm" in said and "gsm8k is left out: not all of its questions have acc_norm, but " in said
    assert main(["compare", a, b, "--metric", "f1"]) == 2
    assert "There is nothing to compare. piqa is left out" in capsys.readouterr().err


def test_only_questions_in_common_are_compared_and_that_is_said(write, capsys):
    a = write("a.json", questions("piqa", [1] * 10) + questions("social_i_qa", [1]))
    b = write("b.json", questions("piqa", [0] * 4) + questions("mmlu_astronomy", [1]))
    assert main(["compare", a, b]) == 0
    said = capsys.readouterr().out
    assert "piqa: 4 questions in common are compared, of 10 in a.json and 4 in b.json." in said
    assert "Only a.json holds social_i_qa." in said and "Only b.json holds mmlu." in said
    assert rows_of(a, b)["piqa"].n == 4


def test_a_score_that_is_not_right_or_wrong_has_no_test(write, capsys):
    a, b = (write(name, questions("piqa", [1, 0], f1=value)) for name, value in [("a.json", 0.25), ("b.json", 0.5)])
    assert main(["compare", a, b, "--metric", "f1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == "piqa 2 0.2500 0.5000 +0.2500 +0.2500 to +0.2500".split()


def mistake(capsys, *argv):
    assert main(["compare", *argv]) == 2
    said = capsys.readouterr()
    (line,) = said.err.strip().splitlines()
    assert not said.out
    return line


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (questions("social_i_qa", [1]), "no task in common: the first holds piqa, the second social_i_qa"),
        (questions("piqa", [1], prompt="other"), "read otherwise in the two files (1 and 1, none in common)"),
        ([question("piqa", 0, 1) | {"gold": 0}], "1 questions of piqa have the same prompt but another right answer"),
        ([question("piqa", 0, "yes")], "acc of question 0 of piqa in b.json is 'yes', not a score"),
        ([question("piqa", 0, float("nan"))], "acc of question 0 of piqa in b.json is nan, not a score"),
        (
            [question("piqa", 0, 10**400)],
            "acc of question 0 of piqa in b.json is 1000000000000000000000000000000000000000, not a score",
        ),
        ([question("piqa", 0, 1e308)], "acc of question 0 of piqa in b.json is 1e+308, not a score"),
        ([question("piqa", 0, 1) | {"task": 5}], "Question 1 of b.json lacks task, index or prompt_hash"),
        ([question("piqa", 0, 1) | {"prompt_hash": ["x"]}], "read otherwise in the two files"),
        ([question("piqa", 0, 1) | {"choices_hash": "other"}], "read otherwise in the two files"),
        (questions("\ud800", [1]), "no task in common: the first holds piqa, the second \\ud800"),
        (questions("piqa", [1]) * 2, "b.json holds question 0 of piqa twice"),
        ([], "b.json holds no questions"),
        ([{"task": "piqa"}], "Question 1 of b.json lacks task, index or prompt_hash"),
        (["piqa"], "Question 1 of b.json lacks task, index or prompt_hash"),
    ],
)
def test_results_that_do_not_match(write, capsys, rows, message):
    assert message in mistake(capsys, write("a.json", questions("piqa", [1])), write("b.json", rows))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "b.json is empty"),
        (b"{", "b.json is not JSON"),
        (b"\xff\xfe\x00", "b.json is not JSON"),
        (b"[1]", "b.json holds no questions"),
        (b"[" * 100_000, "b.json is not JSON"),
        (b'{"results": {}}', "b.json holds no questions"),
    ],
)
def test_files_that_are_no_results(write, capsys, tmp_path, content, message):
    (tmp_path / "b.json").write_bytes(content)
    line = mistake(capsys, write("a.json", questions("piqa", [1])), "b.json")
    assert message in line and "`bitune evaluate --out` wrote" in line


def test_a_number_that_is_no_score_is_no_metric(write, capsys):
    files = write("a.json", questions("piqa", [1])), write("b.json", questions("piqa", [1]))
    for name in ("gold", "index", "chosen"):
        assert f"not all of its questions have {name}" in mistake(capsys, *files, "--metric", name)


def test_a_file_that_is_not_there(capsys):
    assert ". is no file: name one that `bitune evaluate --out` wrote." in mistake(capsys, ".", "a.json")
    assert "There is no file nowhere.json; `bitune evaluate --out nowhere.json` writes one." in mistake(
        capsys, "nowhere.json", "nowhere.json"
    )
    assert "bitune compare --help lists what it takes" in mistake(capsys, "a.json")


def test_the_answer_does_not_depend_on_the_order_of_questions(write):
    draw = random.Random(0)
    a, b = ([question("piqa", i, draw.randint(0, 1)) for i in range(200)] for _ in "ab")
    there = rows_of(write("a.json", a), write("b.json", b))
    draw.shuffle(a)
    assert rows_of(write("a.json", a), write("b.json", b)) == there


def test_long_names_keep_the_columns_in_place(tmp_path, capsys):
    name = "/a/long/way/to/a/file/of/mine.csv"
    for file in ("a.json", "b.json"):
        (tmp_path / file).write_text(json.dumps({"questions": questions(name, [1, 0]) + questions("piqa", [1])}))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    head, *lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert {line[: head.index(" n ") + 2].split()[-1] for line in lines if line.startswith(("/a", "piqa"))} == {
        "2",
        "1",
    }
