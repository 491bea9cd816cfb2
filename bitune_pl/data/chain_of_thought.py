"""Chain of thought: the teacher's prompts and replies, and what a student learns from them (paper, 3.3 and A.9).

The prompts are Table 18's. How the published student reads a worked answer is not stated; here it is in the form that
Table 19 prints, its fields as lines:

    Question: Natalia sold clips ...             prompt; "Choices:" with lettered lines follows for questions

    Steps: Natalia sold 48 / 2 = 24 clips ...    answer, from the space after "Steps:" on

    Answer: 72

The final answer, a letter or a number, is what follows the last "Answer:". Asking the teacher is in `distill`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from bitune_pl.data import fields
from bitune_pl.data.fields import Content, Unusable, text
from bitune_pl.data.templates import Template

_STEPS = "first reasoning step goes here", "second reasoning step goes here", "and so on…"
_CALCULATIONS = "first reasoning step goes here…", "second reasoning step goes here…", "and so on…"
_DRAWSTRING = (
    "Identify the nature of a drawstring bag, which is typically small and used for carrying personal or valuable "
    "items.",
    "Consider the context of checking baggage, which is commonly done at airports.",
    "Eliminate options that are less likely related to checking baggage: garbage can and safe (unlikely travel "
    "destinations).",
    "Assess the options related to travel or specific locations: military, jewelry store, airport.",
    "Military is possible, but typically does not involve checking baggage as a drawstring bag.",
    "Jewelry store is a destination but not typically associated with checking baggage during travel.",
    "Airport is the most logical location where baggage is checked, including a drawstring bag.",
)
_CHOOSE = (
    "Think step-by-step, then provide the final answer. Separate each operation / thought into a single statement. Try "
    "to make every statement and whole process as concise as possible. Use only a single letter for the final answer. "
    "If multiple answer seem likely to be correct, pick the most likely one. Use the following structure (with example "
    "statements):"
)
_CALCULATE = (
    "Think step-by-step, then provide the final answer. Separate each operation and calculation into one statement. "
    "Try to make every statement and whole process as concise as possible. For the final answer, provide the integer "
    "value only, without any units. Use the following structure:"
)


def _structure(opening: str, steps: tuple[str, ...], answer: str) -> str:
    return "\n".join([opening, *(f"<step>\n{step}\n</step>" for step in steps), f"<answer>\n{answer}\n</answer>"])


@dataclass(frozen=True)
class Task:
    """A data set that is distilled: how it is asked, and how its choices are listed (none: the answer is a number)."""

    instruction: str
    choice: str | None = None

    @property
    def query(self) -> Template:
        """What stands for `[query]`, and before the steps in the student's prompt."""
        return Template(
            "Question: {question}" + ("\n\nChoices:\n{choices}" if self.choice else ""), choice=self.choice or ""
        )

    @property
    def student(self) -> Template:
        return Template(self.query.prompt + "\n\nSteps:", choice=self.choice or "")

    def prompt(self, question: str, choices: tuple[str, ...]) -> str:
        """What the teacher is asked."""
        return f"{self.instruction}\n{self.query.fill_choices({'question': question}, choices)}"


TASKS = {
    "piqa": Task(_structure(_CHOOSE, _STEPS, "B"), "{letter}. {choice}"),
    "arc_challenge": Task(_structure(_CHOOSE, _STEPS, "C"), "{letter}: {choice}"),
    "commonsense_qa": Task(_structure(_CHOOSE, _DRAWSTRING, "E"), "{letter}: {choice}"),
    "gsm8k": Task(_structure(_CALCULATE, _CALCULATIONS, "42")),
}


class Unparsable(Exception):
    """A teacher's reply that does not keep to the structure; the text says how."""


