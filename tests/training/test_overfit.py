"""What a run learns by heart it says again, to the end and no further (A04)."""

import json

from tiny_base import CPU

from bitune_pl.cli import main
from bitune_pl.evaluation.run import open_run

SUMS = {
    "Tom has 3 apples and buys 4. How many?": "3 + 4 = 7.\n#### 7",
    "Ann had 9 pens and lost 2. How many?": "9 - 2 = 7, all hers.\n#### 7",
    "A box holds 6 cups. How many do 5 hold?": "5 * 6 = 30.\n#### 30",
    "Half of 8 is what?": "8 / 2 = 4.\n#### 4",
}


def test_four_worked_answers_end_where_they_were_taught_to(tiny_base, tmp_path):  # noqa: F811
    rows = [{"question": question, "answer": answer} for question, answer in SUMS.items()]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = [
        "--model.base",
        tiny_base,
        "--model.base_dtype",
        "float32",
        "--model.adapter",
        "full",
        "--model.lr",
        "0.02",
    ]
    assert main(["fit", *model, *CPU, "--data.source", "sums.jsonl", "--trainer.max_steps", "80"]) == 0
    (run,) = (tmp_path / "runs" / "sums").iterdir()
    opened = open_run(run)
    prompts = [opened.encoder.prompt(opened.template.fill({"question": question})) for question in SUMS]
    said = opened.model.generate(prompts, max_new_tokens=64, do_sample=False, eos_token_id=opened.encoder.eos)
    assert [opened.encoder.decode(ids) for ids in said] == [f" {answer}" for answer in SUMS.values()]
    assert all(ids[-1] == opened.encoder.eos and len(ids) < 64 for ids in said)
