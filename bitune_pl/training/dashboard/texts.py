"""The texts of the dashboard: written as Markdown for TensorBoard, and read back by `bitune report`."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

CURVES = {
    "alpha_k, alpha_v": "Share of the second pass in the keys and in the values that an answer attends to: 0 is the causal pass "
    "alone, 1 the second pass alone (in Bitune the bidirectional one), 1/2 where every run starts. layer_00 is the first block.",
    "gradient_norm": "Norm of the gradient of an update, before it is clipped: of all that is trained, or of a part.",
    "loss/train": "Loss of the whole update: micro-batches and ranks together.",
    "accuracy/untuned": "Share of validation questions that the base gets right as it was pretrained.",
    "accuracy/validation": "Share of validation questions whose right choice is the likeliest.",
    "tokens_per_second": "Tokens of prompts and answers, each counted once; validations left out.",
    "cost": "Since the start of the run, validations left out.",
}
"""What curves are, by how their names begin."""


@dataclass(frozen=True)
class Answered:
    """A prompt of the validation rows, the model's answer after an update, and the row's own."""

    prompt: str
    answer: str
    right_answer: str

    def markdown(self) -> str:
        """As TensorBoard's text tab shows it; the texts themselves stand indented, so that nothing in them is markup."""
        names = ("prompt", "answer", "right answer")
        return "\n\n".join(f"**{name}**\n\n{_indented(text)}" for name, text in zip(names, astuple(self), strict=True))

    @classmethod
    def read(cls, markdown: str) -> "Answered":
        """Take back what `markdown` wrote."""
        parts: list[list[str]] = []
        for line in markdown.split("\n"):
            if line.startswith(_INDENT):
                parts[-1].append(line.removeprefix(_INDENT))
            elif line.startswith("**"):
                parts.append([])
        return cls(*map("\n".join, parts))


_INDENT = "    "


def _indented(text: str) -> str:
    return "\n".join(_INDENT + line for line in text.split("\n"))


def as_table(settings: Mapping[str, Any], heads: str = "| setting | value |") -> str:
    """Settings as a Markdown table; `heads` is its first line."""
    rows = [f"| {name} | {_escaped(str(value))} |" for name, value in settings.items()]
    return "\n".join([heads, "|---|---|", *rows])


def _escaped(value: str) -> str:
    return value.replace("|", "&#124;").replace("\n", "&#10;")


def from_table(markdown: str) -> dict[str, str]:
    """Take back what `as_table` wrote, as texts."""
    rows = [line[2:-2].split(" | ", 1) for line in markdown.split("\n")[2:]]
    return {name: value.replace("&#10;", "\n").replace("&#124;", "|") for name, value in rows}