def parse(reply: str, choices: int) -> tuple[list[str], str]:
    """The steps and the final answer of a teacher's reply: a letter among `choices`, or a number if there are none.

    Raises:
        Unparsable: if there is no step, or not one answer of that kind.
    """
    steps = [step for step in re.findall(r"<step>\s*(.*?)\s*</step>", reply, re.DOTALL) if step]
    answers = re.findall(r"<answer>\s*(.*?)\s*</answer>", reply, re.DOTALL)
    if not steps or len(answers) != 1:
        raise Unparsable(f"{len(steps)} steps and {len(answers)} answers")
    final = _letter(answers[0], choices) if choices else _number(answers[0])
    if final is None:
        raise Unparsable(f"the answer is {answers[0]!r}")
    return steps, final


def final_answer(answer: str) -> str | None:
    """The letter or number that a worked answer ends in, None if there is none.

    >>> final_answer(" He sold 48 / 2 = 24 clips.\\nAnswer: 1,072.")
    '1072'
    """
    _, mark, tail = answer.rpartition("Answer:")
    words = tail.split()
    if not mark or not words:
        return None
    return _letter(words[0], 26) or _number(words[0])


def gold(said: Content) -> str:
    """The final answer that a row of a distilled data set gives: the letter of its right choice, or its number."""
    if said.is_question:
        return letter(said.gold)
    found = _number(said.answers[0].rpartition("####")[2])
    if found is None:
        raise Unusable("without a number after ####")
    return found


def letter(position: int) -> str:
    return chr(ord("A") + position)


def unworked(said: Content) -> Content:
    """A row of the data set itself, as it is evaluated: the student's prompt, and the final answer alone."""
    return Content(said.fields, (f"Answer: {gold(said)}",), choices=said.answers if said.is_question else ())


def distilled(row: dict) -> Content:
    """A row that `bitune distill` wrote."""
    return _worked(row, row["choices"], " ".join(row["steps"]), text(row, "answer"))


def flan_sums(row: dict) -> Content:
    """cot_gsm8k_flan: rationales by people."""
    return _worked(row, [], text(row, "rationale"), text(row, "answer"))


def rationale(name: str) -> Callable[[dict], Content]:
    """cot_csqa_ecqa and cot_arc_challenge_tinyllm, whose right answer is the text of a choice; `name` is the column."""

    def read(row: dict) -> Content:
        choices = row["choices"]
        if choices.count(row["answer"]) != 1:
            raise Unusable("whose answer is not one of the choices")
        return _argued(row, choices, text(row, name), choices.index(row["answer"]))

    return read


def tiny_piqa(row: dict) -> Content:
    """cot_piqa_tinyllm: rationales by a small model."""
    return _argued(row | {"question": row["goal"]}, [row["sol1"], row["sol2"]], text(row, "rationale"), row["label"])


def _argued(row: dict, choices: list[str], steps: str, right: int) -> Content:
    """Steps that may end in a verdict of their own: it is cut off, and steps to a wrong one are not learned from."""
    steps, verdict, _ = re.fullmatch(r"(.*?)(?:\s*Thus, the answer is \((\w)\)(.*))?", steps, re.DOTALL).groups()
    if verdict and verdict.upper() != letter(right):
        raise Unusable("whose steps lead to a wrong answer")
    return _worked(row, choices, steps, letter(right))


def _worked(row: dict, choices: list[str], steps: str, final: str) -> Content:
    steps = text({"steps": steps}, "steps").strip()
    texts = tuple(text({"choice": choice}, "choice") for choice in (fields.choices(choices) if choices else ()))
    return Content({"question": text(row, "question")}, (f"{steps}\n\nAnswer: {final}",), choices=texts)


def _letter(said: str, choices: int) -> str | None:
    found = re.fullmatch(r"\(?([A-Z])[).:]?", said.strip())
    return found[1] if found and ord(found[1]) - ord("A") < choices else None


def _number(said: str) -> str | None:
    """A number in its plainest form, so that "$1,072.00" and "1072" are the same."""
    bare = said.strip().rstrip(".").replace(",", "").replace("$", "").removesuffix("%").strip()
    if not re.fullmatch(r"[-+]?\d+(\.\d+)?", bare):
        return None
    return f"{Decimal(bare).normalize():f}"
