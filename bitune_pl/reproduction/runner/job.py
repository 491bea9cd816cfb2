"""A job: a run, and where it happens. Light to import, unlike `work`, which does it."""

from dataclasses import dataclass
from pathlib import Path

from bitune_pl.reproduction.runner.experiment import Run

BUSY = 75
"""Exit status of a process that found the run's training in the hands of another."""


@dataclass(frozen=True)
class Job:
    """What a process is given.

    Args:
        folder: of the grid.
        root: folder of local data, None for the hub.
        patient: wait for another process that is at the same training, rather than leave.
        threads: of the CPU; None leaves what is set.
        gpu: which one; None leaves what is visible.
    """

    run: Run
    folder: Path
    root: str | None = None
    patient: bool = True
    threads: int | None = None
    gpu: int | None = None


def own_process(job: Job) -> None:
    """Do a job in this process, which is the job's own, and leave with its status."""
    from bitune_pl.reproduction.runner import work

    work.main(job)


def do(job: Job) -> int:
    """Do a job and return its status: 0, 1 if it failed, BUSY."""
    from bitune_pl.reproduction.runner import work

    return work.do(job)
