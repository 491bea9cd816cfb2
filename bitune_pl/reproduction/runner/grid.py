"""The cells of a table, done: searches first, then the rest, each once, whatever happened before.

A cell that is recorded with the same settings is not done again. A failed one is reported and the others go on. How a
run is done is in `work`, where in `launch`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitune_pl.reproduction.runner import places
from bitune_pl.reproduction.runner.experiment import Cell, Grid, Run
from bitune_pl.reproduction.runner.job import BUSY, Job
from bitune_pl.reproduction.runner.launch import reason
from bitune_pl.reproduction.runner.places import Places

Record = dict[str, Any]


@dataclass
class Runner:
    """Does cells below a folder.

    Args:
        launch: does jobs, and yields each with its exit status when it ends.
        root: folder of local data.
        taken: finished cells of another grid, by key, which are taken over and not done.
        say: where progress goes.
    """

    folder: Path
    launch: Callable[[Sequence[Job]], Iterator[tuple[Job, int]]]
    root: str | None = None
    taken: Mapping[str, Record] = field(default_factory=dict)
    say: Callable[[str], object] = print

    def __post_init__(self) -> None:
        self.places = Places(self.folder)

    def table(self, grid: Grid) -> list[Record]:
        """The records of all cells of a table, those of its searches first."""
        searched: list[Record] = []
        rates: dict[str, float | None] = {}
        for name, cells in grid.searches().items():
            records = self.finish(cells)
            searched += records
            rates[name] = winner(records)
            if rates[name]:
                without = [record["method"].split()[-1] for record in records if record["status"] != "done"]
                beside = f" (without {', '.join(without)}, which failed)" if without else ""
                self.say(f"{name}: the learning rate with the lowest validation loss is {rates[name]:g}{beside}")
        cells = grid.cells(rates)
        return searched + self.finish([cell for cell in cells if not cell.search]) + self._without_rate(cells)

    def finish(self, cells: Sequence[Cell]) -> list[Record]:
        """Records of cells, of which those that are not finished are done now."""
        found = {cell.name: record for cell in cells if (record := self._known(cell))}
        if cells:
            self.say(f"{cells[0].table}: {len(cells)} cells, {len(found)} of them finished before")
        over: set[str] = set()
        for run in self._runs([cell for cell in cells if cell.name not in found]):
            over.add(run.key)
            for cell in cells:
                if cell.name not in found and over.issuperset(run.key for run in cell.runs):
                    found[cell.name] = self._put_together(cell)
                    self.say(f"[{len(found)}/{len(cells)}] {self._line(cell, found[cell.name])}")
        return [found[cell.name] for cell in cells]

    def _known(self, cell: Cell) -> Record | None:
        """The record of a cell that is finished, here or in the grid that is taken over."""
        path = self.places.cell(cell)
        if stale := places.set_aside_stale(path, cell.key):
            self.say(stale)
        if record := places.finished(path, cell.key):
            return record
        if cell.key in self.taken:
            names = {"table": cell.table, "profile": cell.profile, "model": cell.model, "method": cell.method}
            places.write(path, self.taken[cell.key] | names | {"seed": cell.seed})
            return places.read(path)
        return None

    def _runs(self, cells: Iterable[Cell]) -> Iterator[Run]:
        """The runs of cells, each once and when it is over; those in the hands of another process are waited for last."""
        runs = list({run.key: run for cell in cells for run in cell.runs}.values())
        for run in runs:
            if damaged := places.set_aside_stale(self.places.part(run), run.key):
                self.say(damaged)
        known = [run for run in runs if places.finished(self.places.part(run), run.key)]
        yield from known
        jobs = [Job(run, self.folder, self.root, patient=False) for run in runs if run not in known]
        busy = []
        for job, status in self.launch(jobs) if jobs else ():
            if status == BUSY:
                busy.append(Job(job.run, self.folder, self.root, patient=True))
            else:
                yield self._ended(job.run, status)
        if busy:
            self.say(f"waiting for another process, which is at {len(busy)} of these runs")
            for job, status in self.launch(busy):
                yield self._ended(job.run, status)

    def _ended(self, run: Run, status: int) -> Run:
        """See that a run which ended left a record, if only of its failure."""
        left = places.read(self.places.part(run))
        if left is None or left["status"] == "begun":
            failed = {"status": "failed", "error": reason(status), "key": run.key, "settings": run.settings}
            places.write(self.places.part(run), failed)
        return run

    def _put_together(self, cell: Cell) -> Record:
        """Write the record of a cell whose runs are all over."""
        record = places.cell_record(cell, [places.read(self.places.part(run)) for run in cell.runs])
        places.write(self.places.cell(cell), record)
        return record

    def _without_rate(self, cells: Sequence[Cell]) -> list[Record]:
        records = []
        for cell in (cell for cell in cells if cell.search):
            error = f"No run of the search {', '.join(cell.search)} ended with a loss, so there is no learning rate."
            record = places.cell_record(cell, [{"status": "failed", "error": error}])
            places.write(self.places.cell(cell), record)
            self.say(f"failed: {cell}: {error}")
            records.append(record)
        return records

    def _line(self, cell: Cell, record: Record) -> str:
        if record["status"] != "done":
            logs = [self.places.log(run) for run in cell.runs if not places.finished(self.places.part(run), run.key)]
            return f"failed: {cell}: {record['error']} Log: {', '.join(map(str, logs))}"
        return f"{cell}: {summary(record)}"


def winner(records: Iterable[Record]) -> float | None:
    """The learning rate with the lowest validation loss among the runs of a search; None if none has a loss."""
    losses = {record["lr"]: record["loss_validation"] for record in records if record["status"] == "done"}
    losses = {rate: loss for rate, loss in losses.items() if loss is not None and math.isfinite(loss)}
    return min(losses, key=losses.get) if losses else None


def summary(record: Record) -> str:
    """A cell in a few words."""
    if latency := record.get("latency"):
        seconds = f"prefill {latency['prefill_seconds']:.2f} s, decoding {latency['decode_seconds']:.2f} s"
        return f"{seconds} ({latency['prompt_tokens']} and {latency['new_tokens']} tokens)"
    accuracies = [score["acc"] for score in record["scores"].values()]
    said = [f"accuracy {sum(accuracies) / len(accuracies):.3f} over {len(accuracies)} tasks"] if accuracies else []
    said += [f"validation loss {record['loss_validation']:.4f}"] if record["loss_validation"] is not None else []
    seconds = f"{record['train_seconds']:.0f} s training, {record['evaluate_seconds']:.0f} s evaluation"
    return ", ".join([*said, seconds])
