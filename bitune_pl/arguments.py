"""argparse whose errors are sentences for `cli.main` to print, in place of a usage text and an exit."""

from argparse import ArgumentParser
from typing import NoReturn


class Arguments(ArgumentParser):
    """Raises ValueError on a user's mistake, and takes no abbreviations."""

    def __init__(self, command: str, about: str) -> None:
        super().__init__(prog=f"bitune {command}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message[:1].upper()}{message[1:]}; {self.prog} --help lists what it takes.")
