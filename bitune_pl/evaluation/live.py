"""Scores of a model that is being trained: tasks are read once, then evaluated as often as is wanted.

Evaluation is `lm_eval.simple_evaluate` on the live model. That sets the seeds of Python, NumPy and PyTorch, so a caller
who trains keeps their states (`training.evaluate_tasks` does). With several ranks each of them reads a share of the
prompts and learns the answers of all, so that the ranks stay together and none waits for long.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import lm_eval.evaluator
import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from bitune_pl.data.encoding import Encoder
from bitune_pl.evaluation import catalogue, results
from bitune_pl.evaluation.harness import BituneLM
from bitune_pl.method.model import Bitune

Scores = dict[str, dict[str, float]]


class LiveTasks:
    """Tasks whose rows are in memory.

    Args:
        names: as for `bitune evaluate --tasks`.
        root: folder with local copies of the data sets; None means the hub.
        part: which rows of our tasks are scored.
        limit: only the first so many rows of each task (of each subject of MMLU).

    Raises:
        ValueError: if a task is unknown or cannot be scored.
        FileNotFoundError, ConnectionError: if its data is not there.
    """

    def __init__(self, names: Sequence[str], root: str | None = None, part: str = "test", limit: int | None = None):
        self.limit = limit
        self.loaded = catalogue.load(names, root, part, limit)
        self.manager = catalogue.manager(root, part, limit)

    def check(self, model: Bitune, encoder: Encoder) -> None:
        """Refuse a task of which a question has no room.

        Raises:
            ValueError: if there is one.
        """
        BituneLM(model, encoder).check(self.loaded, self.limit)

    def scores(self, model: Bitune, encoder: Encoder, progress: bool = False) -> Scores:
        """The metrics of each task that was named, `n`, its number of questions, and `cut_contexts`, how many were too long:
        `{"piqa": {"acc": 0.5, "n": 200, "cut_contexts": 0}}`.

        Modes and gradients of the model stay as they are. With several ranks, all of them call this together.
        """
        lm: BituneLM | SharedLM = BituneLM(model, encoder, progress=progress)
        lm.title = "evaluation"
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            lm = SharedLM(lm)
        with catalogue.quiet(), _without_report():
            found = lm_eval.evaluator.simple_evaluate(
                model=lm,
                tasks=self._objects(),
                task_manager=self.manager,
                limit=self.limit,
                bootstrap_iters=0,
                log_samples=False,
            )
        names = [one for name, loaded in self.loaded.items() for one in catalogue.named(name, loaded)]
        cut = lm.cut
        return {
            name: _metrics(results.scores(found, name))
            | {"cut_contexts": sum(cut[leaf] for leaf in results.leaves(found, name))}
            for name in names
        }

    def _objects(self) -> list:
        """The groups and tasks that stand for the names; a name may be a tag of several tasks."""
        objects = []
        for name, loaded in self.loaded.items():
            objects += [loaded["groups"][name]] if name in loaded["groups"] else loaded["tasks"].values()
        return objects


class SharedLM(LM):
    """A model of which each rank reads a share of the prompts; all ranks get all answers, or the first rank's error."""

    def __init__(self, own: BituneLM) -> None:
        super().__init__()
        self.own = own

    def loglikelihood(self, requests: list[Instance]) -> list:
        return self._together("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list:
        return self._together("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Instance]) -> list:
        return self._together("generate_until", requests)

    @property
    def cut(self) -> Counter[str | None]:
        """How many contexts were too long, by task, over all ranks."""
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, self.own.cut)
        return sum(every, Counter())

    def _together(self, kind: Literal["loglikelihood", "loglikelihood_rolling", "generate_until"], requests) -> list:
        places = self._share(requests)
        try:
            answers = getattr(self.own, kind)([requests[i] for i in places]) if places else []
            said: dict[int, Any] | str = dict(zip(places, answers, strict=True))
        except Exception as error:  # the other ranks wait for an answer, and this one's is the error
            said = f"rank {dist.get_rank()}: {error or type(error).__name__}"
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, said)
        if failed := [said for said in every if isinstance(said, str)]:
            raise RuntimeError(failed[0])
        answers = {i: answer for said in every for i, answer in said.items()}
        return [answers[i] for i in range(len(requests))]

    def _share(self, requests: list[Instance]) -> list[int]:
        """Every so many-th prompt with all its requests."""
        prompts: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            prompts.setdefault(request.args[0], []).append(i)
        return [i for group in list(prompts.values())[dist.get_rank() :: dist.get_world_size()] for i in group]


def _metrics(scores: dict[str, Any]) -> dict[str, float]:
    """Scores without their standard errors."""
    return {name: value for name, value in scores.items() if value is not None and not name.endswith("_stderr")}


@contextmanager
def _without_report() -> Iterator[None]:
    """Leave out a report on the machine that `simple_evaluate` writes: it runs `pip list` and `git`, for seconds."""
    module, names = lm_eval.evaluator, ("add_env_info", "get_git_commit_hash")
    before = {name: getattr(module, name) for name in names}
    try:
        for name in names:
            setattr(module, name, lambda *_: None)
        yield
    finally:
        for name, kept in before.items():
            setattr(module, name, kept)
