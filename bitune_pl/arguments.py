"""What commands take: argparse and configs whose errors are sentences for `cli.main` to print."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import NoReturn


class Arguments(ArgumentParser):
    """Raises ValueError on a user's mistake, and takes no abbreviations."""

    def __init__(self, command: str, about: str) -> None:
        super().__init__(prog=f"bitune {command}", description=about, allow_abbrev=False)

    def parse_args(self, args=None, namespace=None) -> Namespace:
        """As argparse does, which would tell of a required option that is missing before one that is misspelt."""
        known = self._option_string_actions
        for said in takewhile(lambda said: said != "--", args or ()):
            option = said.split("=")[0]
            if option.startswith("--") and " " not in said and option not in known:  # with a space it is a value
                near = get_close_matches(option, known, n=1)
                self.error(f"There is no option {option}" + (f" (did you mean {near[0]}?)" if near else ""))
        return super().parse_args(args, namespace)

    def add_model(self) -> None:
        """Which model to open, and how; see `evaluation/run.py`."""
        self.add_argument("--run", metavar="FOLDER", help="folder of a run")
        self.add_argument(
            "--base", metavar="NAME", help="a decoder as pretrained: hub id, folder, .gguf file, smollm2, gemma3-270m"
        )
        self.add_argument(
            "--dtype",
            choices=["bfloat16", "float32"],
            help="type of the base (of a run, the one it was trained in; else bfloat16, or float32 on a CPU that is slow in it)",
        )

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message[:1].upper()}{message[1:]}; {self.prog} --help lists what it takes.")


def check_model(run: str | None, base: str | None) -> None:
    """Raises:
    ValueError: if not exactly one of `--run` and `--base` was given.
    """
    if (run is None) == (base is None):
        raise ValueError(
            "Say which model, by one of the two: --run FOLDER (a finished run) or --base NAME (a decoder as pretrained)."
        )


def configs_of(argv: Sequence[str]) -> dict[str, dict]:
    """The configs that a command line names by `--config` or `-c`, read, by their paths (one may be written out instead).

    Raises:
        FileNotFoundError, ValueError: as `read_config`; also of a config that names another.
    """
    finder = ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("-c", "--config", action="append", nargs="?", const="", default=[])
    said = filter(None, finder.parse_known_args(argv)[0].config)  # the command itself says that a path is missing
    found = {name: _written_out(name) if name.lstrip().startswith("{") else read_config(Path(name)) for name in said}
    for name, config in found.items():
        if "config" in config:
            raise ValueError(
                f"{name} holds a section config, which no config of bitune fit does: give one that has none."
            )
    return found


def read_config(path: Path) -> dict:
    """The sections of a config of `bitune fit`.

    Raises:
        FileNotFoundError, ValueError: if there is none, or it is no config.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no config {path}; check the path.")
    return _sections(path.read_bytes(), str(path))


def _written_out(text: str) -> dict:
    return _sections(text.encode(), "--config")


def _sections(text: bytes, where: str) -> dict:
    import yaml

    try:
        config = yaml.safe_load(text.decode())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where} is not YAML ({' '.join(str(error).split())}).") from None
    if not isinstance(config, dict):
        raise ValueError(f"{where} is no config: it should hold the sections data and model.")
    return config
