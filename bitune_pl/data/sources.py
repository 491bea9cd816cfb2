"""Sources: one table of the data sets, and from their rows to examples (paper, appendix A.3, Table 13).

Each source knows its name on the hub, which split serves for what, its template, and how to read its rows (`fields`).
Its name in the table is also the name of its folder under `data.root`. A row with a blank prompt or answer is dropped
and counted; a row without the fields of its source, or a question without a right answer, is an error.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bitune_pl.data import fields, reading, synthetic, templates
from bitune_pl.data.example import Dropped, Example
from bitune_pl.data.fields import Content, NoGold, Unusable
from bitune_pl.data.reading import Row
from bitune_pl.data.templates import Template


@dataclass(frozen=True)
class Splits:
    """Which split of the data set serves for what; `test` is the one that the paper evaluates."""

    train: str | None = "train"
    validation: str = "validation"
    test: str = "validation"


@dataclass(frozen=True)
class Source:
    """A row of the table.

    Args:
        read: what a row says.
        template: how it reads.
        hub: repository on the hub, None for what exists only here; `config` is the hub's configuration name.
        held_out: that many last rows of the train split are its validation part instead (the last tenth of a copy that
            has no more rows than this).
        generated: scored by the generated answer, not by choosing.
        make: makes the rows of a part; only for embedded sets.
    """

    read: Callable[[dict], Content]
    template: Template
    hub: str | None = None
    config: str | None = None
    splits: Splits = Splits()
    held_out: int = 0
    generated: bool = False
    make: Callable[[str], list[dict]] | None = None


@dataclass(frozen=True)
class Loaded:
    """Examples of one part of a source, and the rows that were left out."""

    examples: list[Example]
    dropped: list[Dropped]


def load(
    name: str,
    part: str,
    root: str | Path | None = None,
    template: Template | None = None,
    limit: int | None = None,
    whole: bool = False,
) -> Loaded:
    """The examples of a part ("train", "validation" or "test") of a source, or of a user's JSONL file.

    Args:
        name: a name of the table, or a path that ends in ".jsonl" with the fields `prompt` and `answer`.
        root: folder with local copies, `<root>/<name>/<split>.jsonl`; None means the hub.
        template: in place of the source's own.
        limit: only the first so many rows of the part.
        whole: of a user's own file take all rows, none held out or left to train on.

    Raises:
        ValueError: if the name is unknown, a row cannot be understood, or a question has no right answer.
        FileNotFoundError, ConnectionError: if the data is not there; one sentence says what to do.
    """
    source = find(name)
    split = getattr(source.splits, part)
    if split is None:
        raise ValueError(f"{name} has no {part} part: it is only evaluated on.")
    rows = _rows(name, source, split, root)
    rows = list(islice(rows if whole and source is OWN_FILE else _part(source, part, rows), limit))
    examples, dropped = [], []
    for where, row in rows:
        result = _example(source, template or source.template, split, name, where, row)
        (dropped if isinstance(result, Dropped) else examples).append(result)
    if not examples:
        raise ValueError(f"{name} ({part}): no usable rows ({summary(len(rows), dropped)}).")
    return Loaded(examples, dropped)


def find(name: str) -> Source:
    """The source of that name, or one for a user's own file."""
    if name in SOURCES:
        return SOURCES[name]
    if name.endswith(".jsonl"):
        return OWN_FILE
    raise ValueError(f"There is no data source {name!r}; there are {', '.join(SOURCES)}, or the path of a .jsonl file.")


def holds_out(name: str) -> bool:
    """Whether a source has validation rows: all but a user's own file of less than ten rows have."""
    return find(name) is not OWN_FILE or len(list(islice(reading.jsonl(Path(name)), 10))) == 10


def summary(rows: int, dropped: list[Dropped]) -> str:
    """ "3 of 5: 2 longer than 512 tokens, first train.jsonl line 2": kept rows, and the others by reason."""
    first: dict[str, list[str]] = {}
    for row in dropped:
        first.setdefault(row.reason, []).append(row.where)
    reasons = [f"{len(places)} {reason}, first {places[0]}" for reason, places in first.items()]
    return ": ".join([f"{rows - len(dropped)} of {rows}", *(["; ".join(reasons)] if reasons else [])])


