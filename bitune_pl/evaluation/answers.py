"""What a generated answer says: lm-eval's `process_results` of the tasks that are answered in words.

`strict` asks for the form that the task is trained in: the number after `####` (GSM8K, by the published pattern, compared as
the harness does), the letter or number after the last "Answer:" (worked answers). `flexible` takes what else states an
answer, the text of a choice included, and compares numbers by their value (`exact_match.extract_number`,
`stated_answer`); where a worked answer states none, its last letter in parentheses or its last number. Letters are looked
for where the right answer is one, and numbers where it is one. An answer in which nothing is found is wrong, and is counted
by `without_answer`.
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


def stated(text: str, letters: int, choices: Sequence[str] = ()) -> str | None:
    """The final answer that a worked answer states, or ends in: one of so many letters, or a number where these are none.

    >>> stated("So the answer is (B).", 26)
    'B'
    """
    if found := stated_answer(text, choices, letters):
        return found
    if letters:
        said = [letter for letter in _IN_PARENTHESES.findall(text) if ord(letter) - ord("A") < letters]
        return said[-1] if said else None
    number = extract_number(text)
    return None if number is None else spelled(number)


def number(doc: dict, results: list[str]) -> dict[str, float]:
    """Scores of a sum that ends in a number."""
    return _scores(results[0], doc, strict_number, EXTRACTORS[number])


def worked(doc: dict, results: list[str]) -> dict[str, float]:
    """Scores of a worked answer that ends in a letter or in a number."""
    return _scores(results[0], doc, final_answer, EXTRACTORS[worked])


EXTRACTORS: dict[Callable, Callable[[str, dict], Found]] = {
    number: lambda text, doc: extract_number(text),
    worked: lambda text, doc: stated(text, _letters(doc), doc.get("choices") or ()),
}
"""What the flexible score of a task found, for who wants to read it."""


def _letters(doc: dict) -> int:
    """How many letters the answer is one of: those of the choices, or all of them; none where it is a number."""
    return len(doc.get("choices") or ()) or (26 if (final_answer(doc["answer"]) or "").isalpha() else 0)


def _scores(
    text: str, doc: dict, strict: Callable[[str], Found], flexible: Callable[[str, dict], Found]
) -> dict[str, float]:
    found, marked, gold = flexible(text, doc), strict(text), doc["answer"]
    return {
        "exact_match_strict": float(marked is not None and marked == strict(gold)),
        "exact_match_flexible": float(found is not None and found == flexible(gold, doc)),
        "without_answer": float(found is None),
    }
