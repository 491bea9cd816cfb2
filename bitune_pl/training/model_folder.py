"""The folder `model/` of a run: the method's weights, the tokenizer, and how a prompt is written.

It is what `--run` reads (`bitune_pl.evaluation.run`), and all that is needed beside the base itself.
"""

from pathlib import Path

from bitune_pl.evaluation.run import write_prompt
from bitune_pl.method.model import Bitune


def write_model(folder: Path, model: Bitune, data) -> None:
    """Write the three parts; `data` is the run's `BituneData`."""
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    data.encoder.tokenizer.save_pretrained(folder)
    write_prompt(folder, data.template, data.max_length)
