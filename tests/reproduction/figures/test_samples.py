"""Table 27: answers are those of the runs, in every format."""

import re

from bitune_pl.data.sources import load
from bitune_pl.evaluation.run import open_run
from bitune_pl.reproduction.figures import samples


def test_answers_are_those_of_the_runs(runs):
    examples = load("sums", "test", limit=3).examples
    answers = [samples.ask(open_run(runs[name]), examples, 8) for name in ("usual", "plain")]
    rows = samples.rows(examples, answers)
    for place, name in enumerate(("usual", "plain")):
        model, encoder, _ = open_run(runs[name])
        for row, example in zip(rows, examples, strict=True):
            [ids] = model.generate(
                [encoder.prompt(example.prompt)], max_new_tokens=8, do_sample=False, eos_token_id=encoder.eos
            )
            assert row.answers[place][0] == encoder.decode(ids).partition("\nQuestion:")[0].strip()
            assert (row.question, row.gold) == (example.prompt, example.answer.strip())


def test_right_is_the_number_at_the_end():
    assert samples._is_right("3 + 4 = 7 balls. #### 7", " It is 7.\n#### 7")
    assert not samples._is_right("7 - 1 = 6", "#### 7") and not samples._is_right("many", "#### 7")


def test_every_format_holds_every_answer_and_spoils_none():
    row = samples.Row("a | b < c\n$x$ #1", "#### 7", (("1 < 2\n**7**", True), ("x|y", False)))
    web, markdown, text = (write(["A", "B & C"], [row, row]) for write in (samples.web, samples.markdown, samples.text))
    assert web.count("1 &lt; 2<br>**7**") == 2 and "B &amp; C (0 of 2 right)" in web and "<script" not in web
    head, rule, *lines = markdown.splitlines()
    assert head == "| question | right answer | A (2 of 2 right) | B & C (0 of 2 right) |"
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in (head, rule, *lines)) and len(lines) == 2
    assert "1 < 2\n**7**" in text and "[B & C, wrong]\nx|y" in text and "A (2 of 2 right)" in text
