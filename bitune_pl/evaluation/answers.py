"""What a generated answer says: lm-eval's `process_results` of the tasks that are answered in words.

`strict` asks for the form that the task is trained in: the number after `####` (GSM8K, by the published pattern, compared as
the harness does), the letter or number after the last "Answer:" (worked answers). `flexible` takes what else states an
answer, the text of a choice included, and compares numbers by their value (`exact_match.extract_number`,
`stated_answer`); where a worked answer states none, its last letter in parentheses or its last number. An answer in which
nothing is found is wrong, and is counted by `without_answer`.
"""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal

from bitune_pl.data.chain_of_thought import final_answer
from bitune_pl.evaluation.exact_match import extract_number, strict_number
from bitune_pl.evaluation.numbers import spelled
from bitune_pl.evaluation.stated_answer import stated_answer

_IN_PARENTHESES = re.compile(r"\(([A-Z])\)")

Found = Decimal | str | None


def stated(text: str, choices: Sequence[str] = ()) -> str | None:
    """The final answer that a worked answer states, or ends in; among `choices`, where there are some.

    >>> stated("So the answer is (B).")
    'B'
    """
    if found := stated_answer(text, choices):
        return found
    letters = _IN_PARENTHESES.findall(text)
    if letters or choices:
        return letters[-1] if letters else None
    number = extract_number(text)
    return None if number is None else spelled(number)


def number(doc: dict, results: list[str]) -> dict[str, float]:
    """Scores of a sum that ends in a number."""
    return _scores(results[0], doc, strict_number, EXTRACTORS[number])


def worked(doc: dict, results: list[str]) -> dict[str, float]:
    """Scores of a worked answer that ends in a letter, or where no choices are listed in a number."""
    return _scores(results[0], doc, final_answer, EXTRACTORS[worked])


EXTRACTORS: dict[Callable, Callable[[str, dict], Found]] = {
    number: lambda text, doc: extract_number(text),
    worked: lambda text, doc: stated(text, doc.get("choices") or ()),
}
"""What the flexible score of a task found, for who wants to read it."""


def _scores(
    text: str, doc: dict, strict: Callable[[str], Found], flexible: Callable[[str, dict], Found]
) -> dict[str, float]:
    found, marked, gold = flexible(text, doc), strict(text), doc["answer"]
    return {
        "exact_match_strict": float(marked is not None and marked == strict(gold)),
        "exact_match_flexible": float(found is not None and found == flexible(gold, doc)),
        "without_answer": float(found is None),
    }
