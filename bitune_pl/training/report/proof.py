"""The equivalence ladder (`bitune verify`) on a small random copy of a run's decoder, as rows of a table."""

import copy
import warnings
from typing import NamedTuple

from bitune_pl.method.variants import Method, resolve


class Step(NamedTuple):
    """One rung: what was compared, what was measured, what is allowed, whether it holds."""

    name: str
    measured: str
    limit: str
    passed: bool


def climb(base: str, method: str | dict | Method, adapter: str) -> list[Step]:
    """Every rung of a method's ladder.

    Raises:
        Exception: whatever the decoder's configuration raises, if a copy cannot be made.
    """
    from transformers.utils import logging

    from bitune_pl.method.backbone import load_config
    from bitune_pl.method.ladder import rungs
    from bitune_pl.method.small_copy import Shrunk, random_copy
    from bitune_pl.method.subject import Subject

    logging.set_verbosity_error()
    method = resolve(copy.deepcopy(method))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what transformers deprecates is no part of the answer
        subject = Subject(random_copy(Shrunk(load_config(base)).config), method, adapter)
        return [_step(rung, subject) for rung in rungs(method, bool(subject.trained))]


def _step(rung, subject) -> Step:
    try:
        measured, said = rung.measure(subject), ""
    except Exception as error:  # a rung that ends in an error has failed
        measured, said = float("nan"), f"{type(error).__name__}: {' '.join(str(error).split())}"
    limit = f"{'at least' if rung.at_least else 'at most'} {_number(rung.limit)}"
    return Step(rung.name, said or _number(measured), limit, rung.passes(measured))


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1e}"
