"""Is a result the paper's? One verdict for each cell of a table.

The paper prints mean and sample deviation of three seeds. If our runs are like its runs, our mean of n seeds lies with a
probability of 95 % within

    paper's mean +- t(0.975, 2) * deviation * sqrt(1/n + 1/3)        n = 3: 3.5 deviations; n = 1: 5.0

(Student's t with two degrees of freedom, for three seeds tell little of a deviation). Two deviations, the rule of thumb,
would call 13 % of exact repetitions with three seeds "outside", and 23 % of those with one. Half a unit of the last
printed decimal is added. Of many cells some 5 % lie outside by chance.

The deviation of our seeds is held against that of Tables 21-25 too: their squared ratio lies within Fisher's F (2 and 2
degrees of freedom for three seeds: ratios of 0.16 to 6.2). Of many cells another 5 % lie outside by chance.

Other models, settings or questions are not comparable, and get no verdict on the numbers.
"""

from typing import NamedTuple

from bitune_pl.reproduction.tables.published import PAPER, Published
from bitune_pl.reproduction.tables.statistics import Summary, prediction_half_width, prediction_ratios

WITHIN, OUTSIDE = "within the published spread", "outside"
NO_SPREAD, NOT_PRINTED = "no published spread", "not in the paper"
PRINTED = 0.005  # half a unit of the last decimal of Tables 21-25


class Verdict(NamedTuple):
    """What is said of a cell and why; `low` and `high` are the ends of the published spread, in percent."""

    word: str
    why: str = ""
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.word == "not comparable" else self.word


def verdict(ours: Summary, paper: Published | None, difference: str | None) -> Verdict:
    """Judge a mean, in percent, and the deviation of its seeds where there are several.

    Args:
        paper: what is printed for this cell, None if nothing is.
        difference: what makes the two not comparable, None if nothing is known to: see `difference`.
    """
    if paper is None:
        return Verdict(NOT_PRINTED)
    if difference:
        return Verdict("not comparable", difference)
    if paper.deviation is None:
        return Verdict(NO_SPREAD, f"{ours.mean - paper.mean:+.2f} from the paper's mean")
    width = PRINTED + prediction_half_width(paper.deviation, len(PAPER["seeds"]), ours.n)
    low, high = paper.mean - width, paper.mean + width
    inside = low <= ours.mean <= high
    why = [_lies(f"{ours.mean:.2f}", inside, low, high)]
    if ours.n > 1:
        least, most = prediction_ratios(len(PAPER["seeds"]), ours.n)
        ends = least * max(0.0, paper.deviation - PRINTED), most * (paper.deviation + PRINTED)
        like_theirs = ends[0] <= ours.deviation <= ends[1]
        why.append(_lies(f"the deviation {ours.deviation:.2f}", like_theirs, *ends))
        inside = inside and like_theirs
    return Verdict(WITHIN if inside else OUTSIDE, "; ".join(why), low, high)


def _lies(what: str, inside: bool, low: float, high: float) -> str:
    return f"{what} {'lies in' if inside else 'is not in'} {low:.2f} to {high:.2f}"


def difference(
    model: str | None, profile: str, updates: tuple[int | None, int | None], questions: tuple[int, int | None]
) -> str | None:
    """What keeps a cell from being compared with the paper's, the weightiest first; None if nothing does.

    Args:
        model: the paper's name of the model, None if the paper does not have it.
        updates: ours and the paper's, None where unknown.
        questions: ours and the paper's.
    """
    if model is None:
        return "other model"
    if profile not in ("paper", "published"):
        return f"other settings (profile {profile})"
    if all(updates) and abs(updates[0] / updates[1] - 1) > 0.05:
        return f"other settings ({updates[0]} updates, paper {updates[1]})"
    if questions[1] and questions[0] != questions[1]:
        return f"other questions ({questions[0]} of {questions[1]})"
    return None
