"""Answers that end in a number (GSM8K, `sums`): find it, and compare it with the gold one.

The number after the last `####` counts; without one, the last number of the text. `9,500`, `$29.00.` and `-5` are read
as numbers, so that spelling does not decide. An answer without a number is wrong, and is counted apart by the caller.
"""

import re
from collections.abc import Iterable
from decimal import Decimal

MARK = "####"
# A sign counts only where it cannot be a minus between two numbers; commas only where they group three digits.
_NUMBER = re.compile(r"(?:(?<![\w.)])-\s?)?[$£€]?\s?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def extract_number(text: str) -> Decimal | None:
    """The number that an answer states, or None.

    >>> extract_number("48 / 2 = 24 clips. #### 9,500")
    Decimal('9500')
    """
    _, mark, tail = text.rpartition(MARK)
    stated = _NUMBER.findall(tail) if mark else []
    found = stated[:1] or _NUMBER.findall(text)[-1:]
    return Decimal(re.sub(r"[^\d.-]", "", found[0])) if found else None


def before_stop(text: str, stops: Iterable[str] = ("\nQuestion:",)) -> str:
    """The text before the first of the stop strings: what follows is the model going on with a question of its own."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
