"""Where a run lives: `runs/<config>/<date-time>-<seed>/`, with `config.yaml`, `checkpoints/`, events and `model/`.

A folder is made once and belongs to one run, so that no run stops because another one left a file behind, and none
overwrites another. A resumed run goes on in its own folder.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from bitune_pl.training.checkpoints import read_checkpoint

# Processes that the launcher starts for further ranks find the first one's folder here.
_SHARED = "BITUNE_RUN_FOLDER"


def new_run_folder(root: Path, config: str, seed: int) -> Path:
    """Make a folder of its own for a run; `mkdir` either makes it or fails, so that two runs never share one."""
    stem = f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{seed}"
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return Path(os.environ.get(_SHARED, root / config / stem))
    for attempt in range(1, 1000):
        folder = root / config / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.is_dir():
                raise _unusable(root, "a file stands in its place") from None
        except OSError as error:
            raise _unusable(root, (error.strerror or str(error)).lower()) from error
    raise FileExistsError(
        f"{root / config} already holds 999 runs of this second and seed; something starts them in a loop."
    )


def _unusable(root: Path, why: str) -> OSError:
    return OSError(f"Runs cannot be kept under {root} ({why}): name another folder by --trainer.default_root_dir.")


@contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Tell the folder to the processes that are started for further ranks meanwhile."""
    os.environ.setdefault(_SHARED, str(folder))
    try:
        yield
    finally:
        os.environ.pop(_SHARED, None)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other commands from training the same run meanwhile.

    Raises:
        ValueError: if another command is training it.
    """
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"{folder} is being trained by another command: wait for it, or stop it first.") from None
    try:
        yield
    finally:
        lock.release()


def run_of_checkpoint(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, or None where it lies elsewhere."""
    folder = checkpoint.parent.parent
    return folder if (folder / "config.yaml").is_file() and checkpoint.parent.name == "checkpoints" else None


def existing_run(folder: Path) -> Path:
    """A run folder that a user named.

    Raises:
        FileNotFoundError: if it is none.
    """
    if not (folder / "config.yaml").is_file():
        there = "has no config.yaml" if folder.is_dir() else "does not exist"
        below = sorted(path.parent for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/config.yaml"))
        such = f"There are runs below it: name one, such as {below[-1]}." if below else ""
        raise FileNotFoundError(
            f"{folder} is not the folder of a run: it {there}. {such or 'Name one such as runs/smollm2/<date-time>-<seed>.'}"
        )
    return folder


def last_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run that can be read.

    Raises:
        FileNotFoundError: if it has none.
        ValueError: if none can be read.
    """
    found = sorted((run / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not found:
        raise FileNotFoundError(
            f"{run} has no checkpoint to go on from; start a new run with --config {run / 'config.yaml'}."
        )
    for path in found:
        try:
            read_checkpoint(path)
        except ValueError as error:
            warnings.warn(f"{str(error).rstrip('.')}: an older checkpoint of the run is taken.", stacklevel=2)
        else:
            return path
    raise ValueError(f"No checkpoint of {run} can be read; start a new run with --config {run / 'config.yaml'}.")


def best_checkpoint(run: Path) -> Path:
    """The checkpoint of the model that is kept in `model/`; the newest where there was no best one yet.

    What is best is what the run's `BestModel` remembers: names of files say nothing of it once a run was moved, or has
    a ModelCheckpoint of the user's.

    Raises:
        FileNotFoundError: if the run has no checkpoint.
        ValueError: if the newest cannot be read.
    """
    last = last_checkpoint(run)
    newest = read_checkpoint(last)
    states = [state for state in newest.get("callbacks", {}).values() if isinstance(state, dict)]
    update = newest.get("callbacks", {}).get("BestModel", {}).get("update")
    if update in (None, newest["global_step"]):
        return last
    elsewhere = [Path(state["best_model_path"]) for state in states if state.get("best_model_path")]
    for path in [*sorted((run / "checkpoints").glob("*.ckpt")), *filter(Path.is_file, elsewhere)]:
        with suppress(ValueError):  # one that is cut short
            if read_checkpoint(path)["global_step"] == update:
                return path
    warnings.warn(
        f"The best model of {run}, of update {update}, has no checkpoint; what is scored is the newest, of update "
        f"{newest['global_step']}. `bitune evaluate --run {run}` scores the best.",
        stacklevel=2,
    )
    return last
