"""An example: one row of data as text, before any tokenizer has seen it.

`Example` is what sources make and what the encoder reads; evaluation and generation use the same one. `Dropped` stands
in for a row that cannot be used, and says why: rows are counted and named, never lost in silence.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A prompt and its answers.

    Args:
        prompt: the whole prompt, template included ("Question: ...\\n\\nAnswer:").
        answers: the one answer of instruction data, or every choice of a question. Each carries its leading space, and
            none carries the text of an end-of-sequence token.
        gold: which of `answers` is right, by position; None where nobody knows.
        where: the row, as a person would look it up: "train.jsonl line 3", "tau/commonsense_qa train row 12".
        choices: texts that the prompt lists under A, B, ..., whether or not they are the answers.
    """

    prompt: str
    answers: tuple[str, ...]
    gold: int | None
    where: str
    choices: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """The right answer.

        Raises:
            ValueError: if the right answer is not known.
        """
        if self.gold is None:
            raise ValueError(f"{self.where}: this row does not say which answer is right, so it cannot be learned.")
        return self.answers[self.gold]


@dataclass(frozen=True)
class Dropped:
    """A row that is left out, and the reason, worded so that it reads after a count ("12 longer than 512 tokens")."""

    where: str
    reason: str
