"""Files: rows of JSONL, JSON, CSV and Parquet, each with the place it stands; and `put`, which writes a file whole.

Text files are read with their physical lines in view, so that what is wrong can be said with the line's number, blank
lines counted. What cannot be read as a row is an error in its place. Nothing is guessed from the values: an empty cell
of a CSV file is an empty text, "None" is a word, and 007 stays 007.
"""

import csv
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

LONGEST_NAME = 255
"""Bytes of a file's name."""

Row = tuple[str, dict | ValueError]  # where it stands, and its fields or what is wrong with it


def put(path: Path, text: str) -> None:
    """Write a file whole or not at all: where that fails, the old one stays and nothing is left over. A link stays one."""
    new, place = None, path.resolve()
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=place.parent, prefix=".", delete=False) as file:
            new = Path(file.name)
            file.write(text)
        new.chmod(0o644)
        os.replace(new, place)
    except BaseException as error:
        if new:
            new.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def check_place(path: Path, such_as: str) -> None:
    """Refuse an `--out` that could not be written in the end; `such_as` is a file's name that could.

    Raises:
        OSError, ValueError: if its folder is missing, its name is too long, it is no file, or it may not be written.
    """
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise ValueError(f"--out {path}: the name is too long for a file; name a shorter one.")
    place = path.resolve()
    if not place.parent.is_dir():
        raise FileNotFoundError(f"--out {path}: there is no folder {path.parent}; make it first, or name another file.")
    if place.is_dir():
        raise IsADirectoryError(f"--out {path} is a folder: name a file in it, such as {path / such_as}.")
    if place.exists() and not place.is_file():
        raise FileExistsError(f"--out {path} is a device or a pipe: name a file.")
    try:
        tempfile.TemporaryFile(dir=place.parent).close()
        may = not place.exists() or os.access(place, os.W_OK)
    except OSError:
        may = False
    if not may:
        raise PermissionError(f"--out {path} may not be written: name a file elsewhere.")


def read(path: Path, name: str | None = None) -> Iterator[Row]:
    """Rows of a file, called `name` in messages (default: the file's own name).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read at all.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no data file {path}; check the path.")
    yield from FORMATS[path.suffix.lower()](path, name or path.name)


def jsonl(path: Path, name: str) -> Iterator[Row]:
    """One object a line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{name} line {number}"
            try:
                text = _decoded(line, where).removeprefix("\ufeff").strip()
                if text:
                    yield where, _object(_parsed(text, where), where)
            except ValueError as error:
                yield where, error


def json_list(path: Path, name: str) -> Iterator[Row]:
    """A list of objects, of which several may stand on a line; a file that is no list is read as JSONL, as it often is."""
    text = _decoded(path.read_bytes(), name).removeprefix("\ufeff")
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        _check_not_one_object(text, at, name)
        yield from jsonl(path, name)
        return
    line, row, counted, at = 1, 0, 0, _skip(text, at + 1)
    while text[at : at + 1] != "]":
        further = text.count("\n", counted, at)
        line, row, counted = line + further, row + 1, at
        where = f"{name} line {line}" + ("" if further or row == 1 else f", row {row}")
        value, at = _value(text, at, where)
        try:
            yield where, _object(value, where)
        except ValueError as error:
            yield where, error
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise ValueError(f"{where}: after this row a comma or the end of the list should stand; the file is cut.")
    if text[_skip(text, at + 1) :]:
        raise ValueError(f"{name}: more text stands after the end of the list; is the file two files in one?")


def _check_not_one_object(text: str, at: int, name: str) -> None:
    """Refuse a file that is one object over several lines, or that holds its rows in one of its fields."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return  # whoever reads its lines will say what is wrong
    whole = isinstance(value, dict) and not text[_skip(text, end) :]
    if whole and ("\n" in text[at:end] or any(_is_rows(field) for field in value.values())):
        raise ValueError(
            f"{name} is one object, where a list of rows is expected, [{{...}}, {{...}}], or one row a line."
        )


def _is_rows(field: object) -> bool:
    return isinstance(field, list) and bool(field) and all(isinstance(row, dict) and "role" not in row for row in field)


def table(path: Path, name: str) -> Iterator[Row]:
    """CSV with a header; commas, semicolons or tabs, whichever the header has most of."""
    csv.field_size_limit(2**31 - 1)
    with path.open("rb") as lines:
        header = _decoded(lines.readline(), f"{name} line 1").removeprefix("\ufeff")
        delimiter = max(",;\t", key=header.count)
        lines.seek(0)
        yield from _cells(csv.reader(_text_lines(lines, name), delimiter=delimiter, strict=True), name)


def _cells(reader, name: str) -> Iterator[Row]:
    columns: list[str] | None = None
    while True:
        where = f"{name} line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{where}: this row is not CSV ({error}); check its quotation marks.") from None
        if not cells:
            continue
        if columns is None:
            columns = [cell.strip() for cell in cells]
            if twice := sorted({column for column in columns if columns.count(column) > 1}):
                raise ValueError(f"{where}: the header names {', '.join(map(repr, twice))} twice; rename one of them.")
        elif len(cells) != len(columns):
            yield where, ValueError(f"{where}: this row has {len(cells)} cells, the header has {len(columns)}.")
        else:
            yield where, dict(zip(columns, cells, strict=True))


def parquet(path: Path, name: str) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches(1000):
            for row in batch.to_pylist():
                number += 1
                yield f"{name} row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{name} cannot be read as Parquet ({str(error).splitlines()[0].rstrip('.')}).") from None


FORMATS: dict[str, Callable[[Path, str], Iterator[Row]]] = {
    ".jsonl": jsonl,
    ".json": json_list,
    ".csv": table,
    ".tsv": table,
    ".parquet": parquet,
}
"""How a file is read, by the ending of its name."""


def _text_lines(lines: Iterator[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        yield _decoded(line, f"{name} line {number}").removeprefix("\ufeff" if number == 1 else "")


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: this is not UTF-8 text (byte {error.start + 1}); save the file as UTF-8.") from None


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: this line is not JSON ({_said(error)}); each line holds one object.") from None


def _value(text: str, at: int, where: str) -> tuple[object, int]:
    """The JSON value that starts there, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: this row is not JSON ({_said(error)}).") from None


def _said(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"


def _object(value: object, where: str) -> dict:
    if not isinstance(value, dict):
        text = json.dumps(value, ensure_ascii=False)[:40]
        raise ValueError(f'{where}: a row is an object such as {{"prompt": ..., "answer": ...}}, not {text!r}.')
    return value


def _skip(text: str, at: int) -> int:
    """The next position that is no white space."""
    while text[at : at + 1].isspace():
        at += 1
    return at
