"""Sources: from a name to examples, whether it is in the table of data sets or is a user's own data.

A row with a blank prompt or answer is dropped and counted. A row that cannot be read or lacks the fields of its source,
or a question without a right answer, is an error that names the row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from bitune_pl.data import own, reading
from bitune_pl.data.chain_of_thought import unworked
from bitune_pl.data.example import Dropped, Example
from bitune_pl.data.fields import Content, NoGold, Unusable
from bitune_pl.data.files import FORMATS, Row
from bitune_pl.data.own import Names
from bitune_pl.data.table import SOURCES, Source
from bitune_pl.data.templates import Template


@dataclass(frozen=True)
class Loaded:
    """Examples of one part of a source, and the rows that were left out."""

    examples: list[Example]
    dropped: list[Dropped]


def load(
    name: str,
    part: str,
    root: str | Path | None = None,
    template: str | Template | None = None,
    limit: int | None = None,
    whole: bool = False,
    names: Names | None = None,
    broken: list[str] | None = None,
) -> Loaded:
    """The examples of a part ("train", "validation" or "test") of a source.

    Args:
        name: a name of the table, or a user's own data: see `own`.
        root: folder with local copies of the table's, `<root>/<name>/<split>.jsonl`; None means the hub.
        template: in place of the source's own; as text, it changes how the prompt reads.
        limit: only the first so many rows of the part.
        whole: of a user's own data take all rows, none held out or left to train on.
        names: which column of a user's own data is which.
        broken: takes the errors of single rows, which are then skipped.

    Raises:
        ValueError: if the name is unknown, a row cannot be understood, or a question has no right answer.
        FileNotFoundError, ConnectionError: if the data is not there; one sentence says what to do.
    """
    source = find(name, names, template)
    if part == "test" and source.tested_on:
        name, source = source.tested_on, _tested(source)
    rows = islice(_rows(name, source, part, root, whole), limit)
    examples, dropped = [], []
    for where, row in rows:
        try:
            result = _example(source, part, name, where, row)
        except ValueError as error:
            if broken is None:
                raise
            broken.append(str(error))
        else:
            (dropped if isinstance(result, Dropped) else examples).append(result)
    if not examples and not broken:
        raise ValueError(f"{name} ({part}): no usable rows ({summary(len(dropped), dropped)}).")
    return Loaded(examples, dropped)


def check(name: str, names: Names | None = None) -> None:
    """Refuse a name that cannot be a source's, and columns named for a source that has its own; reads nothing."""
    if name not in SOURCES and (not own.is_own(name) or own.is_other_file(name)):
        raise ValueError(
            f"There is no data source {name!r}; there are {', '.join(SOURCES)}, or your own data: the path of a file "
            f"that ends in {', '.join(FORMATS)}, a folder of save_to_disk, or owner/name on the Hugging Face hub."
        )
    if names and name in SOURCES:
        raise ValueError(f"data.fields names the columns of data of your own, but {name} has columns that are known.")


def find(name: str, names: Names | None = None, template: str | Template | None = None) -> Source:
    """The source of that name, with another template if one is given.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: as `load`; the first row of a user's own data is read.
    """
    check(name, names)
    prompt = template.prompt if isinstance(template, Template) else template or ""
    source = SOURCES[name] if name in SOURCES else own.source(name, names, joined="{input}" not in prompt)
    if isinstance(template, str):
        template = replace(source.template, prompt=template)
    return source if template is None else replace(source, template=template)


def holds_out(name: str, names: Names | None = None) -> bool:
    """Whether a source has validation rows: all but a user's own data of less than ten rows have."""
    source = find(name, names)
    return not (source.own and source.held_out) or len(list(islice(source.own(source.splits.train), 10))) == 10


def summary(rows: int, dropped: list[Dropped]) -> str:
    """ "3 of 5: 2 longer than 512 tokens, first train.jsonl line 2": kept rows, and the others by reason."""
    said = "; ".join(reasons(dropped))
    return f"{rows - len(dropped)} of {rows}" + (f": {said}" if said else "")


