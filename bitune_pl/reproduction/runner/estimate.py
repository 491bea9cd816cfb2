"""How long cells will take and how much memory they need, without loading anything (`--dry-run`).

    training     4 x parameters x tokens (6 x where the base's own layers are trained), the prompt counted once a reading
    evaluation   2 x parameters x tokens, all choices of a question after one reading of its prompt

over a speed: that of the finished cells of the profile where there are some, else a figure of the profile's. Memory is
the base in bfloat16, 16 bytes for each trained weight, and the activations of a micro-batch. Rough: right within a
factor of two at best.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitune_pl.method.variants import resolve
from bitune_pl.reproduction.runner.experiment import Cell, Run

START = 15.0  # seconds of each run before its first update and after its last
PROCESS = 0.8  # GB of a process that has imported everything


@dataclass(frozen=True)
class Costs:
    """Estimates for the runs of a profile; `speed` in floating-point operations a second, and where it comes from."""

    common: Mapping[str, Any]
    speed: float
    basis: str
    memory_factor: float = 1.0

    @classmethod
    def of(cls, common: Mapping[str, Any], profile: str, finished: Iterable[Mapping[str, Any]]) -> "Costs":
        """From the finished cells of a profile, or from the profile's own figure."""
        flops = common["profiles"][profile]["flops"]
        costs = cls(common, float(flops["value"]), f"{float(flops['value']) / 1e9:,.0f} GFLOP/s, as {flops['of']}")
        timed = [(Run(r["settings"]), r) for r in finished if "model" in r["settings"] and r["train_seconds"]]
        if not timed:
            return costs
        speeds = [
            costs.operations(run) / max(1.0, r["train_seconds"] + r["evaluate_seconds"] - START) for run, r in timed
        ]
        factor = statistics.median(r["peak_memory_gb"] / costs.memory(run) for run, r in timed)
        speed = statistics.median(speeds)
        return cls(common, speed, f"{speed / 1e9:,.0f} GFLOP/s, as measured on {len(timed)} finished cells", factor)

    def seconds(self, run: Run, trained: bool = False) -> float:
        """Of a run; of its evaluation alone where another has `trained` it."""
        operations = self.evaluation(run) if trained else self.operations(run)
        return START + operations / self.speed

    def memory(self, run: Run) -> float:
        """GB at the peak."""
        model, facts = run.settings["model"], self._facts(run)
        trained = self._trained(model, facts)
        tokens = self._batch_tokens(run)
        activations = tokens * (100 * facts["layers"] * facts["width"] + 8 * facts["vocabulary"])
        return self.memory_factor * (PROCESS + (2 * facts["parameters"] + 16 * trained + activations) / 1e9)

    def operations(self, run: Run) -> float:
        """Floating-point operations of training and evaluation together."""
        passes = 6 if run.settings["model"].get("adapter") == "full" else 4
        tokens = run.settings.get("trainer", {}).get("max_steps", 0) * self._update_tokens(run)
        return self._facts(run)["parameters"] * passes * tokens + self.evaluation(run)

    def evaluation(self, run: Run) -> float:
        """Floating-point operations of what is measured after the training, if there is one."""
        tokens = sum(self._task_tokens(task, limit, run) for task, limit in run.settings.get("tasks", {}).items())
        return self._facts(run)["parameters"] * 2 * (tokens + self._latency_tokens(run))

    def _facts(self, run: Run) -> Mapping[str, Any]:
        base = run.settings["model"]["base"]
        return next(model for model in self.common["models"].values() if model["base"] == base)

    def _size(self, name: str) -> Mapping[str, int]:
        return self.common["sizes"][name]

    def _update_tokens(self, run: Run) -> float:
        if not run.trains:
            return 0
        settings, size = run.settings, self._size(run.settings["data"]["source"])
        rows = settings["data"]["batch_size"] * settings["trainer"].get("accumulate_grad_batches", 1)
        return rows * (size["prompt"] * _readings(run) + size["answer"])

    def _batch_tokens(self, run: Run) -> float:
        """Of a micro-batch: the mean, and at least one longest row."""
        if not run.trains:
            return 0
        mean = self._update_tokens(run) / run.settings["trainer"].get("accumulate_grad_batches", 1)
        return max(mean, run.settings["data"].get("max_length", 512) * _readings(run))

    def _task_tokens(self, task: str, limit: int | None, run: Run) -> float:
        size = self._size(task)
        rows = min(size["rows"], limit * size.get("parts", 1)) if limit else size["rows"]
        return rows * (size["prompt"] * _readings(run) + size["scored"])

    def _latency_tokens(self, run: Run) -> float:
        if not (asked := run.settings.get("latency")):
            return 0
        whole = asked["prompt_tokens"] * _readings(run) + asked["new_tokens"]
        return whole + asked["repeats"] * (asked["prompt_tokens"] * _readings(run) + whole)

    def _trained(self, model: Mapping[str, Any], facts: Mapping[str, Any]) -> float:
        """Trained weights: two low-rank factors on about seven layers of a block, or copies of the layers."""
        sets = 2 if "method" in model and resolve(model["method"]).separate_weights else 1
        rank = model.get("adapter_settings", {}).get("r", 8)
        each = {"full": facts["parameters"], "none": 0}.get(model.get("adapter", "none"), 0)
        return sets * each if each or "adapter" not in model else sets * facts["layers"] * rank * facts["width"] * 20


def _readings(run: Run) -> int:
    """How often a prompt is read."""
    if "method" not in run.settings["model"]:
        return 1
    method = resolve(run.settings["model"]["method"])
    return 2 if method.mixing else method.prompt_copies


def listing(cells: Sequence[Cell], costs: Costs, finished: set[str], slots: int) -> str:
    """Cells with their estimates, the sum over those that are not finished, and what it all rests on."""
    lines = [f"  {'cell':<64}{'runs':>5}{'minutes':>10}{'GB':>7}"]
    total, seen = 0.0, set()
    for cell in cells:
        minutes = [costs.seconds(run, run.training in seen) / 60 for run in cell.runs]
        seen |= {run.training for run in cell.runs if run.trains}
        total += 0 if cell.key in finished else sum(minutes)
        memory, state = max(map(costs.memory, cell.runs)), "  finished" if cell.key in finished else ""
        lines.append(f"  {str(cell):<64}{len(cell.runs):>5}{sum(minutes):>10.1f}{memory:>7.1f}{state}")
    open_ = sum(cell.key not in finished for cell in cells)
    time = "a minute" if round(total / slots) == 1 else f"{total / slots:.0f} minutes"
    lines += ["", f"{len(cells)} cells, {open_} of them to do, about {time} with --jobs {slots}."]
    return "\n".join([*lines, f"Estimate: tokens x parameters over {costs.basis}; within a factor of two at best."])
