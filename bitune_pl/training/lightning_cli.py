"""LightningCLI for Bitune: what is configurable, where a run lives, and what a checkpoint's settings mean.

Three habits of LightningCLI are changed. A checkpoint's settings do not override those that were typed: a
disagreement is an error, and only settings that nobody typed are taken from it. No saved config stops a run. And an
error in a config is one sentence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentError
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from bitune_pl.arguments import configs_of
from bitune_pl.data.datamodule import BituneData
from bitune_pl.training import saved_config
from bitune_pl.training.callbacks import BestModel, ConfigOfResumed, LastCheckpoint, ResumePoint, ValidateAtEnd
from bitune_pl.training.checkpoints import read_checkpoint, refuse_disagreements
from bitune_pl.training.dashboard.callbacks import dashboard
from bitune_pl.training.dashboard.events import EventLogger
from bitune_pl.training.dashboard.scalars import UpdateLog
from bitune_pl.training.evaluate_tasks import EvaluateTasks
from bitune_pl.training.module import BituneModule
from bitune_pl.training.parsing import one_sentence
from bitune_pl.training.progress import UpdateProgress
from bitune_pl.training.run_folder import new_run_folder, run_of_checkpoint
from bitune_pl.training.settings import (
    check_devices,
    check_intervals,
    check_length,
    check_monitors,
    check_precision,
    check_sections,
    check_strategy,
)
from bitune_pl.training.untuned import UntunedScore

TRAINER_DEFAULTS = {
    "devices": 1,
    "default_root_dir": "runs",
    "gradient_clip_val": 1.0,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
}


class BituneCLI(LightningCLI):
    """Parses a command's settings and makes module, data and trainer; running them is the business of `commands`."""

    def __init__(self, args: Sequence[str], command: str) -> None:
        self.command, self.args, self.with_links = command, list(args), True
        super().__init__(
            BituneModule,
            BituneData,
            args=self.args,
            run=False,
            save_config_callback=None,
            trainer_defaults=TRAINER_DEFAULTS,
            seed_everything_default=42,
            parser_kwargs={"exit_on_error": False, "allow_abbrev": False, "prog": f"bitune {command}"},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,  # it would store how to make the module anew, which is no plain value
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--seed_everything", type=int, default=self.seed_everything_default, help="Seed of the run."
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="Checkpoint to go on from, or to score.")
        parser.add_argument(
            "--compare_untuned", type=bool, default=False, help="Score the base before training, and end with the gain."
        )
        parser.add_argument(
            "--keep",
            type=Literal["best", "last"],
            default="best",
            help="Whether model/ is the best model by validation, or the last.",
        )
        parser.add_class_arguments(EvaluateTasks, "evaluate")
        short = "--resume" if self.command == "fit" else "--run"
        parser.add_argument(short, type=str | None, default=None, help="Folder of a run: its settings and checkpoint.")
        if self.with_links:
            parser.link_arguments("model.base", "data.base")
            parser.link_arguments("seed_everything", "data.seed")

    def parse_arguments(self, parser: LightningArgumentParser, args: list[str]) -> None:
        configs_of(args)  # jsonargparse has no sentence for all that can be wrong with one
        try:
            self.config = parser.parse_args(args)
            if self.config.ckpt_path:
                self._take_settings_of_checkpoint(parser, args)
        except ArgumentError as error:
            raise ValueError(one_sentence(str(error), parser)) from error
        check_sections(self.config)

    def _take_settings_of_checkpoint(self, parser: LightningArgumentParser, args: list[str]) -> None:
        saved = read_checkpoint(self.config.ckpt_path)["hyper_parameters"]
        refuse_disagreements(saved, self._typed(args))
        self.config = parser.parse_object({"model": saved}, self.config)

    def _typed(self, args: list[str]) -> dict[str, Any]:
        """The module's settings that the user typed, in a config or on the command line: all but defaults."""
        self.with_links = False  # a link wants its source to be there
        parser = self.init_parser(exit_on_error=False, allow_abbrev=False)
        self._add_arguments(parser)
        return parser.parse_args(args, defaults=False).as_dict().get("model", {})

    def instantiate_trainer(self) -> Trainer:
        given = self.config_init.trainer
        check_precision(given.precision)
        check_strategy(given.strategy)
        check_devices(given.accelerator, given.devices)
        callbacks = given.callbacks or []
        own = callbacks if isinstance(callbacks, list) else [callbacks]
        if self.command != "fit":
            self._check_trained()
            callbacks = own + self._progress(UpdateLog())
            return super().instantiate_trainer(logger=False, enable_checkpointing=False, callbacks=callbacks)
        check_intervals(given)
        check_monitors(own)
        if given.max_steps == -1 and given.max_epochs is None and given.max_time is None:
            given.max_epochs = 1  # Lightning's own default is 1000
        check_length(given, self.config_init.compare_untuned)
        self.run_folder = self._run_folder(Path(given.default_root_dir))
        log, best = UpdateLog(), BestModel(self.run_folder / "model", self.config_init.keep)
        callbacks = [*dashboard(log), *self._progress(log), ValidateAtEnd(), best]
        callbacks += [UntunedScore()] if self.config_init.compare_untuned else []
        callbacks += [self.config_init.evaluate] if self.config_init.evaluate.tasks else []
        callbacks += [] if self.is_new else [ConfigOfResumed(self.update_config)]
        callbacks += self._checkpoints(own)
        return super().instantiate_trainer(
            default_root_dir=str(self.run_folder),
            logger=self._logger(),
            # ResumePoint is first: an interruption within another callback must find the update's loops taken.
            callbacks=[ResumePoint(), *own, *callbacks],
        )

    def _check_trained(self) -> None:
        """What a score of weights that were never trained would mean, nobody asks.

        Raises:
            ValueError: without a run, unless the base as pretrained is asked for.
        """
        if not self.config.ckpt_path and self.config.model.adapter != "none":
            raise ValueError(
                f"`bitune {self.command}` scores a trained run: give --run FOLDER (or --ckpt_path FILE), or "
                "--model.adapter none --model.method plain for the base as it was pretrained."
            )

    def _progress(self, log: UpdateLog) -> list[UpdateProgress]:
        return [] if self.config_init.trainer.enable_progress_bar is False else [UpdateProgress(log)]

    def _run_folder(self, root: Path) -> Path:
        """That of the checkpoint which is resumed, or a new one."""
        resumed = self.config.ckpt_path and run_of_checkpoint(Path(self.config.ckpt_path))
        self.is_new = not resumed
        return resumed or new_run_folder(root, self._name(), self.config.seed_everything)

    def _name(self) -> str:
        """The config's name, or the source's where there is no config."""
        if not self.config.config or self.config.config[-1] is None:  # None: it was written out
            return Path(self.config.data.source).stem
        config = Path(str(self.config.config[-1]))
        is_of_run = config.name == "config.yaml" and (config.parent / "checkpoints").is_dir()
        return config.absolute().parents[1].name if is_of_run else config.stem

    def _logger(self):
        given = self.config_init.trainer.logger
        if given is not None and given is not True:
            return given
        # A new run says too where it begins, or TensorBoard's slower reader takes a resumed run's first word for its own.
        after = read_checkpoint(self.config.ckpt_path)["global_step"] + 1 if self.config.ckpt_path else 0
        return EventLogger(self.run_folder, name="", version="", default_hp_metric=False, purge_step=after)

    def _checkpoints(self, own: list[Callback]) -> list[ModelCheckpoint]:
        """The best by validation loss and the last; the latter also when the run is interrupted."""
        given = self.config_init.trainer
        if given.enable_checkpointing is False:
            return []
        folder = self.run_folder / "checkpoints"
        last = LastCheckpoint(folder, filename="last", enable_version_counter=False)
        if any(isinstance(callback, ModelCheckpoint) for callback in own):
            return [last]
        monitor = None if given.limit_val_batches == 0 else "loss/validation"
        best = ModelCheckpoint(folder, filename="best-update-{step}", auto_insert_metric_name=False, monitor=monitor)
        return [best, last] if monitor else [last]

    def save_config(self) -> None:
        """`config.yaml` of a new run."""
        saved_config.write(self.run_folder, self._kept())

    def update_config(self, updates: int) -> None:
        """`config.yaml` of a run that goes on after so many updates."""
        saved_config.update(self.run_folder, self._kept(), updates)

    def _kept(self) -> dict[str, Any]:
        """What differs from the defaults, what names the run, and the type of the base, whose default is the machine's."""
        config = self.config.clone()
        for name in ("config", "ckpt_path", "resume"):
            config.pop(name, None)
        kept = yaml.safe_load(self.parser.dump(config, skip_default=True, skip_unset=False)) or {}
        kept.setdefault("seed_everything", config.seed_everything)
        kept.setdefault("model", {}).setdefault("base", config.model.base)
        kept["model"].setdefault("base_dtype", self.model.hparams.base_dtype)
        kept.setdefault("data", {}).setdefault("source", config.data.source)
        return kept
