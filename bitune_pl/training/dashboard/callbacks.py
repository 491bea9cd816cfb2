"""All callbacks of the dashboard."""

from lightning.pytorch import Callback

from bitune_pl.training.dashboard.alpha_maps import AlphaMaps
from bitune_pl.training.dashboard.events import FlushEvents
from bitune_pl.training.dashboard.overview import Overview
from bitune_pl.training.dashboard.samples import SampleAnswers
from bitune_pl.training.dashboard.scalars import UpdateLog


def dashboard(update_log: UpdateLog) -> list[Callback]:
    """In the order in which they need each other: answers come first, as their time is not that of an update."""
    return [SampleAnswers(), update_log, AlphaMaps(update_log), Overview(), FlushEvents()]