def _rows(name: str, source: Source, split: str, root: str | Path | None) -> Iterator[Row]:
    if source is OWN_FILE:
        return reading.jsonl(Path(name))
    if source.make is not None:
        return ((f"{name} {split} row {i}", row) for i, row in enumerate(source.make(split), start=1))
    if root is not None:
        return reading.local(Path(root), name, split, source.hub)
    return reading.hub(source.hub, source.config, split, name)


def _part(source: Source, part: str, rows: Iterator[Row]) -> Iterable[Row]:
    """The rows of a part: all of its split, unless the last ones of the train split are held out."""
    if not source.held_out:
        return rows
    every = list(rows)
    held_out = source.held_out if len(every) > source.held_out else len(every) // 10
    border = len(every) - held_out
    return every[:border] if part == "train" else every[border:]


def _example(source: Source, template: Template, split: str, name: str, where: str, row: dict) -> Example | Dropped:
    try:
        said = source.read(row)
    except Unusable as reason:
        return Dropped(where, str(reason))
    except NoGold as what:
        raise ValueError(
            f"{where}: no right answer in split '{split}' of {name} ({what}), so it can neither be learned nor scored."
        ) from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{where}: this is no row of {name} ({_complaint(error, row)}).") from None
    fill = template.fill_choices if said.is_question else template.fill
    prompt = fill(said.fields, *([said.answers] if said.is_question else []), where)
    return Example(
        prompt, tuple(_answer(template, text, i, where) for i, text in enumerate(said.answers)), said.gold, where
    )


def _answer(template: Template, text: str, index: int, where: str) -> str:
    """The answer as it stands after the prompt: with one space before it, which a user's own may have already."""
    return template.fill_answer(text.removeprefix(" "), index, where)


def _complaint(error: Exception, row: dict) -> str:
    if isinstance(error, KeyError):
        return f"it lacks the field {error.args[0]!r} and has {', '.join(map(repr, row)) or 'none'}"
    return str(error)


_HELD_OUT = Splits("train", "train", "train")
_TESTED = Splits("train", "validation", "test")
_WITHOUT_VALIDATION = Splits("train", "test", "test")

SOURCES: dict[str, Source] = {
    "categories": Source(fields.numbered, templates.CHOICES, make=synthetic.categories),
    "sums": Source(fields.worded_sum, templates.WORDED_SUM, make=synthetic.sums, generated=True),
    "ultrafeedback": Source(
        fields.ultrafeedback, templates.INSTRUCTION, "openbmb/UltraFeedback", splits=_HELD_OUT, held_out=1000
    ),
    "alpaca": Source(fields.alpaca, templates.INSTRUCTION, "yahma/alpaca-cleaned", splits=_HELD_OUT, held_out=1000),
    "gsm8k": Source(
        fields.worded_sum,
        templates.WORDED_SUM,
        "openai/gsm8k",
        "main",
        splits=_WITHOUT_VALIDATION,
        generated=True,
    ),
    "piqa": Source(fields.piqa, templates.CHOICES, "baber/piqa"),
    "arc_challenge": Source(fields.lettered, templates.CHOICES, "allenai/ai2_arc", "ARC-Challenge", splits=_TESTED),
    "arc_easy": Source(fields.lettered, templates.CHOICES, "allenai/ai2_arc", "ARC-Easy", splits=_TESTED),
    "commonsense_qa": Source(fields.lettered, templates.CHOICES, "tau/commonsense_qa"),
    "social_i_qa": Source(fields.social, templates.SOCIAL, "lighteval/siqa"),
    "mmlu": Source(fields.numbered, templates.KNOWLEDGE, "cais/mmlu", "all", splits=Splits(None, "validation", "test")),
}

# A user's own file: its last tenth, at most 1000 rows, is the validation part.
OWN_FILE = Source(fields.prompt_answer, templates.VERBATIM, splits=_HELD_OUT, held_out=1000)
