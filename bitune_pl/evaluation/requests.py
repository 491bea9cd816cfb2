"""From lm-eval's requests to questions: prompts with their answers as token ids.

* It is the `Encoder`'s work, so that evaluation and training build the same ids from the same row. On the paper's strings
  these are also the ids of lm-eval's own model (`HFLM`).
* They differ from `HFLM`'s in three cases: the name of a control token inside a text is spelled out here and becomes the
  control token there; where tokens merge over the border of context and continuation, the continuation is tokenised
  alone here and loses its first characters there; a text that starts with the name of the beginning-of-sequence token
  still gets that token in front here, where the tokenizer puts it.
* White space at the end of a context moves into the continuation, as in `HFLM`, but not in rows of the data room, which
  are read as they are trained on.
* An empty context is the beginning-of-sequence token alone, or the end-of-sequence token where there is none.
* A context that is too long keeps what the tokenizer puts in front and loses tokens after that; `cut` counts these by task.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import LongTensor

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example
from bitune_pl.sample import Sample

TOGETHER = 512
"""Tokens of one prompt's answers that are read together; a prompt with more is read again: every place of its answers looks at
all others."""

Ids = list[int]
Pair = tuple[tuple[int, ...], list[Ids]]
"""A prompt and its answers."""


@dataclass(frozen=True)
class Question:
    """A prompt, its answers, and the requests that they belong to."""

    sample: Sample
    requests: list[int]

    @property
    def tokens(self) -> int:
        """About what it adds to the row: its prompt, read twice, and its answers."""
        return 2 * len(self.sample.prompt) + sum(map(len, self.sample.answers))


@dataclass
class Reader:
    """Makes questions of requests.

    Args:
        encoder: what speaks to the model.
        max_length: positions that a prompt and its answer may take.
        copies: how often the method writes a prompt.
        first: the token that is an empty context where the tokenizer puts nothing in front of a text.
        cut: how many contexts were too long, by task.
        encoded: ids of contexts with their continuations, which are checked first and then read.

    Raises:
        ValueError: from the methods, if an answer is empty, or if nothing is left of a prompt beside its answer.
    """

    encoder: Encoder
    max_length: int
    copies: int
    first: int
    cut: Counter[str | None] = field(default_factory=Counter)
    encoded: dict[tuple[str, tuple[str, ...]], Pair] = field(default_factory=dict)

    def questions(self, requests: Sequence[Instance]) -> list[Question]:
        """The requests that share a context as one question, whose answers are their continuations."""
        return list(self._fitting(*self.encode(requests)))

    def of_tokens(self, pairs: Sequence[Pair]) -> list[Question]:
        """One question for each pair, in order."""
        return list(self._fitting(pairs, [[i] for i in range(len(pairs))], [None] * len(pairs)))

    def encode(self, requests: Sequence[Instance]) -> tuple[list[Pair], list[list[int]], list[Instance]]:
        """Prompt and answers of each context as ids, the requests that they answer, and the first of these."""
        groups: dict[str, dict[int, str]] = {}
        for i, request in enumerate(requests):
            context, continuation = _border(request)
            groups.setdefault(context, {})[i] = continuation
        firsts = [requests[next(iter(group))] for group in groups.values()]
        examples = [
            Example(context, tuple(group.values()), None, _where(first))
            for (context, group), first in zip(groups.items(), firsts, strict=True)
        ]
        fresh = [example for example in examples if (example.prompt, example.answers) not in self.encoded]
        written = self.encoder.choice_ids(example for example in fresh if example.prompt)
        for example in fresh:
            ids = next(written) if example.prompt else (self.empty, [self.bare(answer) for answer in example.answers])
            self.encoded[example.prompt, example.answers] = tuple(ids[0]), ids[1]
        encoded = [self.encoded[example.prompt, example.answers] for example in examples]
        return encoded, [list(group) for group in groups.values()], firsts

    def prompt(self, request: Instance, new: int) -> LongTensor:
        """A context that so many new tokens will follow."""
        context = request.args[0]
        ids = tuple(self.encoder.prompt(context).tolist() if context else self.empty)
        kept = self._fit(ids, self.max_length - new, f"{new} new tokens", request)
        self.cut[request.task_name] += len(kept) < len(ids)
        return _tensor(kept)

    def windows(self, text: str) -> Iterator[Pair]:
        """A text as prompts and answers, each window within `max_length`."""
        front, copies = self.empty[: len(self.empty) - len(self.encoder.closing)], self.copies
        least = copies * (len(self.empty) + 1)
        widest = self.max_length + 1 - least
        if widest < 1:
            raise ValueError(
                f"A text is read in windows of at least {least} positions, and {self.max_length} are too few: raise "
                "--max-length where the decoder has more, or leave it out."
            )
        for n, window in enumerate(get_rolling_token_windows(self.bare(text), self.first, widest, 1)):
            context, answer = make_disjoint_window(window)
            room = (self.max_length + 1 - len(answer)) // copies - len(self.empty)
            yield (*front, *(context[max(0, len(context) - room) :] if n else ()), *self.encoder.closing), [answer]

    @property
    def empty(self) -> Ids:
        """The prompt of an empty context."""
        return self.encoder.opening + self.encoder.closing or [self.first]

    def bare(self, text: str) -> Ids:
        """The ids of a text with nothing in front or behind."""
        if not text:
            return []
        ids = self.encoder.prompt(text).tolist()
        return ids[len(self.encoder.opening) : len(ids) - len(self.encoder.closing)]

    def _fitting(
        self, pairs: Sequence[Pair], places: list[list[int]], firsts: Sequence[Instance | None]
    ) -> Iterator[Question]:
        """Prompts with answers that fit. Where answers leave different room, their prompt is cut for each of them."""
        for (prompt, answers), own, first in zip(pairs, places, firsts, strict=True):
            by_prompt: dict[tuple[int, ...], list[tuple[int, Ids]]] = {}
            for place, answer in zip(own, answers, strict=True):
                if not answer:
                    raise ValueError(f"{_where(first)}: a continuation is empty, so there is nothing to score.")
                kept = self._fit(prompt, self.max_length + 1 - len(answer), f"an answer of {len(answer)} tokens", first)
                by_prompt.setdefault(kept, []).append((place, answer))
            self.cut[first and first.task_name] += any(len(kept) < len(prompt) for kept in by_prompt)
            for kept, taken in by_prompt.items():
                for part in _parts(taken):
                    yield Question(Sample(_tensor(kept), [_tensor(a) for _, a in part]), [place for place, _ in part])

    def _fit(self, prompt: tuple[int, ...], room: int, beside: str, asked: Instance | None) -> tuple[int, ...]:
        """The prompt with its opening kept and tokens after that left out, so that all its copies have room."""
        if len(prompt) <= room // self.copies:
            return prompt
        if room // self.copies <= len(self.encoder.opening) + len(self.encoder.closing):
            raise ValueError(
                f"{_where(asked)}: beside {beside} nothing is left of the prompt, for {self.max_length} positions hold both. "
                "Raise --max-length where the decoder has more, or leave it out."
            )
        front = len(self.encoder.opening)
        return prompt[:front] + prompt[len(prompt) - (room // self.copies - front) :]


def batches(questions: Sequence[Question], tokens: int) -> Iterator[list[Question]]:
    """Questions of similar length, longest first, so many that a row holds at most `tokens`, but at least one."""
    batch: list[Question] = []
    filled = 0
    for question in sorted(questions, key=lambda q: -q.tokens):
        if batch and filled + question.tokens > tokens:
            yield batch
            batch, filled = [], 0
        batch.append(question)
        filled += question.tokens
    if batch:
        yield batch


def _border(request: Instance) -> tuple[str, str]:
    """Context and continuation, white space at the context's end moved over unless it is a row of the data room."""
    context, continuation = request.args
    bare = context if "where" in (request.doc or {}) else context.rstrip()
    return bare, context[len(bare) :] + continuation


def _parts(answers: list[tuple[int, Ids]]) -> Iterator[list[tuple[int, Ids]]]:
    """Answers to one prompt, in order, as many together as have at most `TOGETHER` tokens, but at least one."""
    part: list[tuple[int, Ids]] = []
    filled = 0
    for place, answer in answers:
        if part and filled + len(answer) > TOGETHER:
            yield part
            part, filled = [], 0
        part.append((place, answer))
        filled += len(answer)
    yield part


def _where(request: Instance | None) -> str:
    """The task and the row: where it stands in its file, if it is of the data room."""
    if request is None:
        return "A text"
    return f"Task {request.task_name}, {(request.doc or {}).get('where') or f'question {request.doc_id}'}"


def _tensor(ids: Sequence[int]) -> LongTensor:
    return torch.tensor(ids, dtype=torch.long)
