"""Experiments: from a table's YAML to its cells (paper, section 4; settings of A.2).

A cell is a model, a method and a seed, and is made of runs: most tables train once and evaluate on several tasks, Tables
2 and 3 train once for each task. Runs that say the same are the same run, whichever table asks for them. This file
starts nothing; what the YAML files may say is at the top of `experiments/common.yaml`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

PROFILES = ("smoke", "cpu", "paper")
SEARCH = "learning_rate"
"""Name of the table that the cells of a search stand in."""


@dataclass(frozen=True)
class Run:
    """What is trained, if anything, and what is measured afterwards.

    `settings` has `model`, and `seed`, `data`, `trainer` where something is trained, and `tasks` or `latency`. Places
    are not among them: `{root}` and `{tiny}` stand for the folders of data and of tiny decoders.
    """

    settings: dict[str, Any]

    @property
    def key(self) -> str:
        """Of all settings: what was recorded under another key is another run."""
        return _digest(self.settings)

    @property
    def training(self) -> str:
        """Of what decides the weights: runs that differ in their tasks only are trained once."""
        return _digest({name: said for name, said in self.settings.items() if name not in ("tasks", "latency")})

    @property
    def trains(self) -> bool:
        return "trainer" in self.settings


@dataclass(frozen=True)
class Cell:
    """A row of a table for one seed. `search` names the searches whose winner its runs take, where not known yet."""

    table: str
    profile: str
    model: str
    method: str
    seed: int
    runs: tuple[Run, ...]
    search: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return _digest([run.settings for run in self.runs])

    @property
    def name(self) -> str:
        return f"{self.model}--{slug(self.method)}--{self.seed}"

    def __str__(self) -> str:
        return f"{self.table} {self.model} {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """The cells of a table in a profile.

    Args:
        methods: some of the table's rows, None for all.
        models: other models than the table's.
        search: search the learning rate also where the recipe names one.

    Raises:
        ValueError: if there is no such table, profile, method or model.
    """

    table: str
    profile: str
    seeds: Sequence[int] | None = None
    methods: Sequence[str] | None = None
    models: Sequence[str] | None = None
    search: bool = False
    common: Mapping[str, Any] = field(default_factory=lambda: read("common"), repr=False)

    def __post_init__(self) -> None:
        _one_of(self.table, tables(), "table")
        _one_of(self.profile, PROFILES, "profile")
        for method in self.methods or ():
            _one_of(method, read(self.table)["methods"], f"method of {self.table}")
        for model in self.models or ():
            _one_of(model, self.common["models"], "model")

    def cells(self, rates: Mapping[str, float | None]) -> list[Cell]:
        """All cells. `rates` has the winner of each search that is over; a cell without its winner says what it waits for."""
        table, seeds = read(self.table), self.all_seeds
        methods = [m for m in table["methods"] if self.methods is None or m in self.methods]
        made = []
        for model in self.models or table["models"][self.profile]:
            for method in methods:
                trains = bool(self.common["methods"][method])
                for seed in seeds if trains or self._latency else seeds[:1]:
                    made.append(self._cell(model, method, seed, rates))
        return made

    @property
    def all_seeds(self) -> list[int]:
        """Those that were asked for, or the table's, or the profile's."""
        said = self.seeds or read(self.table).get("seeds", {}).get(self.profile)
        return list(said or self.common["profiles"][self.profile]["seeds"])

    def searches(self) -> dict[str, list[Cell]]:
        """The cells of each search that some cell waits for, by the search's name."""
        waiting = {name for cell in self.cells({}) for name in cell.search}
        found = {}
        for model in self.models or read(self.table)["models"][self.profile]:
            for said in self._recipe:
                if (name := self._search_name(said, model)) in waiting:
                    found[name] = [self._tried(name, model, said, rate) for rate in self._search(said)["rates"]]
        return found

    @property
    def _recipe(self) -> list[dict[str, Any]]:
        return self.common["profiles"][self.profile]["recipes"][read(self.table)["recipe"]]

    @property
    def _latency(self) -> bool:
        return "latency" in self._recipe[0]

    def _search(self, said: dict[str, Any]) -> dict[str, Any]:
        return said.get("search") or self.common["profiles"][self.profile]["search"]

    def _search_name(self, said: dict[str, Any], model: str) -> str:
        source = said.get("train", "").removeprefix("{root}/").split("/")[0]
        return f"{model}--{slug(self._search(said)['method'])}-{source}"

    def _tried(self, name: str, model: str, said: dict[str, Any], rate: float) -> Cell:
        """A cell of a search: trained and validated, not evaluated on tasks."""
        seed = self.common["profiles"][self.profile]["seeds"][0]
        run = self._run(model, self._search(said)["method"], seed, said, rate)
        run.settings.pop("tasks")
        method = f"{name.removeprefix(f'{model}--')} {rate:g}"
        return Cell(SEARCH, self.profile, model, method, seed, (run,))

    def _cell(self, model: str, method: str, seed: int, rates: Mapping[str, float | None]) -> Cell:
        runs, waits = [], []
        for said in self._recipe:
            rate = self._rate(said, model, method)
            if rate == "search":
                name = self._search_name(said, model)
                rate = rates.get(name)
                waits += [name] if rate is None else []
            runs.append(self._run(model, method, seed, said, rate))
        return Cell(self.table, self.profile, model, method, seed, tuple(runs), tuple(waits))

    def _rate(self, said: dict[str, Any], model: str, method: str) -> float | str | None:
        if not self.common["methods"][method] or "lr" not in said:
            return None
        lr = "search" if self.search else said["lr"]
        return lr.get(method, lr.get(model, lr["default"])) if isinstance(lr, dict) else lr

    def _run(self, model: str, method: str, seed: int, said: dict[str, Any], rate: float | None) -> Run:
        profile, how = self.common["profiles"][self.profile], self.common["methods"][method]
        base = {"base": self.common["models"][model]["base"]}
        if "latency" in said:
            return Run({"model": base | how, "latency": said["latency"], "seed": seed})
        if not how:
            return Run({"model": base, "tasks": said["tasks"]})
        settings = {"theta_init": 0.01, "lr": rate, **said.get("model", {})}
        return Run(
            {
                "seed": seed,
                "model": base | settings | how,
                "data": {"source": said["train"], **profile["data"], **said.get("data", {})},
                "trainer": {"max_steps": said["updates"], **profile["trainer"]},
                "tasks": said["tasks"],
            }
        )


@cache
def read(name: str) -> dict[str, Any]:
    """An experiment, or `common`, as data."""
    return yaml.safe_load((files(__package__) / "experiments" / f"{name}.yaml").read_text())


@cache
def tables() -> list[str]:
    """The tables that there are, by number."""
    names = [path.name.removesuffix(".yaml") for path in (files(__package__) / "experiments").iterdir()]
    return sorted((name for name in names if name.startswith("table")), key=lambda name: int(name[5:]))


def slug(text: str) -> str:
    """A part of a file's name: "Bitune (DoRA)" is bitune-dora."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.")


def _digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _one_of(name: str, known: Iterable[str], what: str) -> str:
    if name in (known := list(known)):
        return name
    lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), lower, n=1)
    hint = f"; did you mean {lower[near[0]]}?" if near else "."
    raise ValueError(f"There is no {what} {name!r}{hint} There are {', '.join(known)}.")
