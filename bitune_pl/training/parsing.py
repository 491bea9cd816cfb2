"""What is wrong with a user's settings, in one sentence: jsonargparse's errors, retold.

jsonargparse names Python types and unions over several lines, and never the setting that was probably meant.
"""

import re
from difflib import get_close_matches

from lightning.pytorch.cli import LightningArgumentParser

_UNKNOWN = [
    re.compile(r"unrecognized arguments: (?P<key>--[\w.+]+)"),
    re.compile(r"Group '(?P<group>[\w.]+)' does not accept option '(?P<key>[\w.]+)'"),
    re.compile(r"Option '(?P<key>[\w.]+)' is not accepted"),
]
_WRONG = re.compile(r"Parser key \"(?P<key>[\w.]+)\":\s*(?P<why>.*)", re.DOTALL)
_LITERAL = re.compile(r"typing\.Literal\[(?P<values>[^]]*)\]")


def one_sentence(text: str, parser: LightningArgumentParser) -> str:
    """The error's text as one sentence, with the nearest setting where one is unknown."""
    for pattern in _UNKNOWN:
        if found := pattern.search(text):
            parts = found.groupdict()
            key = ".".join(filter(None, [parts.get("group"), parts["key"].lstrip("-").rstrip("+")]))
            return _unknown(key, sorted(parser.get_defaults().keys()))
    if found := _WRONG.search(text):
        return f"{found['key']} cannot be what was given: {_why(found['why'])}"
    return " ".join(text.split())


def _unknown(key: str, known: list[str]) -> str:
    """Of two settings that are spelled alike, the one in the same group is nearer."""
    last = key.rpartition(".")[2]
    same_name = [name for name in known if name.rpartition(".")[2] == last]
    near = get_close_matches(key, known, n=1, cutoff=0.75) or same_name[:1] or get_close_matches(key, known, n=1)
    return f"There is no setting {key}" + (f"; did you mean {near[0]}?" if near else ".") + " All are listed by --help."


def _why(text: str) -> str:
    text = _LITERAL.sub(lambda found: f"one of {found['values']}", text)
    text = re.sub(r"<class '(?:builtins\.)?(\w+)'>", r"\1", text)
    return " ".join(text.split()).replace("Got value:", "The value is")
