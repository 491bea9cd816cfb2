"""The teacher's prompts, its replies, and what a student learns from them."""

import json
import re

import pytest

from bitune_pl.data.chain_of_thought import TASKS, Unparsable, final_answer, parse
from bitune_pl.data.sources import load

REPLY = "<step>\nSmith is a name.\n</step>\n<step> Jan ran. </step>\n<answer>\n{}\n</answer>"


def test_the_prompts_are_those_of_the_paper(shared):
    paper = (shared / "paper" / "PAPER.md").read_text().partition("## 8. ")[2]
    for title, task in {"PIQA": "piqa", "ARC": "arc_challenge", "CSQA": "commonsense_qa", "GSM8K": "gsm8k"}.items():
        printed = re.search(rf"\n{title}\n```\n(.*?)\n```", paper, re.DOTALL)[1]
        assert printed == TASKS[task].instruction + "\n[query]"


def test_how_the_teacher_is_asked():
    assert TASKS["piqa"].prompt("Why?", ("a", "b")).endswith("</answer>\nQuestion: Why?\n\nChoices:\nA. a\nB. b")
    assert TASKS["arc_challenge"].prompt("Why?", ("a", "b")).endswith("Choices:\nA: a\nB: b")
    assert TASKS["gsm8k"].prompt("How many {x}?", ()).endswith("</answer>\nQuestion: How many {x}?")


@pytest.mark.parametrize(
    ("answer", "choices", "final"),
    [
        ("B", 2, "B"),
        ("(B)", 2, "B"),
        ("A.", 2, "A"),
        ("72", 0, "72"),
        ("$1,072.00", 0, "1072"),
        ("-5.", 0, "-5"),
        ("0.50", 0, "0.5"),
    ],
)
def test_replies(answer, choices, final):
    assert parse(REPLY.format(answer), choices) == (["Smith is a name.", "Jan ran."], final)


@pytest.mark.parametrize(
    ("reply", "choices"),
    [
        ("", 2),
        ("The answer is B.", 2),
        (REPLY.format("C"), 2),
        (REPLY.format("A or B"), 2),
        (REPLY.format("b"), 2),
        (REPLY.format("many"), 0),
        (REPLY.format("72 clips"), 0),
        (REPLY.format(""), 0),
        ("<answer>B</answer>", 2),
        ("<step></step><answer>B</answer>", 2),
        (REPLY.format("A") + "<answer>B</answer>", 2),
        ("<step>Jan ran.</step><answer>B", 2),
    ],
)
def test_replies_that_do_not_keep_to_the_structure(reply, choices):
    with pytest.raises(Unparsable):
        parse(reply, choices)


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        (" So it is. Answer: B", "B"),
        ("Answer: 3\n\nSo no.\n\nAnswer: 1,072.", "1072"),
        ("Answer: (C) a pen", "C"),
        ("Answer: $18 a day", "18"),
        ("Answer:", None),
        ("It is B", None),
        ("Answer: none", None),
    ],
)
def test_final_answers(answer, final):
    assert final_answer(answer) == final


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_what_a_student_learns(tmp_path):
    row = {
        "question": "Why?",
        "choices": ["x", "y"],
        "steps": ["It is so.", "So it is."],
        "answer": "B",
        "reply": "...",
    }
    write(tmp_path / "arc_challenge_cot" / "train.jsonl", row)
    example = load("arc_challenge_cot", "train", tmp_path).examples[0]
    assert example.prompt == "Question: Why?\n\nChoices:\nA: x\nB: y\n\nSteps:"
    assert example.answer == " It is so. So it is.\n\nAnswer: B" and final_answer(example.answer) == "B"
    write(tmp_path / "gsm8k_cot" / "train.jsonl", row | {"choices": [], "answer": "72"})
    example = load("gsm8k_cot", "train", tmp_path).examples[0]
    assert (example.prompt, final_answer(example.answer)) == ("Question: Why?\n\nSteps:", "72")


def test_a_student_is_tested_on_the_task_itself(tmp_path):
    choices = {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}
    write(tmp_path / "arc_challenge" / "test.jsonl", {"question": "Why?", "choices": choices, "answerKey": "3"})
    example = load("arc_challenge_cot", "test", tmp_path).examples[0]
    assert example.prompt == "Question: Why?\n\nChoices:\nA: x\nB: y\nC: z\n\nSteps:"
    assert len(example.answers) == 1 and final_answer(example.answer) == "C"
    write(tmp_path / "gsm8k" / "test.jsonl", {"question": "How many?", "answer": "1 + 1 = 2\n#### 1,002"})
    assert final_answer(load("gsm8k_cot", "test", tmp_path).examples[0].answer) == "1002"


def test_rationales_of_others(tmp_path):
    def piqa(label, verdict):
        return {"goal": "Boil", "sol1": "x", "sol2": "y", "label": label, "rationale": f"It is so.{verdict}"}

    verdict = " Thus, the answer is (b) y. And so on"
    rows = [piqa(1, verdict), piqa(0, verdict), piqa(0, "")]
    write(tmp_path / "cot_piqa_tinyllm" / "train.jsonl", *rows)
    loaded = load("cot_piqa_tinyllm", "train", tmp_path)
    assert [e.answer for e in loaded.examples] == [" It is so.\n\nAnswer: B", " It is so.\n\nAnswer: A"]
    assert [row.reason for row in loaded.dropped] == ["whose steps lead to a wrong answer"]
    rows = [{"question": "Q", "choices": c, "rationale": "So.", "answer": "x"} for c in (["y", "x"], ["x", "x"], ["y"])]
    write(tmp_path / "cot_csqa_ecqa" / "train.jsonl", *rows)
    loaded = load("cot_csqa_ecqa", "train", tmp_path)
    assert [e.answer for e in loaded.examples] == [" So.\n\nAnswer: B"] and len(loaded.dropped) == 2


def test_distilled_sets_are_not_on_the_hub():
    with pytest.raises(FileNotFoundError, match="piqa_cot is not on .*holds piqa_cot/train.jsonl, as `bitune distill`"):
        load("piqa_cot", "train")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("cot_gsm8k_flan", (7273, 200, 1319)),
        ("cot_csqa_ecqa", (6094, 198, 1221)),
        ("cot_piqa_tinyllm", (15913, 200, 1838)),
        ("cot_arc_challenge_tinyllm", (1006, 111, 1172)),
    ],
)
def test_shared_rationales(shared, name, sizes):
    parts = [load(name, part, shared / "data").examples for part in ("train", "validation", "test")]
    assert tuple(map(len, parts)) == sizes
    assert all(final_answer(example.answer) for part in parts for example in part)
