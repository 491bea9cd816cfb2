"""Reading: rows as they lie in a data set of the Hugging Face hub or in its local copy, each with the place it stands.

What cannot be read as a row is an error in its place, with file and line: who trains stops there, who checks the data
goes on. The formats of files are in `files`, what the fields of a row mean is in `fields`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bitune_pl.data.files import Row, jsonl


def hub(repository: str, config: str | None, split: str, remedy: str) -> Iterator[Row]:
    """Rows of one split of a data set on the hub (or in the hub's local cache).

    Raises:
        ConnectionError: if it cannot be had, with all that is asked for and the remedy ("set data.root to ...").
    """
    import datasets

    try:
        rows = datasets.load_dataset(repository, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise unreachable(f"The split '{split}' of {_called(repository, config)}", error, remedy) from None
    for number, row in enumerate(rows, start=1):
        yield f"{repository} {split} row {number}", row


def whole_hub(repository: str, config: str | None) -> Mapping[str, Iterable[dict]]:
    """All splits of a data set on the hub (or in the hub's local cache), by name.

    Raises:
        ConnectionError: if it cannot be had.
    """
    import datasets

    try:
        return datasets.load_dataset(repository, config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        what = f"The data set {_called(repository, config)}"
        raise unreachable(what, error, "check its name, or give the path of a file") from None


def _called(repository: str, config: str | None) -> str:
    return f"{repository} (configuration {config or 'default'}, revision main)"


def local(root: Path, folder: str, split: str, repository: str | None) -> Iterator[Row]:
    """Rows of `<root>/<folder>/<split>.jsonl`, a local copy with the hub's fields.

    Raises:
        FileNotFoundError: if the folder or the split is not there, with what to do.
    """
    path = root / folder / f"{split}.jsonl"
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path}; data.root must be a folder that holds {folder}/{split}.jsonl"
            + (
                f", a local copy of {repository}, or be left out to take it from the Hugging Face hub."
                if repository
                else "."
            )
        )
    yield from jsonl(path, f"{folder}/{split}.jsonl")


def unreachable(what: str, error: Exception, remedy: str) -> ConnectionError:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return ConnectionError(
        f"{what} could not be had from the Hugging Face hub ({first_line}); connect to the network, or {remedy}."
    )
