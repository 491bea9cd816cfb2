"""Answers that end in a number (GSM8K, `sums`): find it, and compare it with the gold one.

Two ways, since the paper does not say which one it prints (`exact_match_strict`, `exact_match_flexible`):

* strict: the harness's, as the paper's code has it. The first `#### ` that a number follows counts, and numbers are
  compared as text, without commas and a last full stop. `#### $18` states nothing, and 29.00 is not 29.
* flexible: what the answer says. The number after the last `####` counts; without one, the last number of the text.
  `9,500`, `$29.00.`, `-5` and `1/2` are read as numbers, so that spelling does not decide. (The harness's own takes
  the last number of the text in any case, and 95 for an answer that ends in "Confidence: 95%".)

An answer without a number is wrong, and is counted apart by the caller.
"""

import re
from decimal import Decimal

from bitune_pl.evaluation.numbers import numbers, stated

MARK = "####"
_STRICT = re.compile(r"#### (-?[0-9.,]+)")


def strict_number(text: str) -> str | None:
    """The number that the strict pattern finds, as it is compared, or None.

    >>> strict_number("48 / 2 = 24 clips. #### 9,500.")
    '9500'
    """
    found = _STRICT.search(text)
    return found and (found[1].replace(",", "").removesuffix(".") or None)


def extract_number(text: str) -> Decimal | None:
    """The number that an answer states, or None.

    >>> extract_number("48 / 2 = 24 clips. #### 9,500")
    Decimal('9500')
    """
    _, mark, tail = text.rpartition(MARK)
    said = stated(tail.strip().partition("\n")[0]) if mark else None
    return said if said is not None else next(reversed(numbers(text)), None)
