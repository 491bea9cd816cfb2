"""Fields: what one row of a source says, whatever the names of its columns.

A reader takes a row as it lies in the file and gives its `Content`. The right answer of a question is found by position
in the row's own labels, never by arithmetic on letters. Blank fields are handled here, once: null, NaN and white space
are all blank, a blank input (Alpaca's) is not shown, and a row whose prompt or answer is blank is `Unusable`.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """What a row says: fields for the template, the answer or all choices, and which of them is right.

    `choices` are listed in the prompt of a row whose answer is not simply one of them.
    """

    fields: dict[str, str]
    answers: tuple[str, ...]
    gold: int | None = 0
    is_question: bool = False
    choices: tuple[str, ...] = ()


class Unusable(Exception):
    """This row is left out; the text is the reason, worded to follow a count."""


class NoGold(Exception):
    """This row does not say which choice is right; the text is what it says instead."""


SURROGATE = re.compile("[\ud800-\udfff]")


def text(row: dict, name: str, required: bool = True) -> str:
    """A field as text. Null, NaN and white space are blank; a number is written out; anything else is refused."""
    value = row[name] if required else row.get(name)
    if value is None or value != value:
        value = ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"its field {name!r} is {type(value).__name__}, not text")
    said = str(value)
    if required and not said.strip():
        raise Unusable(f"with a blank {name}")
    if SURROGATE.search(said):
        raise Unusable(f"with half a surrogate pair in {name}")
    return said


def choices(found: object, labels: object = None) -> list:
    """The choices of a row, and labels for them if it has some: lists of the same length, two or more, no label twice.

    Raises:
        TypeError: if they are anything else, such as a text, whose letters would pass for choices.
    """
    if not isinstance(found, list | tuple) or len(found) < 2:
        raise TypeError(f"its choices are no list of two or more but {_shown(found)}")
    if labels is None:
        return list(found)
    if not isinstance(labels, list | tuple):
        raise TypeError(f"the labels of its choices are no list but {_shown(labels)}")
    if len(labels) != len(found):
        raise TypeError(f"it has {len(found)} choices and {len(labels)} labels")
    names = [str(label) for label in labels]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise TypeError(f"two of its choices have the label {twice!r}")
    return list(found)


def _shown(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 40 else said[:40] + "..."


def position(labels: list, key: object) -> int:
    """Where the key stands among the row's own labels ("C", "3" or 2, as the row has them)."""
    names = [str(label) for label in labels]
    if str(key) not in names:
        raise NoGold(f"the right answer is given as {key!r}, the labels are {', '.join(names)}")
    return names.index(str(key))


def _question(fields: dict[str, str], found: object, labels: object, key: object) -> Content:
    texts = tuple(text({"choice": choice}, "choice") for choice in choices(found, labels))
    return Content(fields, texts, position(labels, key), is_question=True)


def prompt_answer(row: dict) -> Content:
    return Content({"prompt": text(row, "prompt")}, (text(row, "answer"),))


def ultrafeedback(row: dict) -> Content:
    """GPT-4's completion of an instruction, among those of several models."""
    answers = [completion for completion in row["completions"] if completion["model"] == "gpt-4"]
    if not answers:
        raise Unusable("without a completion by GPT-4")
    return Content({"instruction": text(row, "instruction")}, (text(answers[0], "response"),))


def alpaca(row: dict) -> Content:
    """The input, where there is one, stands on the lines after the instruction."""
    instruction, context = text(row, "instruction"), text(row, "input", required=False)
    whole = f"{instruction}\n{context}" if context.strip() else instruction
    return Content({"instruction": whole}, (text(row, "output"),))


def worded_sum(row: dict) -> Content:
    return Content({"question": text(row, "question")}, (text(row, "answer"),))


def piqa(row: dict) -> Content:
    return _question({"question": text(row, "goal")}, [row["sol1"], row["sol2"]], [0, 1], row["label"])


def lettered(row: dict) -> Content:
    """ARC and CommonsenseQA: the labels are the row's own, letters or digits, three to five of them."""
    found = row["choices"]
    if not isinstance(found, dict):
        raise TypeError(f"its choices are not {{'text': [...], 'label': [...]}} but {_shown(found)}")
    return _question({"question": text(row, "question")}, found["text"], found["label"], row["answerKey"])


def social(row: dict) -> Content:
    fields = {"context": text(row, "context"), "question": text(row, "question")}
    return _question(fields, [row["answerA"], row["answerB"], row["answerC"]], [1, 2, 3], row["label"])


def numbered(row: dict) -> Content:
    """MMLU and our own categories: the right answer is given as a position."""
    fields = {"question": text(row, "question")} | ({"subject": row["subject"]} if "subject" in row else {})
    found = choices(row["choices"])
    return _question(fields, found, list(range(len(found))), row["answer"])
