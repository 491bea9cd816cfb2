"""What a generated answer says: lm-eval's `process_results` of the tasks that are answered in words.

`strict` asks for the form that the task is trained in: the number after `####` (GSM8K, by the published pattern), the letter
or number after the last "Answer:" (worked answers). `flexible` takes what else states an answer: the number as
`exact_match.extract_number` finds it; a letter in parentheses, or after "answer is". What is found is compared as a
number or a letter, so that "9,500" and "$9500.00" are the same. An answer in which nothing is found is wrong, and is
counted by `without_answer`.
"""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from bitune_pl.data.chain_of_thought import final_answer
from bitune_pl.evaluation.exact_match import extract_number

_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_LETTER = re.compile(r"(?i:answer is|answer:)\s*\(?([A-Z])\b|\(([A-Z])\)")

Found = Decimal | str | None


def marked_number(text: str) -> Decimal | None:
    """The number after the first `#### `, by the published pattern.

    >>> marked_number("so 9 a day. #### 9,500.")
    Decimal('9500')
    """
    found = _MARKED.search(text)
    return _decimal(found[1]) if found else None


def stated(text: str) -> str | None:
    """The final answer in the trained form, or as it is stated last.

    >>> stated("So the answer is (B).")
    'B'
    """
    if found := final_answer(text):
        return found
    letters = [a or b for a, b in _LETTER.findall(text)]
    if letters:
        return letters[-1]
    number = extract_number(text)
    return None if number is None else f"{number.normalize():f}"


def number(doc: dict, results: list[str]) -> dict[str, float]:
    """Scores of a sum that ends in a number."""
    return _scores(results[0], extract_number(doc["answer"]), marked_number, extract_number)


def worked(doc: dict, results: list[str]) -> dict[str, float]:
    """Scores of a worked answer that ends in a letter or a number."""
    return _scores(results[0], final_answer(doc["answer"]), final_answer, stated)


EXTRACTORS: dict[Callable, Callable[[str], Found]] = {number: extract_number, worked: stated}
"""What the flexible score of a task found, for who wants to read it."""


def _scores(
    text: str, gold: Found, strict: Callable[[str], Found], flexible: Callable[[str], Found]
) -> dict[str, float]:
    found = flexible(text)
    return {
        "exact_match_strict": float(strict(text) == gold),
        "exact_match_flexible": float(found == gold),
        "without_answer": float(found is None),
    }


def _decimal(written: str) -> Decimal | None:
    try:
        return Decimal(written.replace(",", "").rstrip("."))
    except InvalidOperation:
        return None
