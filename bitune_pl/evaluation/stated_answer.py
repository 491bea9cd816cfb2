"""What a worked answer states in the end, in whatever words: the flexible way of scoring worked answers.

`chain_of_thought.final_answer` reads the form that a student is trained in, `Answer: B`, and nothing else. Decoders that
were not, write `The answer is (b)`, `\\boxed{72}`, `#### 72` or the text of a choice. The last statement counts, and one
that says nothing, such as a repetition that was cut off, does not. What is not stated to be the answer is never taken
for it.
"""

import re
from collections.abc import Sequence

from bitune_pl.evaluation.numbers import spelled, stated

_SAYS = re.compile(r"\banswer[*_]{0,2}\s*(?:is\s*)?:|<answer>|\\boxed\{|####", re.IGNORECASE)
_SAYS_IN_PROSE = re.compile(r"\banswer\s+is\b", re.IGNORECASE)
_LETTER = re.compile(
    r"""
    (?: (?:option|choice|letter) \s+ )?
    (?P<opened> [(\[]? ) (?P<letter> [A-Za-z] ) (?P<closed> [)\].:,;]* ) (?! \w | \s*= )
    (?P<rest> .* )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_SECOND_LETTER = re.compile(r"[)\]\s]*(?:or|and|and/or|[/&,])\s*[(\[]?[A-HJ-Z]\b")
_GOES_ON = re.compile(r"\s*(?:because|since|as|is)\b")  # "A because ..." is a letter, "A dog" an article
_EDGES = " \t\n\"'`*_$.,;:!?()[]{}<>"


def stated_answer(answer: str, choices: Sequence[str] = (), letters: int = 26) -> str | None:
    """The letter or number that a worked answer states last, spelled as `final_answer` does; None if there is none.

    Args:
        answer: the text, steps included.
        choices: texts of the choices, where the answer is one of them. Then only their letters count, and the text of
            a choice stands for its letter.
        letters: without choices, how many letters the answer may be, 0 for a number only.

    >>> stated_answer(" He sold 48 / 2 = 24 clips.\\nAnswer: 1,072.")
    '1072'
    >>> stated_answer("So it floats. The answer is a pen.", ["a stone", "a pen"])
    'B'
    """
    for line in (*_statements(answer, _SAYS), *_statements(answer, _SAYS_IN_PROSE)):
        if choices:
            return _letter(line, len(choices)) or _chosen(line, choices)
        number = stated(line)
        return _letter(line, letters) or (spelled(number) if number is not None else None)
    return None


def _statements(answer: str, says: re.Pattern) -> list[str]:
    """What follows each mark on its line or the next one that is not blank, the last first."""
    tails = (answer[mark.end() :] for mark in says.finditer(answer))
    lines = (re.sub(r"\\text\w*\{", "", tail).strip(" \t\n*_$`\"'").partition("\n")[0] for tail in tails)
    return [line for line in lines if line.strip(_EDGES)][::-1]


def _letter(said: str, choices: int) -> str | None:
    """A letter at the start of what is said, if it is no word and no second letter stands beside it."""
    found = _LETTER.match(said)
    if not found or _SECOND_LETTER.match(found["closed"] + found["rest"]):
        return None
    letter, rest = found["letter"], found["rest"]
    marked = found["opened"] or found["closed"] or not rest.strip(_EDGES)
    could_be_word = letter.islower() or letter in "AI"
    if could_be_word and not marked and not (letter.isupper() and _GOES_ON.match(rest)):
        return None
    return letter.upper() if ord(letter.upper()) - ord("A") < choices else None


def _chosen(said: str, choices: Sequence[str]) -> str | None:
    """The letter of the one choice whose text is said, or with whose text the line begins (the longest such)."""
    bare, texts = _bare(said), [_bare(choice) for choice in choices]
    begun = [text for text in texts if text and re.match(rf"{re.escape(text)}(?!\w)", bare)]
    longest = max(begun, key=len, default=None)
    return chr(ord("A") + texts.index(longest)) if longest and texts.count(longest) == 1 else None


def _bare(text: str) -> str:
    words = text.strip(_EDGES).casefold().split()
    return " ".join(words[1:] if words[:1] and words[0] in ("a", "an", "the") and len(words) > 1 else words)
