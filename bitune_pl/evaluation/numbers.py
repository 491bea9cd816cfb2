"""Numbers as people and models write them in a sentence: which ones a text holds, and which one it states.

`1,072`, `$29.00`, `-5`, `−5`, `.5`, `1/2`, `2½` and LaTeX's `\\frac{1}{2}` and `1{,}072` are read by their value, so that
spelling decides nothing. Units, words and dates around them are passed over. What a gold answer is, and which part of
an answer counts, is the business of the callers.
"""

import re
import unicodedata
from decimal import Decimal

_CURRENCY = "$£€"
# A minus is a sign where it cannot stand between two numbers and, if a space follows it, is no bullet of a list.
# Commas group three digits; a slash makes a fraction unless it is part of a date.
_NUMBER = re.compile(
    rf"""
    (?P<sign> (?<![\w.)\]%]) - (?=[{_CURRENCY}.\d]) | (?:\A|(?<=[=:])) [ ]* - [ ] )?
    [{_CURRENCY}]? \s?
    (?:
        (?<![\d/.,]) (?: (?P<whole>\d+) [ ] )? (?P<top>\d+) / (?P<bottom>[1-9]\d*) (?![\d/.])
      | (?P<plain> \d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)? | \d+(?:\.\d+)? | \.\d+ )
    )
    """,
    re.VERBOSE,
)
_GROUPED = re.compile(r"(?<=\d)(?:\{,\}|\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_FRAC = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_CALCULATES = re.compile(rf"[\s\d.,+\-*/×÷(){_CURRENCY}%]*")
_VULGAR = re.compile("[¼-¾⅐-⅞]")


def numbers(text: str) -> list[Decimal]:
    """All numbers of a text in their order.

    >>> numbers("48 / 2 = 24 clips, $1,072.50 in all")
    [Decimal('48'), Decimal('2'), Decimal('24'), Decimal('1072.50')]
    """
    return [_value(found) for found in _NUMBER.finditer(_as_typed(text))]


def stated(line: str) -> Decimal | None:
    """The number that a final line states: its first, or the result where the line starts with a calculation.

    >>> stated("48 / 2 = 24 clips, not 25")
    Decimal('24')
    >>> stated("24 = 48 / 2")
    Decimal('24')
    """
    line = _as_typed(line)
    first = _NUMBER.search(line)
    if first is None:
        return None
    rest = line[first.end() :]
    if rest.lstrip()[:1] in tuple("+-*/×÷") and "=" in rest:
        return _result(rest.split("=")[1:])
    return _value(first)


def _result(sides: list[str]) -> Decimal | None:
    """What a calculation comes to: the number on its last side; where words follow one, that is the last."""
    last = next((side for side in sides if not _CALCULATES.fullmatch(side)), sides[-1])
    return next(iter(numbers(last)), None)


def spelled(number: Decimal) -> str:
    """The plainest form, the same for `1072`, `1072.00` and `1.072e3`."""
    return f"{number.normalize() + 0:f}"  # adding 0 makes -0 a 0


def _as_typed(text: str) -> str:
    """The text with typographic and LaTeX forms of numbers as a keyboard has them."""
    text = _FRAC.sub(r" \1/\2", text.replace("\u2212", "-").replace("\\$", "$"))
    text = _VULGAR.sub(lambda sign: " " + unicodedata.normalize("NFKC", sign[0]).replace("\u2044", "/"), text)
    return _GROUPED.sub(",", text)


def _value(found: re.Match) -> Decimal:
    if found["plain"]:
        value = Decimal(found["plain"].replace(",", ""))
    else:
        value = Decimal(found["whole"] or 0) + Decimal(found["top"]) / Decimal(found["bottom"])
    return -value if found["sign"] else value
