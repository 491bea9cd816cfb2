"""The model that the lm-evaluation-harness asks: `Bitune`, each prompt read once (paper, section 4 and appendix A.3).

    lm_eval.simple_evaluate(model=BituneLM(model, encoder), tasks=["piqa"], task_manager=manager())

`loglikelihood` gathers the requests that share a context: the context is a prompt, all its continuations are its answers,
and many prompts are read in one forward pass. Nothing is padded, so neither the order of the requests nor what they are
read together with changes a score. `generate_until` reads prompts and decodes from the mixed cache, in batches.

From text to tokens:

* It is the `Encoder`'s work, so that evaluation and training build the same ids from the same row. On the paper's strings
  these are also the ids of lm-eval's own model (`HFLM`).
* They differ from `HFLM`'s in three cases: the name of a control token inside a text is spelled out here and becomes the
  control token there; where tokens merge over the border of context and continuation, the continuation is tokenised
  alone here and loses its first characters there; a text that starts with the name of the beginning-of-sequence token
  still gets that token in front here.
* White space at the end of a context moves into the continuation, as in `HFLM`, but not in rows of the data room, which
  are read as they are trained on.
* An empty context is the beginning-of-sequence token alone, or the end-of-sequence token where there is none.
* A context that is too long keeps what the tokenizer puts in front and loses tokens after that; `cut` counts these by task.

Which tasks there are is the business of `catalogue.py`. Chat templates are not offered: their control tokens would be
spelled out.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import LongTensor
from tqdm import tqdm

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example
from bitune_pl.evaluation.finished import Finished, key_of
from bitune_pl.evaluation.stops import TextStops, cut_at
from bitune_pl.method import likelihood, probes
from bitune_pl.method.layout import per_answer
from bitune_pl.method.model import Bitune
from bitune_pl.sample import Sample

Ids = list[int]
Scored = tuple[float, bool]

TOKENS = {"cpu": 2048, "cuda": 16384}
"""Tokens that are read in one forward pass, by the kind of device."""
TOGETHER = {"cpu": 16, "cuda": 64}
"""Prompts that are continued together."""


@dataclass(frozen=True)
class Question:
    """A prompt, its answers, and the requests that they belong to."""

    sample: Sample
    requests: list[int]

    @property
    def tokens(self) -> int:
        """About what it adds to the row: its prompt, read twice, and its answers."""
        return 2 * len(self.sample.prompt) + sum(map(len, self.sample.answers))


class BituneLM(TemplateLM):
    """`Bitune`, or a decoder as pretrained (`method="plain"`, `adapter="none"`), as lm-eval's model.

    Args:
        model: any variant, in training or not: modes and gradients are left as they were.
        encoder: what speaks to it; with a new start token, `Encoder(..., start_token=model.start_token_id)`.
        max_length: positions that a prompt and its answer may take; the decoder's own number if not given.
        tokens: how many are read in one forward pass; by the device if not given.
        together: how many prompts are continued at a time; by the device if not given.
        finished: answers that are known already, and where new ones are written; none if not given.
        progress: whether to show a bar.

    Raises:
        ValueError: from the methods, before anything is read: if an answer is longer than `max_length`, or nothing is left
            of a prompt beside its answer.
    """

    def __init__(
        self,
        model: Bitune,
        encoder: Encoder,
        max_length: int | None = None,
        tokens: int | None = None,
        together: int | None = None,
        finished: Finished | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.encoder, self.finished, self.progress = model, encoder, finished, progress
        self.tokenizer, self._device = encoder.tokenizer, model.decoder.device
        self.max_length = max_length or positions(model)
        kind = self._device.type
        self.tokens = tokens or TOKENS.get(kind, TOKENS["cuda"])
        self.together = together or TOGETHER.get(kind, TOGETHER["cuda"])
        self.cut: Counter[str | None] = Counter()
        self.title: str | None = None

    # -- what lm-eval's base class asks for ---------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        return self.encoder.eos

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.encoder.eos if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs) -> Ids:
        """The ids of a text; what the tokenizer puts in front comes with it unless `add_special_tokens` is False."""
        return ([] if add_special_tokens is False else self.encoder.opening) + self._bare(string)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        raise NotImplementedError(
            "Chat templates are not offered: a prompt's text is spelled out, so the control tokens of a chat would be too."
        )

    def _loglikelihood_tokens(self, requests, **kwargs) -> list[Scored]:
        """Contexts and continuations that are tokens already: `(texts, context ids, continuation ids)` of each."""
        pairs = [(tuple(context), [answer]) for _, context, answer in requests]
        return self._score(list(self._questions(pairs, [[i] for i in range(len(pairs))], [None] * len(pairs))))

    # -- scoring ------------------------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[Scored]:
        """Log-likelihood of each continuation, summed over its tokens, and whether each token of it is the likeliest."""
        pairs, places, tasks = self._encode(requests)
        return self._score(list(self._questions(pairs, places, tasks)), requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text.

        A text has no prompt, so the beginning-of-sequence token (with a new start token: that one too) is the prompt and all
        of the text its answer: the causal weights alone. A text that is longer than `max_length` is cut into windows, all
        tokens scored once; the prompt of a window is that token and the tokens just before those that the window scores,
        which are read as any prompt is.
        """
        windows = [(i, pair) for i, request in enumerate(requests) for pair in self._windows(request.args[0])]
        every = [[at] for at in range(len(windows))]
        questions = self._questions([pair for _, pair in windows], every, [None] * len(windows))
        scores = self._score(list(questions), disable_tqdm=disable_tqdm)
        sums = [0.0] * len(requests)
        for (i, _), (score, _) in zip(windows, scores, strict=True):
            sums[i] += score
        return sums

    def _windows(self, text: str) -> Iterator[tuple[tuple[int, ...], list[Ids]]]:
        """A text as prompts and answers, each window within `max_length`."""
        front, copies = self._empty[: len(self._empty) - len(self.encoder.closing)], self.model.method.prompt_copies
        widest = self.max_length + 1 - copies * (len(self._empty) + 1)
        for n, window in enumerate(get_rolling_token_windows(self._bare(text), self.prefix_token_id, widest, 1)):
            context, answer = make_disjoint_window(window)
            room = (self.max_length + 1 - len(answer)) // copies - len(self._empty)
            yield (*front, *(context[max(0, len(context) - room) :] if n else ()), *self.encoder.closing), [answer]

    def _encode(self, requests: Sequence[Instance]) -> tuple[list, list[list[int]], list[str | None]]:
        """Prompt and answers of each context as ids, the requests that they answer, and the task that asks."""
        groups: dict[str, dict[int, str]] = {}
        for i, request in enumerate(requests):
            context, continuation = _border(request)
            groups.setdefault(context, {})[i] = continuation
        examples = [
            Example(context, tuple(group.values()), None, _where(requests[next(iter(group))]))
            for context, group in groups.items()
        ]
        written = self.encoder.choice_ids(example for example in examples if example.prompt)
        encoded = [next(written) if example.prompt else self._after_nothing(example) for example in examples]
        tasks = [requests[next(iter(group))].task_name for group in groups.values()]
        return [(tuple(p), a) for p, a in encoded], [list(group) for group in groups.values()], tasks

    def _after_nothing(self, example: Example) -> tuple[Ids, list[Ids]]:
        return self._empty, [self._bare(answer) for answer in example.answers]

    @property
    def _empty(self) -> Ids:
        """The prompt of an empty context."""
        return self.encoder.opening + self.encoder.closing or [self.prefix_token_id]

    def _bare(self, text: str) -> Ids:
        """The ids of a text with nothing in front or behind."""
        if not text:
            return []
        ids = self.encoder.prompt(text).tolist()
        return ids[len(self.encoder.opening) : len(ids) - len(self.encoder.closing)]

    def _questions(self, pairs, places: list[list[int]], tasks: list[str | None]) -> Iterator[Question]:
        """Prompts with answers that fit. Where answers leave different room, their prompt is cut for each of them."""
        for (prompt, answers), own, task in zip(pairs, places, tasks, strict=True):
            by_prompt: dict[tuple[int, ...], list[tuple[int, Ids]]] = {}
            for place, answer in zip(own, answers, strict=True):
                if not answer:
                    raise ValueError(f"Task {task}: a continuation is empty, so there is nothing to score.")
                kept = self._fit(prompt, self.max_length + 1 - len(answer), f"an answer of {len(answer)} tokens")
                by_prompt.setdefault(kept, []).append((place, answer))
            self.cut[task] += any(len(kept) < len(prompt) for kept in by_prompt)
            for kept, taken in by_prompt.items():
                yield Question(Sample(_tensor(kept), [_tensor(a) for _, a in taken]), [place for place, _ in taken])

    def _fit(self, prompt: tuple[int, ...], room: int, beside: str) -> tuple[int, ...]:
        """The prompt with its opening kept and tokens after that left out, so that all its copies have room."""
        room //= self.model.method.prompt_copies
        if len(prompt) <= room:
            return prompt
        front, back = len(self.encoder.opening), len(self.encoder.closing)
        if room < front + back + 1:
            raise ValueError(
                f"Beside {beside} nothing is left of the prompt: {self.max_length} positions hold both. Raise max_length, or "
                "leave these questions out."
            )
        return prompt[:front] + prompt[len(prompt) - (room - front) :]

    def _score(self, questions: list[Question], requests=None, disable_tqdm: bool = False) -> list[Scored]:
        """Scores by request. Long questions come first: what does not fit into memory fails at once."""
        scores: dict[int, Scored] = self._known(requests, "loglikelihood")
        open_ = [question for question in questions if not scores.keys() >= set(question.requests)]
        bar = self._bar(len(open_), "question", disable_tqdm)
        with bar, probes.evaluating(self.model):
            for batch in batches(open_, self.tokens):
                new = self._read([question.sample for question in batch])
                fresh = dict(zip(chain.from_iterable(question.requests for question in batch), new, strict=True))
                scores |= fresh
                self._remember(requests, "loglikelihood", fresh)
                bar.update(len(batch))
        return [scores[i] for i in range(len(scores))]

    def _read(self, samples: list[Sample]) -> Iterator[Scored]:
        """One forward pass: the score of each answer of each sample, one after the other."""
        layout, hidden, head = self.model.read(samples)
        targets = torch.cat([answer for sample in samples for answer in sample.answers]).to(hidden.device)
        vocab = self.model.decoder.get_output_embeddings().weight.shape[0]
        found = likelihood.log_likelihood_and_best(hidden, layout.predicting(), targets, head, vocab)
        likelihoods, best = (chain.from_iterable(per_answer(flat.cpu(), layout)) for flat in found)
        return [(float(t.sum(dtype=torch.float64)), bool(b.all())) for t, b in zip(likelihoods, best, strict=True)]

    # -- generating ---------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each context, up to the first stop string (left out) or the end-of-sequence token."""
        texts: dict[int, str] = self._known(requests, "generate_until")
        groups: dict[str, list[tuple[int, LongTensor]]] = {}
        for i, request in enumerate(requests):
            settings = normalize_gen_kwargs(request.args[1])
            prompt = self._prompt(request, settings["max_gen_toks"])
            if i not in texts:
                groups.setdefault(repr(settings), []).append((i, prompt))
        with self._bar(sum(map(len, groups.values())), "prompt", disable_tqdm) as bar:
            for group in groups.values():
                group.sort(key=lambda entry: len(entry[1]), reverse=True)
                for start in range(0, len(group), self.together):
                    places, prompts = zip(*group[start : start + self.together], strict=True)
                    new = self._continue(prompts, normalize_gen_kwargs(requests[places[0]].args[1]))
                    fresh = dict(zip(places, new, strict=True))
                    texts |= fresh
                    self._remember(requests, "generate_until", fresh)
                    bar.update(len(places))
        return [texts[i] for i in range(len(texts))]

    def _prompt(self, request: Instance, new: int) -> LongTensor:
        context = request.args[0]
        ids = tuple(self.encoder.prompt(context).tolist() if context else self._empty)
        kept = self._fit(ids, self.max_length - new, f"{new} new tokens")
        self.cut[request.task_name] += len(kept) < len(ids)
        return _tensor(kept)

    def _continue(self, prompts: Sequence[LongTensor], settings: dict) -> list[str]:
        """Continue prompts together with settings in lm-eval's words."""
        settings, known = (
            dict(settings),
            {t.content: i for i, t in self.tokenizer.added_tokens_decoder.items() if t.special},
        )
        until = [stop for stop in settings.pop("until", []) if stop]
        ends = {self.encoder.eos, *_ends(self.model), *(known[stop] for stop in until if stop in known)}
        stops = [stop for stop in until if stop not in known]
        if not settings.get("do_sample"):
            settings.pop("temperature", None)
        criteria = [TextStops(self.encoder, stops)] if stops else []
        answers = self.model.generate(
            prompts,
            max_new_tokens=settings.pop("max_gen_toks"),
            eos_token_id=sorted(ends),
            stopping_criteria=criteria,
            **settings,
        )
        return [cut_at(self.encoder.decode(ids), stops) for ids in answers]

    def _bar(self, total: int, unit: str, disable: bool) -> tqdm:
        return tqdm(total=total, desc=self.title, unit=unit, disable=disable or not self.progress, leave=False)

    # -- what is known from an evaluation that was stopped ------------------------------------------------------------

    def _known(self, requests: Sequence[Instance] | None, kind: str) -> dict:
        if self.finished is None or requests is None:
            return {}
        keys = ((i, key_of(kind, request.args)) for i, request in enumerate(requests))
        return {i: self.finished.answers[key] for i, key in keys if key in self.finished.answers}

    def _remember(self, requests: Sequence[Instance] | None, kind: str, fresh: dict) -> None:
        if self.finished is not None and requests is not None:
            self.finished.add({key_of(kind, requests[i].args): answer for i, answer in fresh.items()})


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


def positions(model: Bitune) -> int:
    """Positions that a decoder was made for, and has."""
    known = (
        getattr(model.decoder.config.get_text_config(), "max_position_embeddings", None),
        *vars(model.reach).values(),
    )
    return min((limit for limit in known if limit), default=2048)


def _border(request: Instance) -> tuple[str, str]:
    """Context and continuation, white space at the context's end moved over unless it is a row of the data room."""
    context, continuation = request.args
    bare = context if "where" in (request.doc or {}) else context.rstrip()
    return bare, context[len(bare) :] + continuation


def _where(request: Instance) -> str:
    return f"Task {request.task_name}, question {request.doc_id}"


def _ends(model: Bitune) -> Ids:
    ends = model.decoder.generation_config.eos_token_id
    return [] if ends is None else ends if isinstance(ends, list) else [ends]


def _tensor(ids: Sequence[int]) -> LongTensor:
    return torch.tensor(ids, dtype=torch.long)
