"""The table of the data sets that are known by name (paper, appendix A.3, Table 13).

Each source knows its name on the hub, which split serves for what, its template, and how to read its rows (`fields`).
Its name in the table is also the name of its folder under `data.root`. Reading it is the business of `sources`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bitune_pl.data import chain_of_thought, fields, synthetic, templates
from bitune_pl.data.fields import Content
from bitune_pl.data.reading import Row
from bitune_pl.data.templates import Template


@dataclass(frozen=True)
class Splits:
    """Which split of the data set serves for what; `test` is the one that the paper evaluates.

    Where `validation` is the same one, a model that is the best of several validations was chosen by the rows on which
    it is scored; `fit` says so, and `--keep last` keeps the last model instead.
    """

    train: str | None = "train"
    validation: str = "validation"
    test: str = "validation"


@dataclass(frozen=True)
class Source:
    """A row of the table, or a user's own data.

    Args:
        read: what a row says.
        template: how it reads.
        hub: repository on the hub, None for what exists only here; `config` is the hub's configuration name.
        held_out: that many last rows of the train split are its validation part instead (the last tenth of a copy that
            has no more rows than this; the last tenth, at most so many, of a user's own data and of worked answers).
        generated: scored by the number at the end of the generated answer, not by choosing.
        tested_on: the source whose test part is this one's; only for chain of thought, which is scored by the letter or
            number that the generated answer states.
        make: makes the rows of a part; only for embedded sets.
        own: reads the rows of a split of a user's own data.
    """

    read: Callable[[dict], Content]
    template: Template
    hub: str | None = None
    config: str | None = None
    splits: Splits = Splits()
    held_out: int = 0
    generated: bool = False
    tested_on: str | None = None
    make: Callable[[str], list[dict]] | None = None
    own: Callable[[str], Iterator[Row]] | None = None


HELD_OUT = Splits("train", "train", "train")
_TESTED = Splits("train", "validation", "test")
_WITHOUT_VALIDATION = Splits("train", "test", "test")


def _thought(task: str, read: Callable[[dict], Content]) -> Source:
    """Worked answers: the last tenth, at most 200, is held out, and the test part is that of the task itself."""
    template = chain_of_thought.TASKS[task].student
    return Source(read, template, splits=HELD_OUT, held_out=200, tested_on=task)


SOURCES: dict[str, Source] = {
    "categories": Source(fields.numbered, templates.CHOICES, make=synthetic.categories),
    "sums": Source(fields.worded_sum, templates.WORDED_SUM, make=synthetic.sums, generated=True),
    "ultrafeedback": Source(
        fields.ultrafeedback, templates.INSTRUCTION, "openbmb/UltraFeedback", splits=HELD_OUT, held_out=1000
    ),
    "alpaca": Source(fields.alpaca, templates.INSTRUCTION, "yahma/alpaca-cleaned", splits=HELD_OUT, held_out=1000),
    "gsm8k": Source(
        fields.worded_sum,
        templates.WORDED_SUM,
        "openai/gsm8k",
        "main",
        splits=_WITHOUT_VALIDATION,
        generated=True,
    ),
    "piqa": Source(fields.piqa, templates.CHOICES, "baber/piqa"),
    "arc_challenge": Source(fields.lettered, templates.CHOICES, "allenai/ai2_arc", "ARC-Challenge", splits=_TESTED),
    "arc_easy": Source(fields.lettered, templates.CHOICES, "allenai/ai2_arc", "ARC-Easy", splits=_TESTED),
    "commonsense_qa": Source(fields.lettered, templates.CHOICES, "tau/commonsense_qa"),
    "social_i_qa": Source(fields.social, templates.SOCIAL, "lighteval/siqa"),
    "mmlu": Source(fields.numbered, templates.KNOWLEDGE, "cais/mmlu", "all", splits=Splits(None, "validation", "test")),
    # Written by `bitune distill`.
    **{f"{task}_cot": _thought(task, chain_of_thought.distilled) for task in chain_of_thought.TASKS},
    # Rationales of others, which stand in for the teacher's.
    "cot_gsm8k_flan": _thought("gsm8k", chain_of_thought.flan_sums),
    "cot_csqa_ecqa": _thought("commonsense_qa", chain_of_thought.rationale("rationale")),
    "cot_piqa_tinyllm": _thought("piqa", chain_of_thought.tiny_piqa),
    "cot_arc_challenge_tinyllm": _thought("arc_challenge", chain_of_thought.rationale("rationale_flan_t5")),
}
