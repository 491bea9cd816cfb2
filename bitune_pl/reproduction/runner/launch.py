"""Where runs happen: in processes of this machine, or as jobs of a SLURM cluster through submitit.

Both give each run a process of its own and yield it with its exit status as soon as it ends. Which runs there are, and
what comes of their records, is the business of `grid`; what a run does is in `work`, which is not imported here: it is heavy.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bitune_pl.reproduction.runner.job import Job, do, own_process

Ended = tuple[Job, int]
POLL, GRACE = (
    2.0,
    10,
)  # seconds between looks at a cluster's queue, and looks after which a job that left it is given up


@dataclass
class Local:
    """Processes on this machine, `slots` at a time; each slot has its share of the cores, and a GPU where there are some.

    The processes are forked from one that has imported everything, so that this is done once and not for each run.
    """

    slots: int = 1
    gpus: int = 0
    running: set[BaseProcess] = field(default_factory=set)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Ended]:
        context = get_context("forkserver")
        context.set_forkserver_preload(["bitune_pl.reproduction.runner.work"])
        free: SimpleQueue[int] = SimpleQueue()
        for slot in range(self.slots):
            free.put(slot)
        pool = ThreadPoolExecutor(self.slots)
        try:
            for future in as_completed([pool.submit(self._one, context, job, free) for job in jobs]):
                yield future.result()
        except BaseException:
            for process in list(self.running):
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _one(self, context, job: Job, free: SimpleQueue) -> Ended:
        slot = free.get()
        try:
            process = context.Process(target=own_process, args=(self._in_slot(job, slot),))
            process.start()
            self.running.add(process)
            process.join()
            self.running.discard(process)
            return job, process.exitcode
        finally:
            free.put(slot)

    def _in_slot(self, job: Job, slot: int) -> Job:
        threads = None if "OMP_NUM_THREADS" in os.environ else max(1, (os.cpu_count() or 1) // self.slots)
        return replace(job, threads=threads, gpu=slot % self.gpus if self.gpus else None)


@dataclass
class Slurm:
    """An array of jobs, at most `slots` at a time; `options` are sbatch's, by submitit's names (`partition`, `mem_gb`)."""

    folder: Path
    slots: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = "slurm"

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Ended]:
        import submitit

        executor = submitit.AutoExecutor(self.folder.absolute(), cluster=self.cluster)
        own = {"timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node"}
        said = {name if name in own else f"slurm_{name}": value for name, value in self.options.items()}
        executor.update_parameters(name="bitune", slurm_array_parallelism=self.slots, **said)
        submitted = executor.map_array(do, [replace(job, folder=job.folder.absolute()) for job in jobs])
        of = {handle.job_id: job for handle, job in zip(submitted, jobs, strict=True)}
        for handle, status in self._over(submitted):
            yield of[handle.job_id], status

    def _over(self, pending: list) -> Iterator[tuple[Any, int]]:
        """Jobs with their status as they end. One that has left the queue for a while without a result was killed:
        submitit would wait for it for ever where the cluster keeps no accounts."""
        missed: Counter[str] = Counter()
        while pending:
            queued, waiting = self._queued(), []
            for handle in pending:
                missed[handle.job_id] += queued is not None and handle.job_id not in queued
                if handle.done():
                    yield handle, _status(handle)
                elif missed[handle.job_id] > GRACE:
                    yield handle, 1
                else:
                    waiting.append(handle)
            pending = waiting
            time.sleep(POLL if pending else 0)

    def _queued(self) -> set[str] | None:
        """Ids of the jobs in the queue; None where it cannot be asked."""
        if self.cluster != "slurm":
            return None
        said = subprocess.run(["squeue", "--noheader", "--array", "--format=%i"], capture_output=True, text=True)
        return set(said.stdout.split()) if said.returncode == 0 else None


def check_slurm() -> None:
    """Raises:
    ModuleNotFoundError, FileNotFoundError: if there is no submitit, or no cluster to send jobs to.
    """
    import importlib.util
    import shutil

    if importlib.util.find_spec("submitit") is None:
        raise ModuleNotFoundError("--launcher slurm needs the package submitit: pip install 'bitune_pl[slurm]'")
    if shutil.which("sbatch") is None:
        raise FileNotFoundError(
            "--launcher slurm needs sbatch, which is not on the PATH: run this on a machine of the cluster."
        )


def _status(handle) -> int:
    """What `work.do` returned; 1 for a job that did not come to its end."""
    error = handle.exception()
    return handle.result() if error is None else 1


def reason(status: int) -> str:
    """Why a run left no record."""
    if status < 0:
        name = signal.Signals(-status).name
        return f"The run was ended by {name}" + (", perhaps for want of memory." if name == "SIGKILL" else ".")
    return f"The run ended with status {status} and left no record."
