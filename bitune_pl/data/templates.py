"""Templates: from the fields of a row to a prompt and its answers (paper, appendix A.10, Table 20).

A template is text with named fields. What fields a row has is the business of `sources`; what tokens the text becomes
is that of `encoding`. Answers start with one space, as in the paper; their end is a token and no text, so not here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Formatter


@dataclass(frozen=True)
class Template:
    """How a row reads.

    Args:
        prompt: the prompt with fields in braces, "Question: {question}\\n\\nAnswer:". Its last token becomes the start
            token. Any language will do. A brace that is meant as one is written twice: `{{`.
        answer: how an answer reads; the fields are `{answer}`, its text, and `{index}`, its position among the choices.
        choice: how one line of the field `{choices}` reads; fields `{choice}`, `{index}` and `{letter}` (A, B, ...).

    Raises:
        ValueError: if a field is not a plain name, or a brace is left open.
    """

    prompt: str
    answer: str = " {answer}"
    choice: str = "{choice}"

    def __post_init__(self) -> None:
        for text in (self.prompt, self.answer, self.choice):
            parse(text)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that the prompt asks for, in order, each once."""
        return tuple(dict.fromkeys(name for _, name in parse(self.prompt) if name))

    def fill(self, fields: Mapping[str, str], where: str = "This row") -> str:
        """The prompt with its fields filled in. Braces inside the values stay what they are."""
        return fill(self.prompt, fields, where)

    def fill_choices(self, fields: Mapping[str, str], choices: tuple[str, ...], where: str = "This row") -> str:
        """The prompt of a question: `{choices}` is one line a choice, `{choice0}` and so on are the single ones."""
        lines = [
            fill(self.choice, {"choice": text, "index": str(i), "letter": chr(ord("A") + i)}, where)
            for i, text in enumerate(choices)
        ]
        single = {f"choice{i}": text for i, text in enumerate(choices)}
        return fill(self.prompt, {**fields, **single, "choices": "\n".join(lines)}, where)

    def fill_answer(self, answer: str, index: int = 0, where: str = "This row") -> str:
        return fill(self.answer, {"answer": answer, "index": str(index)}, where)


def parse(text: str) -> list[tuple[str, str | None]]:
    """A template as pairs of literal text and the name of the field after it."""
    try:
        parts = [(literal, name, spec, conversion) for literal, name, spec, conversion in Formatter().parse(text)]
    except ValueError as error:
        raise ValueError(f"The template {text!r} cannot be read ({error}); write a literal brace twice.") from None
    for _, name, spec, conversion in parts:
        if name is not None and (not name.isidentifier() or spec or conversion):
            raise ValueError(
                f"The template {text!r} has the field {{{name}}}, but a field is a plain name such as {{question}}; "
                "write a literal brace twice."
            )
    return [(literal, name) for literal, name, _, _ in parts]


def fill(text: str, fields: Mapping[str, str], where: str) -> str:
    out = []
    for literal, name in parse(text):
        out.append(literal)
        if name is not None:
            if name not in fields:
                raise ValueError(f"{where}: the template asks for {{{name}}}, but the row has {', '.join(fields)}.")
            out.append(fields[name])
    return "".join(out)


# Table 20. ARC and CSQA list as many choices as the row has: four in the table for ARC, three or five in some rows.
INSTRUCTION = Template("Question: {instruction}\n\nAnswer:")
WORDED_SUM = Template("Question: {question}\n\nAnswer:")
CHOICES = Template("Question: {question}\n\nChoices:\n{choices}\n\nAnswer:")
SOCIAL = Template(
    "Question: Given the context, answer correctly the question.\nContext: {context}\nQuestion: {question}\n\n"
    "Choices:\n{choices}\n\nAnswer:",
    answer=" ({index})",
    choice="({index}) {choice}",
)
KNOWLEDGE = Template("Question: {question}\n{choices}\n\nAnswer:", answer=" ({index})", choice="({index}). {choice}")

# A user's own prompts and answers are taken as they are written.
VERBATIM = Template("{prompt}")