def reasons(dropped: list[Dropped]) -> list[str]:
    """ "2 longer than 512 tokens, first train.jsonl line 2", for each reason."""
    places: dict[str, list[str]] = {}
    for row in dropped:
        places.setdefault(row.reason, []).append(row.where)
    return [f"{len(where)} {reason}, first {where[0]}" for reason, where in places.items()]


def contents(name: str, part: str, root: str | Path | None = None) -> Iterator[tuple[str, Content | Dropped]]:
    """Where the rows of a part stand and what they say, before any template, or why they cannot be used.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: as `load`.
    """
    source = find(name)
    for where, row in _rows(name, source, part, root):
        yield where, _content(source, part, name, where, row)


def _tested(source: Source) -> Source:
    """The source that a set of worked answers is tested on, its rows read as questions to work out."""
    asked = SOURCES[source.tested_on]
    return replace(asked, read=lambda row: unworked(asked.read(row)), template=source.template)


def _rows(name: str, source: Source, part: str, root: str | Path | None, whole: bool = False) -> Iterator[Row]:
    split = getattr(source.splits, part)
    if split is None:
        raise ValueError(f"{name} has no {part} part: it is only evaluated on.")
    rows = _split(name, source, split, root)
    return iter(rows if whole and source.own else _part(source, part, rows))


def _split(name: str, source: Source, split: str, root: str | Path | None) -> Iterator[Row]:
    if source.own is not None:
        return source.own(split)
    if source.make is not None:
        return ((f"{name} {split} row {i}", row) for i, row in enumerate(source.make(split), start=1))
    if root is not None:
        return reading.local(Path(root), name, split, source.hub)
    remedy = f"set data.root to a folder that holds {name}/{split}.jsonl"
    if source.hub is None:
        raise FileNotFoundError(f"{name} is not on the Hugging Face hub: {remedy}, as `bitune distill` writes it.")
    return reading.hub(source.hub, source.config, split, remedy)


def _part(source: Source, part: str, rows: Iterator[Row]) -> Iterable[Row]:
    """The rows of a part: all of its split, unless the last ones of the train split are held out."""
    if not source.held_out or getattr(source.splits, part) != source.splits.train:
        return rows
    every = list(rows)
    tenth = source.own or source.tested_on or len(every) <= source.held_out
    border = len(every) - (min(source.held_out, len(every) // 10) if tenth else source.held_out)
    return every[:border] if part == "train" else every[border:]


def _example(source: Source, part: str, name: str, where: str, row: dict | ValueError) -> Example | Dropped:
    said, template = _content(source, part, name, where, row), source.template
    if isinstance(said, Dropped):
        return said
    choices = said.choices or (said.answers if said.is_question else ())
    prompt = template.fill_choices(said.fields, choices, where) if choices else template.fill(said.fields, where)
    answers = tuple(_answer(template, text, i, where) for i, text in enumerate(said.answers))
    return Example(prompt, answers, said.gold, where, choices)


def _content(source: Source, part: str, name: str, where: str, row: dict | ValueError) -> Content | Dropped:
    if isinstance(row, ValueError):
        raise row
    try:
        return source.read(row)
    except Unusable as reason:
        return Dropped(where, str(reason))
    except NoGold as what:
        split = "" if source.own else f" in split '{getattr(source.splits, part)}' of {name}"
        raise ValueError(
            f"{where}: no right answer{split} ({what}), so it can neither be learned nor scored."
        ) from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{where}: this is no row of {name} ({_complaint(error, row)}).") from None


def _answer(template: Template, text: str, index: int, where: str) -> str:
    """The answer as it stands after the prompt: with one space before it, which a user's own may have already."""
    return template.fill_answer(text.removeprefix(" "), index, where)


def _complaint(error: Exception, row: dict) -> str:
    if isinstance(error, KeyError):
        return f"it lacks the field {error.args[0]!r} and has {', '.join(map(repr, row)) or 'none'}"
    return str(error)
