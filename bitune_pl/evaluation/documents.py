"""The rows of the data room as lm-eval's documents: what the YAML files in `tasks/` call.

A document is a row as it reads in training: its whole prompt, its choices or its answer, and where it stands. So no
template is written twice: text comes from `data.templates`, by way of `data.sources`. A task's YAML names its source
(`dataset_kwargs: {source: piqa}`); `root`, `part` and the number of rows that are wanted come as the task manager's
metadata.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache

from datasets import Dataset

from bitune_pl.data import sources
from bitune_pl.data.example import Dropped, Example


def questions(
    source: str, root: str | None = None, part: str = "test", limit: int | None = None, subject: str | None = None, **_
) -> dict[str, Dataset]:
    """Questions with choices: `prompt`, `choices` (without the space before them, which is lm-eval's), `gold`, `where`.

    Raises:
        ValueError: if a row has one answer only, or no right one; as `sources.load` otherwise.
    """
    rows = _of_subject(source, root, part, subject) if subject else _rows(source, root, part, limit)
    if len(rows[0].answers) < 2:
        raise ValueError(
            f"{source} has one answer to a prompt, so there is nothing to choose from: it can be trained on, not scored."
        )
    return {"test": Dataset.from_list([_question(row) for row in rows])}


def prompts(
    source: str, root: str | None = None, part: str = "test", limit: int | None = None, **_
) -> dict[str, Dataset]:
    """Prompts to be answered in words: `prompt`, `answer` (worked, or the final one alone), `choices` (if any), `where`."""
    rows = _rows(source, root, part, limit)
    return {
        "test": Dataset.from_list(
            [{"prompt": r.prompt, "answer": r.answer, "choices": r.choices, "where": r.where} for r in rows]
        )
    }


def _question(row: Example) -> dict:
    if row.gold is None:
        raise ValueError(f"{row.where}: this row does not say which choice is right, so it cannot be scored.")
    apart = [answer for answer in row.answers if not answer.startswith(" ")]
    if apart:
        raise ValueError(f"{row.where}: the choice {apart[0]!r} does not start with a space, as answers do.")
    choices = [answer[1:] for answer in row.answers]
    return {"prompt": row.prompt, "choices": choices, "gold": row.gold, "where": row.where}


def _rows(source: str, root: str | None, part: str, limit: int | None) -> Sequence[Example]:
    """The rows of a part; of a file of the user's own all rows, where no other part is asked for. Those left out are told."""
    loaded = sources.load(source, part, root, limit=limit, whole=part == "test")
    if loaded.dropped:
        told = sources.summary(len(loaded.examples) + len(loaded.dropped), loaded.dropped)
        print(f"note: {source} ({part}), rows scored: {told}", file=sys.stderr)
    return loaded.examples


def _of_subject(source: str, root: str | None, part: str, subject: str) -> Sequence[Example]:
    rows = _by_subject(source, root, part).get(subject)
    if not rows:
        raise ValueError(f"{source} ({part}) has no rows of the subject {subject}.")
    return rows


def forget() -> None:
    """Read all files anew for the next tasks: they may have changed."""
    _by_subject.cache_clear()


@lru_cache(maxsize=1)
def _by_subject(source: str, root: str | None, part: str) -> dict[str, list[Example]]:
    """All rows of a source by their subject: read once for all tasks of a group."""
    rows: dict[str, list[Example]] = {}
    said = (content for _, content in sources.contents(source, part, root) if not isinstance(content, Dropped))
    for example, content in zip(sources.load(source, part, root).examples, said, strict=True):
        rows.setdefault(content.fields["subject"], []).append(example)
    return rows
