"""What TensorBoard says about a run as a whole: which curves share a chart, its settings, and its final scores.

The custom-scalars layout draws all blocks' alpha_k in one chart and alpha_v in another: the paper's Figures 2 and 3 while
a run trains. The HPARAMS tab has one line a run, whose scores are the last ones logged. Both are declared alike by every
run, with alpha or without, since TensorBoard takes them from whichever run it finds first.
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.tensorboard.summary import hparams

from bitune_pl.method.variants import name_of
from bitune_pl.training.dashboard.events import log_text, writers
from bitune_pl.training.dashboard.texts import CURVES, as_table

LAYOUT = {
    "alpha": {
        "alpha_k of each block": ["Multiline", ["^alpha_k/layer_"]],
        "alpha_v of each block": ["Multiline", ["^alpha_v/layer_"]],
        # TensorBoard draws charts of this kind in reverse order.
        "alpha_v: mean, lowest, highest": ["Margin", ["alpha_v/mean", "alpha_v/minimum", "alpha_v/maximum"]],
        "alpha_k: mean, lowest, highest": ["Margin", ["alpha_k/mean", "alpha_k/minimum", "alpha_k/maximum"]],
    },
    "training": {
        "loss": ["Multiline", ["^loss/"]],
        "scores": ["Multiline", ["^accuracy/", "^eval/"]],
        "gradient norms of the adapters": ["Multiline", ["^gradient_norm/(?!theta|all)"]],
        "gradient norm of theta": ["Multiline", ["^gradient_norm/theta$"]],
        "learning rate": ["Multiline", ["^learning_rate$"]],
    },
}
"""Category -> chart -> kind and curves, as `add_custom_scalars` takes it."""

CHOSEN = ("piqa", "arc_challenge", "commonsense_qa", "social_i_qa", "mmlu", "categories")
WRITTEN = ("gsm8k", "cot_piqa", "cot_arc_challenge", "cot_commonsense_qa", "cot_gsm8k", "sums")
SCORES = (
    *("accuracy/validation", "loss/validation", "loss/train"),
    *(f"eval/{task}/acc" for task in CHOSEN),
    *(f"eval/{task}/exact_match_flexible" for task in WRITTEN),
)
"""Scores of the HPARAMS tab, of tasks whose answers are chosen or written."""


class Overview(Callback):
    """Writes the layout, the settings and the entry when a run starts, and that it has ended when it has."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        settings = settings_of(trainer, pl_module)
        weights = "" if settings["adapter_settings"] == "none" else f" {settings['adapter_settings']}"
        # With more than three settings, the scores lie outside the window.
        # What is too wide for a column is cut off, so that what differs comes first.
        start = "" if settings["theta_init"] == 0.01 else f"\N{GREEK SMALL LETTER THETA} {settings['theta_init']}, "
        entry = {"method": f"{start}{settings['method']}, {settings['adapter']}{weights}"}
        entry |= {name: settings[name] for name in ("lr", "seed")}
        definition, start, self.end = hparams(entry, dict.fromkeys(SCORES, 0.0))
        log_text(trainer, "settings", as_table(settings))
        log_text(trainer, "terms", as_table(CURVES, "| curve | what it is |"))
        for writer in writers(trainer):
            writer.add_custom_scalars(LAYOUT)
            writer.file_writer.add_summary(definition)
            writer.file_writer.add_summary(start)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for writer in writers(trainer):
            writer.file_writer.add_summary(self.end)


def settings_of(trainer: Trainer, pl_module: LightningModule) -> dict[str, str | float]:
    """All settings that shape a run, as numbers and texts."""
    data = trainer.datamodule
    rows = data.batch_size * trainer.accumulate_grad_batches * trainer.world_size
    found = dict(pl_module.hparams) | {
        "method": name_of(pl_module.method) or str(pl_module.method),
        "source": data.source,
        "answers_per_update": f"{data.batch_tokens} tokens" if data.batch_tokens else str(rows),
        "max_length": data.max_length,
        "seed": str(data.seed),
        "updates": int(trainer.estimated_stepping_batches),
    }
    return {name: _shown(value) for name, value in found.items()}


def _shown(value: Any) -> str | float:
    if value is None:
        return "none"
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
