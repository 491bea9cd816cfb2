"""Scores of a live model: groups by their own name, and ranks that share the prompts."""

import json
import subprocess
import sys

import pytest

from bitune_pl.evaluation.live import LiveTasks
from bitune_pl.evaluation.run import open_base


@pytest.mark.slow
def test_the_limit_is_that_of_each_task_and_a_group_has_its_own_name(tiny_base, shared):
    opened = open_base(tiny_base)
    live = LiveTasks(["mmlu", "piqa", "categories"], str(shared / "data"), limit=1)
    scores = live.scores(opened.model, opened.encoder)
    assert {task: (set(own), own["n"]) for task, own in scores.items()} == {
        "mmlu": ({"acc", "n", "cut_contexts"}, 57),
        "piqa": ({"acc", "acc_norm", "n", "cut_contexts"}, 1),
        "categories": ({"acc", "acc_norm", "n", "cut_contexts"}, 1),
    }
    assert live.scores(opened.model, opened.encoder) == scores  # as often as is wanted


def test_a_question_without_room_is_refused_and_cut_prompts_are_counted(tiny_base, tmp_path, monkeypatch):
    opened = open_base(tiny_base)
    row = {"question": "dog " * 2000, "choices": ["one", "two"], "answer": 0}
    (tmp_path / "long.jsonl").write_text(json.dumps(row))
    live = LiveTasks([str(tmp_path / "long.jsonl")])
    live.check(opened.model, opened.encoder)
    (scores,) = live.scores(opened.model, opened.encoder).values()
    assert scores["cut_contexts"] == 1
    (tmp_path / "long.jsonl").write_text(json.dumps(row | {"choices": ["one", "two " * 2000]}))
    monkeypatch.setattr(type(opened.model), "read", None)
    with pytest.raises(ValueError, match="long.jsonl line 1: beside an answer of .* nothing is left of the prompt"):
        LiveTasks([str(tmp_path / "long.jsonl")]).check(opened.model, opened.encoder)


RANK = """
import json, sys
from collections import Counter
import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from bitune_pl.evaluation.live import SharedLM

class Own(LM):
    cut = Counter(piqa=2)

    def loglikelihood(self, requests):
        asked.append([request.args for request in requests])
        if fails and dist.get_rank() == 1:
            raise MemoryError("no room")
        return [(float(len(context) * 10 + len(answer)), True) for context, answer in asked[-1]]
    loglikelihood_rolling = generate_until = None

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
pairs = [("a", "x"), ("b", "x"), ("a", "xx"), ("cc", "x"), ("b", "xx"), ("cc", "xxx")]
requests = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
asked, fails = [], False
answers = SharedLM(Own()).loglikelihood(requests)
few = SharedLM(Own()).loglikelihood(requests[:1])
cut = SharedLM(Own()).cut
fails = True
try:
    SharedLM(Own()).loglikelihood(requests)
except RuntimeError as error:
    said = str(error)
print(json.dumps([answers, few, asked[0], said, cut]))
"""


@pytest.mark.slow
def test_ranks_share_prompts_and_learn_all_answers(tmp_path):
    """No prompt is read twice; a rank without prompts waits; the failure of one is told by all, and none hangs."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    found = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    for answers, few, _, said, cut in found:
        assert answers == [[11.0, True], [11.0, True], [12.0, True], [21.0, True], [12.0, True], [23.0, True]]
        assert few == [[11.0, True]] and said == "rank 1: no room" and cut == {"piqa": 4}
    assert found[0][2] == [["a", "x"], ["a", "xx"], ["cc", "x"], ["cc", "xxx"]]
    assert found[1][2] == [["b", "x"], ["b", "xx"]]
