"""`config.yaml` of a run: what differs from the defaults, what the machine decides, what names the run, and what was
changed when it was resumed.

It always says what the run was last trained with, so that a run which was extended can be resumed by its folder alone.
"""

from pathlib import Path
from typing import Any

import yaml

from bitune_pl import __version__

NAME = "config.yaml"


def write(run: Path, settings: dict[str, Any]) -> None:
    """The config of a new run."""
    again = f"bitune fit --config {run}/{NAME}"
    _write(run, [f"# bitune_pl {__version__}; all else is at its default. Again: {again}"], settings)


def update(run: Path, settings: dict[str, Any], updates: int) -> None:
    """The config of a run that goes on after so many updates; what is new is also said in a line of its head."""
    text = (run / NAME).read_text(encoding="utf-8")
    before, now = _flat(yaml.safe_load(text) or {}), _flat(settings)
    names = [name for name in now | before if before.get(name) != now.get(name)]
    if names:
        head = [line for line in text.splitlines() if line.startswith("#")]
        said = (f"{name} {_said(before, name)} -> {_said(now, name)}" for name in names)
        _write(run, [*head, f"# after update {updates}: {'; '.join(said)}"], settings)


def _write(run: Path, head: list[str], settings: dict[str, Any]) -> None:
    body = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    (run / NAME).write_text("\n".join([*head, body]), encoding="utf-8")


def _flat(settings: dict[str, Any], group: str = "") -> dict[str, Any]:
    """Settings by their full names, as on the command line."""
    found = {}
    for name, value in settings.items():
        found |= _flat(value, f"{group}{name}.") if isinstance(value, dict) and value else {f"{group}{name}": value}
    return found


def _said(settings: dict[str, Any], name: str) -> str:
    return " ".join(str(settings.get(name, "(default)")).split())
