"""What is wrong with a user's settings, in one sentence: jsonargparse's errors, retold.

jsonargparse names Python types and unions over several lines, and never the setting that was probably meant.
"""

import re
from difflib import get_close_matches

from lightning.pytorch.cli import LightningArgumentParser

from bitune_pl.training.settings import EMPTY

_UNKNOWN = [
    re.compile(r"unrecognized arguments: (?P<key>--[\w.+]+)"),
    re.compile(r"Group '(?P<group>[\w.]+)' does not accept option '(?P<key>[\w.]+)'"),
    re.compile(r"Option '(?P<key>[\w.]+)' is not accepted"),
]
_WRONG = re.compile(r"Parser key \"(?P<key>[\w.]+)\":\s*(?P<why>.*)", re.DOTALL)
_LINKED = re.compile(
    r"argument (?P<source>[\w.]+) --> (?P<key>[\w.]+):"
    r"|Linked \"(?P<key2>[\w.]+)\" must be given via \"(?P<source2>[\w.]+)\""
)
_UNION = re.compile(r".*Subtypes: \[(?P<expected>.*?)\] Errors:.*Given value: (?P<value>.*)", re.DOTALL)
_EXPECTED = re.compile(r"Expected an? (?P<expected>.*?)\. Got value: (?P<value>.*)", re.DOTALL)
_LACKS = re.compile(
    r"Problem with given class_path '(?P<path>[\w.]+)':\s*the following arguments are required: (?P<names>[\w, ]+)"
)
_EMPTY = re.compile(r'Key "(?P<section>\w+)\.\w+" not found in namespace')
_TYPES = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text", "NoneType": "null"}


def one_sentence(text: str, parser: LightningArgumentParser) -> str:
    """The error's text as one sentence, with the nearest setting where one is unknown."""
    for pattern in _UNKNOWN:
        if found := pattern.search(text):
            parts = found.groupdict()
            key = ".".join(filter(None, [parts.get("group"), parts["key"].lstrip("-").rstrip("+")]))
            return _unknown(key, sorted(parser.get_defaults().keys()))
    if found := _EMPTY.search(text):
        return EMPTY.format(found["section"])
    if found := _LINKED.search(text):
        return (
            f"{found['key'] or found['key2']} is taken from {found['source'] or found['source2']}: set that one alone."
        )
    if found := _WRONG.search(text):
        return _wrong(found["key"], " ".join(found["why"].split()))
    return " ".join(text.split())


def _unknown(key: str, known: list[str]) -> str:
    """Of two settings that are spelled alike, the one in the same group is nearer."""
    last = key.rpartition(".")[2]
    same_name = [name for name in known if name.rpartition(".")[2] == last]
    near = get_close_matches(key, known, n=1, cutoff=0.75) or same_name[:1] or get_close_matches(key, known, n=1)
    return f"There is no setting {key}" + (f"; did you mean {near[0]}?" if near else ".") + " All are listed by --help."


def _wrong(key: str, why: str) -> str:
    if lacks := _LACKS.search(why):
        name = lacks["path"].rpartition(".")[2]
        names = re.split(r"\W+", lacks["names"].split(" -")[0].strip())
        given = ", ".join(f"{argument}: ..." for argument in names)
        return f"{key}: {name} needs more settings: {{class_path: {name}, init_args: {{{given}}}}}."
    found = _EXPECTED.fullmatch(why) or _UNION.fullmatch(why)
    if not found:
        return f"{key} cannot be what was given: {why}."
    expected = re.sub(
        r"<class '([\w.]+)'>", lambda type_: _TYPES.get(type_[1], type_[1].rpartition(".")[2]), found["expected"]
    )
    expected = re.sub(r"(?:typing\.)?Literal\[([^]]*)\]", r"one of \1", expected).replace("typing.", "")
    return f"{key} is {found['value']}, where {expected} is expected."
