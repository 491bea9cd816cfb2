"""Reading: rows as they lie in a JSONL file or in a data set of the Hugging Face hub, each with the place it stands.

A file is read line by line, so that what is wrong with it can be said with the physical line's number, blank lines
counted. What the fields of a row mean is the business of `fields`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

Row = tuple[str, dict]  # where it stands, and its fields


def jsonl(path: Path, name: str | None = None) -> Iterator[Row]:
    """Rows of a JSONL file, called `name` in messages (default: the file's own name).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is no JSON object, with file and line.
    """
    name = name or path.name
    if not path.is_file():
        raise FileNotFoundError(f"There is no data file {path}; check the path.")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{name} line {number}"
            text = _decoded(line, where).removeprefix("\ufeff").strip()
            if text:
                yield where, _parsed(text, where)


def hub(repository: str, config: str | None, split: str, folder: str) -> Iterator[Row]:
    """Rows of one split of a data set on the hub (or in the hub's local cache).

    Raises:
        ConnectionError: if it cannot be had, with the repository and what to do.
    """
    import datasets

    try:
        rows = datasets.load_dataset(repository, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConnectionError(
            f"The split '{split}' of {repository} could not be had from the Hugging Face hub ({first_line}); "
            f"connect to the network, or set data.root to a folder that holds {folder}/{split}.jsonl."
        ) from None
    for number, row in enumerate(rows, start=1):
        yield f"{repository} {split} row {number}", row


def local(root: Path, folder: str, split: str, repository: str) -> Iterator[Row]:
    """Rows of `<root>/<folder>/<split>.jsonl`, a local copy with the hub's fields.

    Raises:
        FileNotFoundError: if the folder or the split is not there, with what to do.
    """
    path = root / folder / f"{split}.jsonl"
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path}; data.root must be a folder that holds {folder}/{split}.jsonl, a local copy of "
            f"{repository}, or be left out to take it from the Hugging Face hub."
        )
    yield from jsonl(path, f"{folder}/{split}.jsonl")


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: this line is not UTF-8 text (byte {error.start + 1}); save the file as UTF-8."
        ) from None


def _parsed(text: str, where: str) -> dict:
    try:
        row = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        said = (
            f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        )
        raise ValueError(f"{where}: this line is not JSON ({said}); each line holds one object.") from None
    if not isinstance(row, dict):
        raise ValueError(f'{where}: a row is an object such as {{"prompt": ..., "answer": ...}}, not {text[:40]!r}.')
    return row
