"""Which tasks there are: the YAML files in `tasks/`, every other source of the data room, and lm-eval's own.

lm-eval's list is long and takes half a minute to read, so it is read only if a name is neither ours nor a source's. A name
that is both (piqa) is ours.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import lm_eval.api.task
import lm_eval.tasks
from lm_eval.api.task import Task
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from bitune_pl.data import sources
from bitune_pl.data.table import SOURCES
from bitune_pl.evaluation import documents

TASKS = Path(__file__).parent / "tasks"
PARTS = ("test", "validation", "train")
ALL = "all rows"  # of a file of the user's own


def manager(
    root: str | Path | None = None, part: str = "test", limit: int | None = None, all_of_lm_eval: bool = False
) -> TaskManager:
    """A task manager that knows our tasks, for `lm_eval.simple_evaluate(task_manager=...)`.

    Args:
        root: folder with local copies of the data sets; None means the hub.
        part: which rows of our tasks are scored.
        limit: how many rows of our tasks are read.
        all_of_lm_eval: whether it knows lm-eval's own tasks too; that takes half a minute.
    """
    documents.forget()
    metadata = {"root": None if root is None else str(root), "part": part, "limit": limit}
    return TaskManager(include_path=str(TASKS), include_defaults=all_of_lm_eval, metadata=metadata)


def load(
    names: Sequence[str] | str, root: str | Path | None = None, part: str = "test", limit: int | None = None
) -> dict[str, dict]:
    """Tasks by the names that were asked for, each as lm-eval's `evaluate` takes it; all data is read here.

    The examples of few-shot prompts are not drawn yet: `BituneLM.check` and `simple_evaluate` seed them.

    Raises:
        ValueError: if a task is unknown (near names are given) or cannot be scored, or there is no such part.
        FileNotFoundError, ConnectionError: if its data is not there.
    """
    if isinstance(names, str):
        names = [names]
    if part not in PARTS:
        raise ValueError(f"The part of a task is {', '.join(PARTS)}, not {part!r}.")
    with quiet():
        ours = manager(root, part, limit)
        specs = {name: _spec(name, ours) for name in names}
        theirs = [name for name, spec in specs.items() if spec is None]
        everything = manager(root, part, limit, all_of_lm_eval=True) if theirs else ours
        for name in theirs:
            if name not in everything.all_tasks:
                raise _unknown(name, ours)
        if theirs and part != "test":
            raise ValueError(f"{theirs[0]} is a task of lm-eval's, which knows what it is scored on: leave --part out.")
        loaded = {}
        for name, spec in specs.items():
            loaded[name] = ours.load([spec]) if spec else _of_lm_eval(name, everything)
            for task in loaded[name]["tasks"].values():
                _make_zero_shot(task)
        return loaded


def _of_lm_eval(name: str, everything: TaskManager) -> dict:
    try:
        return everything.load([name])
    except OSError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConnectionError(
            f"The data of {name}, a task of lm-eval's, is not there ({reason}): it comes from the hub or its local cache, and "
            "never from --data.root."
        ) from error


def splits(loaded: dict[str, dict], part: str) -> dict[str, str]:
    """The split of the data set that each task's rows are from: the labelled one that the paper reports is not always test."""
    return {name: _split(task, part) for name, task in leaves(loaded)}


def other_splits(loaded: dict[str, dict], part: str) -> dict[str, list[str]]:
    """By split, the names of what was loaded that has no labelled rows in the split that the part is called after.

    Rows that are held out of `train` are no others than those of `validation`.
    """
    found: dict[str, list[str]] = {}
    for name, one in loaded.items():
        for split in set(splits({name: one}, part).values()) - {part, ALL, "train"}:
            found.setdefault(split, []).append(name)
    return found


def leaves(loaded: dict[str, dict]) -> list[tuple[str, Task]]:
    """All tasks of what was loaded, with their names: those of groups too, so that one may be there twice."""
    return [pair for one in loaded.values() for pair in one["tasks"].items()]


def _split(task: Task, part: str) -> str:
    source = (task.config.dataset_kwargs or {}).get("source")
    if not source:
        return str(task.config.test_split or task.config.validation_split)
    found = sources.find(source)
    if found.own and part == "test":
        return ALL
    return getattr((sources.find(found.tested_on) if part == "test" and found.tested_on else found).splits, part)


def named(name: str, loaded: dict) -> list[str]:
    """What a name that was loaded stands for: a task; a group, without its tasks; the tasks of a tag of lm-eval's."""
    return [name] if name in loaded["groups"] else list(loaded["tasks"])


def _spec(name: str, ours: TaskManager) -> str | dict | None:
    """What the task manager builds a task from: its name, or a whole config; None for a task of lm-eval's own.

    Raises:
        ValueError: if there is no such task.
    """
    if name in ours.all_tasks:
        return name
    try:
        sources.check(name)
    except ValueError as error:
        if is_of_lm_eval(name):
            return None
        if Path(name).is_file():
            raise
        raise _unknown(name, ours) from error
    return of_source(name)


def _unknown(name: str, ours: TaskManager) -> ValueError:
    near = get_close_matches(name, dict.fromkeys([*ours.all_tasks, *SOURCES]), n=3)
    known = ", ".join(task for task in ours.all_tasks if not task.startswith("mmlu_"))
    return ValueError(
        f"There is no task {name!r}{f'; did you mean {_either(near)}?' if near else '.'} Tasks are {known}, the other data "
        "sources, a file of your own, and those of lm-eval."
    )


def of_source(name: str) -> dict:
    """The config of a task on a source that has no YAML file."""
    source = sources.find(name)
    kind = "_steps" if source.tested_on else "_numbers" if source.generated else "_questions"
    return {**load_yaml(TASKS / f"{kind}.yaml"), "task": name, "dataset_kwargs": {"source": name}}


def is_of_lm_eval(name: str) -> bool:
    """Whether a YAML file of lm-eval seems to name a task, group or tag so; a second of reading, nothing is parsed."""
    line = re.compile(rf"^\W*(?:(?:task|group|tag)\W*:\W*|-\W*){re.escape(name)}\W*$".encode(), re.MULTILINE)
    files = Path(lm_eval.tasks.__file__).parent.glob("**/*y*ml")
    return any(line.search(file.read_bytes()) for file in files)


def _make_zero_shot(task: Task) -> None:
    """Unless the task says otherwise, as `simple_evaluate` does."""
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)


def seed_examples(task: Task) -> None:
    """Begin to draw the examples of few-shot prompts, as `simple_evaluate` does; to be said each time before they are built."""
    task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@contextmanager
def quiet() -> Iterator[None]:
    """Leave lm-eval's notices unsaid, which are about settings that are meant, and its bars for what takes no time."""
    logger = logging.getLogger("lm_eval")
    level, bar = logger.level, lm_eval.api.task.tqdm
    logger.setLevel(logging.ERROR)
    lm_eval.api.task.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        logger.setLevel(level)
        lm_eval.api.task.tqdm = bar
