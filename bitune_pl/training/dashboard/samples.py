"""Answers to a few validation prompts, written at every validation: what the model says, beside what it was taught.

Reading them changes nothing: evaluation mode, gradients and the random state are as before, so that a run with samples
has the weights of one without, bit for bit.
"""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng

from bitune_pl.data.encoding import Encoder
from bitune_pl.sample import Sample
from bitune_pl.training.dashboard.events import log_text, validates_a_training, writers
from bitune_pl.training.dashboard.texts import Answered

PROMPTS, TOKENS = 3, 32
"""How many prompts are answered, and how long an answer may be."""


class SampleAnswers(Callback):
    """Greedy answers to the first validation prompts, as the texts `samples/1`, `samples/2`, ..."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rows = trainer.datamodule.rows.get("validation") if trainer.datamodule else None
        if not validates_a_training(trainer) or not rows:
            return
        if writers(trainer):
            samples = [rows[i].sample for i in range(min(PROMPTS, len(rows)))]
            for i, answered in enumerate(_answer(pl_module, trainer.datamodule.encoder, samples), 1):
                log_text(trainer, f"samples/{i}", answered.markdown())


def _answer(pl_module: LightningModule, encoder: Encoder, samples: list[Sample]) -> list[Answered]:
    with isolate_rng():
        try:
            prompts = [sample.prompt for sample in samples]
            new = pl_module.model.generate(prompts, do_sample=False, max_new_tokens=TOKENS, eos_token_id=encoder.eos)
            answers = [encoder.decode(ids) for ids in new]
        except ValueError as error:  # a prompt may be as long as the decoder's positions reach
            answers = [f"(none: {error})"] * len(samples)
    return [
        Answered(encoder.decode(sample.prompt), answer, encoder.decode(sample.answers[0]))
        for sample, answer in zip(samples, answers, strict=True)
    ]
