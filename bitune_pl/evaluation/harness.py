"""The model that the lm-evaluation-harness asks: `Bitune`, each prompt read once (paper, section 4 and appendix A.3).

    lm_eval.simple_evaluate(model=BituneLM(model, encoder), tasks=["piqa"], task_manager=manager())

`loglikelihood` gathers the requests that share a context: the context is a prompt, all its continuations are its answers,
and many prompts are read in one forward pass. Nothing is padded, so neither the order of the requests nor what they are
read together with changes a score. `generate_until` reads prompts and decodes from the mixed cache, in batches.

How text becomes tokens, and what differs there from lm-eval's own model, is said in `requests.py`. Which tasks there are is
the business of `catalogue.py`. Chat templates are not offered: their control tokens would be spelled out.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.task import Task
from lm_eval.models.utils import normalize_gen_kwargs
from torch import LongTensor
from tqdm import tqdm

from bitune_pl.data.encoding import Encoder
from bitune_pl.evaluation import catalogue
from bitune_pl.evaluation.finished import Asked, Finished
from bitune_pl.evaluation.requests import Question, Reader, batches
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
UNLIMITED = 2048
"""Positions that a prompt and its answer take at most where nothing limits them."""


class BituneLM(TemplateLM):
    """`Bitune`, or a decoder as pretrained (`method="plain"`, `adapter="none"`), as lm-eval's model.

    Args:
        model: any variant, in training or not: modes and gradients are left as they were.
        encoder: what speaks to it; with a new start token, `Encoder(..., start_token=model.start_token_id)`.
        max_length: positions that a prompt and its answer may take, at most the decoder's own number, which it is if not
            given.
        tokens: how many are read in one forward pass; by the device if not given.
        together: how many prompts are continued at a time; by the device if not given.
        finished: answers that are known already, and where new ones are written; none if not given.
        progress: whether to show a bar.

    Raises:
        ValueError: if the decoder has fewer positions; and from the methods, before anything is read, if an answer is
            longer than `max_length`, or nothing is left of a prompt beside its answer.
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
        self.max_length = _checked(max_length, model.positions)
        self.reader = Reader(encoder, self.max_length, model.method.prompt_copies, self.prefix_token_id)
        kind = self._device.type
        self.tokens = tokens or TOKENS.get(kind, TOKENS["cuda"])
        self.together = together or TOGETHER.get(kind, TOGETHER["cuda"])
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
        return ([] if add_special_tokens is False else self.encoder.opening) + self.reader.bare(string)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        raise NotImplementedError(
            "Chat templates are not offered: a prompt's text is spelled out, so the control tokens of a chat would be too."
        )

    def _loglikelihood_tokens(self, requests, **kwargs) -> list[Scored]:
        """Contexts and continuations that are tokens already: `(texts, context ids, continuation ids)` of each."""
        return self._score(self.reader.of_tokens([(tuple(context), [answer]) for _, context, answer in requests]))

    @property
    def cut(self) -> dict[str | None, int]:
        """How many contexts were too long, by task."""
        return self.reader.cut

    # -- scoring ------------------------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[Scored]:
        """Log-likelihood of each continuation, summed over its tokens, and whether each token of it is the likeliest."""
        asked = Asked(self.finished, "loglikelihood", [request.args for request in requests])
        return self._score(self.reader.questions(requests), asked, disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text.

        A text has no prompt, so the beginning-of-sequence token (with a new start token: that one too) is the prompt and all
        of the text its answer: the causal weights alone. A text that is longer than `max_length` is cut into windows, all
        tokens scored once; the prompt of a window is that token and the tokens just before those that the window scores,
        which are read as any prompt is.
        """
        asked = Asked(self.finished, "loglikelihood_rolling", [request.args for request in requests])
        sums: dict[int, float] = dict(asked.known)
        open_ = [i for i in range(len(requests)) if i not in sums]
        for start in range(0, len(open_), self.together):
            fresh = dict.fromkeys(open_[start : start + self.together], 0.0)
            windows = [(i, pair) for i in fresh for pair in self.reader.windows(requests[i].args[0])]
            scores = self._score(self.reader.of_tokens([pair for _, pair in windows]), disable_tqdm=disable_tqdm)
            for (i, _), (score, _) in zip(windows, scores, strict=True):
                fresh[i] += score
            sums |= fresh
            asked.add(fresh)
        return [sums[i] for i in range(len(sums))]

    def _score(self, questions: list[Question], asked: Asked | None = None, disable_tqdm: bool = False) -> list[Scored]:
        """Scores by request. Long questions come first: what does not fit into memory fails at once."""
        scores: dict[int, Scored] = dict(asked.known) if asked else {}
        open_ = [question for question in questions if not scores.keys() >= set(question.requests)]
        bar = self._bar(len(open_), "question", disable_tqdm)
        with bar, probes.evaluating(self.model):
            for batch in batches(open_, self.tokens):
                new = self._read([question.sample for question in batch])
                if not all(math.isfinite(score) for score, _ in new):
                    raise ValueError(
                        f"{self.title or 'A question'}: the model gives a log-likelihood that is no number, so its weights or "
                        "the base are damaged; score another checkpoint."
                    )
                fresh = dict(zip(chain.from_iterable(question.requests for question in batch), new, strict=True))
                scores |= fresh
                if asked:
                    asked.add(fresh)
                bar.update(len(batch))
        return [scores[i] for i in range(len(scores))]

    def _read(self, samples: list[Sample]) -> Iterator[Scored]:
        """One forward pass: the score of each answer of each sample, one after the other."""
        layout, hidden, head = self.model.read(samples)
        tokens = torch.cat([answer for sample in samples for answer in sample.answers]).to(hidden.device)
        vocab = self.model.decoder.get_output_embeddings().weight.shape[0]
        found = likelihood.log_likelihood_and_best(hidden, layout.predicting(), tokens, head, vocab)
        likelihoods, best = (chain.from_iterable(per_answer(flat.cpu(), layout)) for flat in found)
        return [(float(t.sum(dtype=torch.float64)), bool(b.all())) for t, b in zip(likelihoods, best, strict=True)]

    # -- generating ---------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each context, up to the first stop string (left out) or the end-of-sequence token."""
        asked = Asked(self.finished, "generate_until", [request.args for request in requests])
        texts: dict[int, str] = dict(asked.known)
        groups: dict[str, list[tuple[int, LongTensor]]] = {}
        for i, request in enumerate(requests):
            settings = normalize_gen_kwargs(request.args[1])
            prompt = self.reader.prompt(request, settings["max_gen_toks"])
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
                    asked.add(fresh)
                    bar.update(len(places))
        return [texts[i] for i in range(len(texts))]

    def check(self, loaded: dict[str, dict], limit: int | None = None) -> None:
        """Refuse what `catalogue.load` returned if a question of it has no room, before anything is read.

        Raises:
            ValueError: if there is one, or its texts cannot be encoded.
        """
        with catalogue.quiet():
            for _, task in catalogue.leaves(loaded):
                catalogue.seed_examples(task)
                task.build_all_requests(limit=limit)
                self._check(task)
                catalogue.seed_examples(task)

    def _check(self, task: Task) -> None:
        if task.OUTPUT_TYPE == "generate_until":
            for request in task.instances:
                self.reader.prompt(request, normalize_gen_kwargs(request.args[1])["max_gen_toks"])
        elif task.OUTPUT_TYPE == "loglikelihood_rolling":
            any(self.reader.windows(task.instances[0].args[0]))  # the first says whether there is room for any
        else:
            self.reader.questions(task.instances)

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
        hidden = disable or not self.progress or not total
        return tqdm(total=total, desc=self.title, unit=unit, disable=hidden, leave=False)


def _checked(max_length: int | None, most: int | None) -> int:
    if max_length is None:
        return most or UNLIMITED
    if max_length < 2 or (most and max_length > most):
        range_ = f"from 2 to {most}, what the decoder was made for" if most else "at least 2"
        raise ValueError(f"The longest prompt with its answer takes a number of positions {range_}, not {max_length}.")
    return max_length


def _ends(model: Bitune) -> Ids:
    ends = model.decoder.generation_config.eos_token_id
    return [] if ends is None else ends if isinstance(ends, list) else [ends]
