"""A user's own data: a file, a folder of `datasets.save_to_disk`, or a data set of the hub.

What its rows are is recognised by their columns, or named in the config (`data.fields: {prompt: frage, answer:
antwort}`), and is the same for all rows:

    prompt, answer                 taken as they are written
    instruction, [input,] output   Alpaca's; the template is the paper's for instructions
    question, choices, answer      the answer is a choice's text, position (from 0), or label
    question, answer               the template is the paper's for worded sums
    messages                       a chat of one turn, with a system message or without

Every other column with text or a number in it is a field for a template of the user's own. The last tenth of the rows,
at most 1000, is the validation part, unless there is a split of that name.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from bitune_pl.data import fields, files, reading, templates
from bitune_pl.data.fields import Content, NoGold, Unusable
from bitune_pl.data.files import Row
from bitune_pl.data.table import Source, Splits
from bitune_pl.data.templates import Template

Names = Mapping[str, str | list[str]]  # our name of a field: the column's name; for `choices` also a list of columns

HOLDS_OUT = 1000
_VALIDATION = ("validation", "valid", "val", "dev")


def is_own(name: str) -> bool:
    """Whether a source's name can be that of a user's own data."""
    return _is_file(name) or Path(name).is_dir() or is_on_hub(name)


def is_on_hub(name: str) -> bool:
    """Whether a user's own data is `owner/name` or `owner/name:configuration` on the hub, and nothing local."""
    owner, slash, rest = name.partition("/")
    named = bool(owner and slash and rest) and "/" not in rest and not name.startswith((".", "~"))
    return named and not _is_file(name) and not Path(name).is_dir()


def is_other_file(name: str) -> bool:
    """Whether it is a file of a kind that is not read; `owner/name` of the hub may look the same."""
    return Path(name).is_file() and not _is_file(name)


def _is_file(name: str) -> bool:
    return Path(name).suffix.lower() in files.FORMATS


def source(name: str, names: Names | None = None, joined: bool = True) -> Source:
    """What is to be known of a user's own data; reads its first row.

    Args:
        names: which column is which, where their names do not say it.
        joined: whether an instruction and its input are one field; not so for a template with a place for each.

    Raises:
        ValueError: if the columns are none of those above, with what to do.
        FileNotFoundError, ConnectionError: if the data is not there.
    """
    splits, rows = _open(name)
    shape = _recognise(name, rows(splits.train), names or {})
    held_out = HOLDS_OUT if splits.validation == splits.train else 0
    read = partial(_read, shape, names or {}, joined)
    return Source(read, shape.template, splits=splits, held_out=held_out, own=rows)


@dataclass(frozen=True)
class Shape:
    """A kind of rows: the fields that it needs, how they are read, and their template."""

    needs: tuple[str, ...]
    read: Callable[[dict], Content]
    template: Template


def _open(name: str) -> tuple[Splits, Callable[[str], Iterator[Row]]]:
    """Which split serves for what, and a function that reads one."""
    if Path(name).is_dir():
        return _open_folder(name)
    if _is_file(name):
        return Splits("train", "train", "train"), lambda split: files.read(Path(name))
    repository, _, config = name.partition(":")
    parts = reading.whole_hub(repository, config or None)
    return _serve(name, list(parts)), partial(_rows, repository, parts)


def _open_folder(name: str) -> tuple[Splits, Callable[[str], Iterator[Row]]]:
    import datasets

    try:
        found = datasets.load_from_disk(name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The folder {name} was not written by save_to_disk ({str(error).splitlines()[0].rstrip('.')}); "
            f"give such a folder, or a file that ends in {', '.join(files.FORMATS)}."
        ) from None
    parts = found if isinstance(found, dict) else {"train": found}
    return _serve(name, list(parts)), partial(_rows, Path(name).name, parts)


def _rows(name: str, parts: Mapping[str, Iterable[dict]], split: str) -> Iterator[Row]:
    return ((f"{name} {split} row {i}", row) for i, row in enumerate(parts[split], start=1))


def _serve(name: str, present: list[str]) -> Splits:
    train = "train" if "train" in present else present[0]
    if train != "train" and len(present) > 1:
        raise ValueError(f"{name} has the splits {', '.join(present)}, and none is called train.")
    validation = next((split for split in _VALIDATION if split in present), train)
    return Splits(train, validation, "test" if "test" in present else validation)


