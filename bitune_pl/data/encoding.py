"""Encoding: the one place where text becomes token ids, for training, validation, evaluation and generation alike.

* A prompt is the tokenizer's ids of its text, after what the tokenizer itself puts in front of a text: as a rule the
  beginning-of-sequence token, once. Where it puts nothing there (Phi-2, SmolLM2), neither do we, as in the published
  code and in lm-eval. An empty prompt is the beginning-of-sequence token alone, which then is the start token; a
  tokenizer that has none makes it an error.
* Where the start token is a new one that is learned, its id ends every prompt; answers are tokenised as without it.
* An answer is what follows the prompt's ids when both are tokenised together. Where tokens merge over the border, so
  that the prompt's ids no longer stand at the front, it is the ids of the answer alone.
* A training answer ends in the end-of-sequence token, once, and learned. Choices that are only scored do not have it.
* Text is text: "</s>" inside a row is spelled out and never becomes the control token.
* A training row longer than `max_length` (prompt, answer and end) is dropped with a reason, as in the paper, never cut.

Which rows there are, and how they read, is not decided here.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import torch
from torch import LongTensor
from transformers import PreTrainedTokenizerBase

from bitune_pl.data.border import bridged_characters, is_clean
from bitune_pl.data.example import Dropped, Example
from bitune_pl.data.fields import SURROGATE
from bitune_pl.sample import Sample

Ids = list[int]
CHUNK = 1000  # rows that go to the tokenizer in one call
CHARACTERS = 200  # a training row of more characters than this for each token it may have is not even tokenised


class Encoder:
    """Text to token ids and back.

    Args:
        tokenizer: any Hugging Face tokenizer; a fast one encodes rows in bulk.
        max_length: longest training row in tokens, everything counted.
        start_token: id that ends every prompt, for a model whose start token is a new one (`model.start_token_id`).

    Raises:
        ValueError: if the tokenizer has no end-of-sequence token.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int = 512, start_token: int | None = None
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("This tokenizer has no end-of-sequence token, so no answer could end; set its eos_token.")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.eos: int = tokenizer.eos_token_id
        self.closing: Ids = [] if start_token is None else [start_token]
        self.opening = self._find_opening()
        self.bridged = bridged_characters(tokenizer)
        self.spellable = self._find_spellable_control_tokens()

    def prompt(self, text: str) -> LongTensor:
        """Ids of a prompt, shape `(prompt,)`; half a surrogate pair, which is no character, is a ValueError."""
        if SURROGATE.search(text):
            raise ValueError(f"The prompt {_HALF_CHARACTER}")
        return _tensor(self._checked_prompt(self._tokenize([text])[0], "The prompt"))

    def training(self, example: Example) -> Sample | Dropped:
        """The prompt and its right answer, which ends in the end-of-sequence token."""
        ids = next(self.training_ids([example]))
        return ids if isinstance(ids, Dropped) else _sample(*ids)

    def choices(self, example: Example) -> Sample:
        """The prompt and all its answers without end, whatever their length: what evaluation scores (paper, A.3)."""
        return _sample(*next(self.choice_ids([example])))

    def decode(self, ids: LongTensor | Ids) -> str:
        """Text of generated ids; control tokens, such as the end, are left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def training_ids(self, examples: Iterable[Example]) -> Iterator[tuple[Ids, list[Ids]] | Dropped]:
        """`training` for many rows, in bulk: the prompt's ids and a list of one answer's, or why a row is left out."""
        limit = self.max_length * CHARACTERS
        for chunk in _chunks(examples):
            read = [example for example in chunk if len(example.prompt) + len(example.answer) <= limit]
            rows = iter(self._encode(read, [(example.answer,) for example in read]))
            for example in chunk:
                if len(example.prompt) + len(example.answer) > limit:
                    yield Dropped(example.where, f"longer than {limit} characters")
                else:
                    prompt, (answer,) = next(rows)
                    yield self._finish(example, prompt, answer)

    def choice_ids(self, examples: Iterable[Example]) -> Iterator[tuple[Ids, list[Ids]]]:
        """`choices` for many rows, in bulk."""
        for chunk in _chunks(examples):
            for example in chunk:
                if SURROGATE.search("".join((example.prompt, *example.answers))):
                    raise ValueError(f"{example.where} {_HALF_CHARACTER}")
            rows = self._encode(chunk, [example.answers for example in chunk])
            for example, (prompt, answers) in zip(chunk, rows, strict=True):
                if not all(answers):
                    raise ValueError(f"{example.where}: an answer is empty, so there is nothing to score.")
                if self._holds_control_token(prompt, *answers):
                    raise ValueError(f"{example.where}: {_CONTROL_TEXT} with this tokenizer.")
                yield prompt, answers

    def _finish(self, example: Example, prompt: Ids, answer: Ids) -> tuple[Ids, list[Ids]] | Dropped:
        if not answer:
            return Dropped(example.where, "without an answer")
        if len(prompt) + len(answer) + 1 > self.max_length:
            return Dropped(example.where, f"longer than {self.max_length} tokens")
        if self._holds_control_token(prompt, answer):
            return Dropped(example.where, f"whose {_CONTROL_TEXT}")
        return prompt, [[*answer, self.eos]]

    def _encode(self, examples: list[Example], answers: list[tuple[str, ...]]) -> list[tuple[Ids, list[Ids]]]:
        """Prompts and answers of a chunk: one call of the tokenizer for the prompts, one for the answers."""
        texts = [example.prompt for example in examples]
        prompts = self._tokenize(texts)
        apart = [[is_clean(text, a, self.bridged) for a in own] for text, own in zip(texts, answers, strict=True)]
        spelled = [
            [a if alone else text + a for a, alone in zip(own, flags, strict=True)]
            for text, own, flags in zip(texts, answers, apart, strict=True)
        ]
        flat = iter(self._tokenize(list(chain.from_iterable(spelled))))
        rows = []
        for example, prompt, own, flags in zip(examples, prompts, answers, apart, strict=True):
            ids = [
                next(flat) if alone else self._after(prompt, next(flat), answer)
                for answer, alone in zip(own, flags, strict=True)
            ]
            rows.append((self._checked_prompt(prompt, example.where), ids))
        return rows

    def _after(self, prompt: Ids, both: Ids, answer: str) -> Ids:
        """The answer's ids, given those of prompt and answer tokenised together."""
        if both[: len(prompt)] == prompt:
            return both[len(prompt) :]
        return self._tokenize([answer])[0]

    def _checked_prompt(self, prompt: Ids, where: str) -> Ids:
        if prompt or self.opening or self.closing:
            return self.opening + prompt + self.closing
        if self.tokenizer.bos_token_id is None:
            raise ValueError(
                f"{where}: the prompt is empty, and this tokenizer has no beginning-of-sequence token to start from; "
                "give the prompt some text."
            )
        return [self.tokenizer.bos_token_id]

    def _tokenize(self, texts: list[str]) -> list[Ids]:
        if not texts:
            return []
        return self.tokenizer(
            texts,
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        ).input_ids

    def _find_opening(self) -> Ids:
        """What the tokenizer itself puts in front of a text."""
        probe, full = self._tokenize(["a"])[0], self.tokenizer("a").input_ids
        return next((full[:i] for i in range(len(full)) if full[i : i + len(probe)] == probe), [])

    def _find_spellable_control_tokens(self) -> frozenset[int]:
        """Control tokens that plain text can turn into although asked not to: those a Unigram model lists as pieces."""
        control = {i: t.content for i, t in self.tokenizer.added_tokens_decoder.items() if t.special}
        control.pop(self.tokenizer.unk_token_id, None)
        spelled = self._tokenize(list(control.values()))
        return frozenset(control).intersection(chain.from_iterable(spelled))

    def _holds_control_token(self, prompt: Ids, *answers: Ids) -> bool:
        body = chain(prompt[len(self.opening) : len(prompt) - len(self.closing)], *answers)
        return bool(self.spellable) and not self.spellable.isdisjoint(body)


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    rows = iter(examples)
    return iter(lambda: list(islice(rows, CHUNK)), [])


_CONTROL_TEXT = "text would become a control token"
_HALF_CHARACTER = "holds half a surrogate pair, which is no character: correct it."


def _tensor(ids: Ids) -> LongTensor:
    return torch.tensor(ids, dtype=torch.long)


def _sample(prompt: Ids, answers: list[Ids]) -> Sample:
    return Sample(_tensor(prompt), [_tensor(answer) for answer in answers])