def _recognise(name: str, rows: Iterator[Row], names: Names) -> Shape:
    for _, row in islice(rows, 1000):
        if isinstance(row, ValueError):
            continue
        present = {*row, *names, *(["choices"] if "choice0" in row else [])}
        for shape in SHAPES:
            if present.issuperset(shape.needs):
                return shape
        kinds = "; ".join(", ".join(shape.needs) for shape in SHAPES)
        raise ValueError(
            f"The columns of {name} are {', '.join(map(str, row)) or 'none'}, and expected are {kinds}: rename them, "
            "or say which is which, as in data.fields: {prompt: frage, answer: antwort}."
        )
    return SHAPES[0]  # no row that can be read: whoever reads them will say so


def _read(shape: Shape, names: Names, joined: bool, row: dict) -> Content:
    renamed = row | {ours: _column(row, theirs) for ours, theirs in names.items()}
    said = shape.read(renamed)
    plain = {key: fields.text(renamed, key, required=False) for key, value in renamed.items() if _is_plain(value)}
    return replace(said, fields=plain | said.fields if joined else said.fields | plain)


def _column(row: dict, name: str | list[str]) -> object:
    return [row[single] for single in name] if isinstance(name, list) else row[name]


def _is_plain(value: object) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def _question(row: dict) -> Content:
    choices, labels = _choices(row)
    texts = [fields.text({"choice": choice}, "choice") for choice in choices]
    question = {"question": fields.text(row, "question")}
    return Content(question, tuple(texts), _gold(texts, labels, row["answer"]), is_question=True)


def _choices(row: dict) -> tuple[list, list | None]:
    """The choices and, where the row has them, their labels."""
    found = row["choices"] if "choices" in row else [row[f"choice{i}"] for i in range(_count(row))]
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            like = 'a list such as ["yes", "no"], which a CSV file has as "[""yes"", ""no""]"'
            raise TypeError(f"its field 'choices' is text, not {like}") from None
    if isinstance(found, dict):
        return fields.choices(found["text"], found["label"]), found["label"]
    return fields.choices(found), None


def _count(row: dict) -> int:
    return next(i for i in range(len(row) + 1) if f"choice{i}" not in row)


def _gold(texts: list[str], labels: list | None, answer: object) -> int:
    """The position of the right choice. An answer that could be read as two different choices is refused."""
    if answer is None or answer != answer or isinstance(answer, bool):
        raise NoGold(f"the right answer is given as {answer!r}")
    said = str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer).strip()
    if labels is not None:
        return fields.position(labels, said)
    letters = [chr(ord("A") + i) for i in range(len(texts))]
    numbers = [str(i) for i in range(len(texts))]
    found = {i for way in ([text.strip() for text in texts], letters, numbers) for i, x in enumerate(way) if x == said}
    if len(found) == 1:
        return found.pop()
    if found:
        raise TypeError(
            f"its answer {said!r} can mean several choices; give {{'text': [...], 'label': [...]}} as choices"
        )
    raise NoGold(f"the right answer is given as {answer!r}, which is no choice and no position from 0")


def _chat(row: dict) -> Content:
    """One turn: the last message is the answer, the one before it the instruction, after a system message if any."""
    turns = row["messages"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise TypeError("its field 'messages' is no list of messages")
    roles = [turn["role"] for turn in turns]
    if roles.count("user") > 1:
        raise Unusable("with more than one turn")
    if roles not in (["user", "assistant"], ["system", "user", "assistant"]):
        raise Unusable("whose messages are not a user's and then an assistant's")
    *before, answer = (fields.text({"message": turn["content"]}, "message", required=False) for turn in turns)
    if not before[-1].strip() or not answer.strip():
        raise Unusable("with a blank message")
    return Content({"instruction": "\n\n".join(text for text in before if text.strip())}, (answer,))


# The first that fits: a row may have more columns than it needs.
SHAPES = (
    Shape(("prompt", "answer"), fields.prompt_answer, templates.VERBATIM),
    Shape(("instruction", "output"), fields.alpaca, templates.INSTRUCTION),
    Shape(("question", "choices", "answer"), _question, templates.CHOICES),
    Shape(("question", "answer"), fields.worded_sum, templates.WORDED_SUM),
    Shape(("messages",), _chat, templates.INSTRUCTION),
)
