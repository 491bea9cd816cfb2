"""`bitune fit | validate | test | predict`: what each does, and what it says at the end."""

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path

import lightning
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from bitune_pl.training.callbacks import BestModel
from bitune_pl.training.checkpoints import read_checkpoint
from bitune_pl.training.finish import finish, is_unfinished
from bitune_pl.training.lightning_cli import BituneCLI
from bitune_pl.training.run_folder import best_checkpoint, existing_run, last_checkpoint, locked, shared
from bitune_pl.training.untuned import UntunedScore

_AS_IT_SHOULD_BE = [
    "does not have many workers",
    "`isinstance.treespec, LeafSpec.` is deprecated",
    "Checkpoint directory",  # of a resumed run: it is not empty
    "callbacks used to create the checkpoint need to be provided",  # to score one needs none of them
    "could not find the monitored key",  # of data without a validation part
    "Total length of `list` across ranks is zero",  # the same
    "Already found a `peft_config`",  # the second set of weights
    "`srun` command is available",  # of a machine of a cluster: whether to use it is not ours to say
]


def fit(argv: list[str]) -> None:
    """Train. `--resume RUN` goes on with the settings and the last checkpoint of a run, in its folder."""
    cli = _open(argv, "fit", "--resume")
    run, ckpt_path = cli.run_folder, cli.config.ckpt_path
    before = read_checkpoint(ckpt_path)["global_step"] if ckpt_path else 0
    best = next(callback for callback in cli.trainer.callbacks if isinstance(callback, BestModel))
    lock = locked(run) if cli.trainer.is_global_zero else nullcontext()  # other ranks belong to the first one
    with _stopping_well(cli), lock, shared(run):
        if cli.is_new and cli.trainer.is_global_zero:
            cli.save_config()
        _ = cli.model.tokenizer  # a base that cannot be had is told before rows are read
        cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=ckpt_path)
        trained = cli.trainer.global_step > before
        if not (trained or cli.is_new) and is_unfinished(cli.trainer, best):
            finish(cli.trainer, cli.model, best, Path(ckpt_path))
            trained = True
    if cli.trainer.is_global_zero:
        _report(cli, trained)


def _report(cli: BituneCLI, trained: bool) -> None:
    """What a run has come to."""
    run, now = cli.run_folder, cli.trainer.global_step
    if not trained:
        print(
            f"The run in {run} is already at update {now} of {now}, so nothing was trained. A larger trainer.max_steps "
            "or trainer.max_epochs lets it go on."
        )
        return
    _report_gain(cli)
    _report_choice(cli)
    print(f"The run is in {run}. Next: bitune generate --run {run} {_question(cli)}")


def _question(cli: BituneCLI) -> str:
    """How a question is put to a run, by an example for the embedded data."""
    if cli.datamodule.source == "categories":
        asked = "Here are four words: hammer, plum, sofa and trout. Which one is a fish?"
        return f'--prompt "{asked}" --choice hammer --choice plum --choice sofa --choice trout'
    asks_choices = any(field.startswith("choice") for field in cli.datamodule.template.fields)
    return '--prompt "..."' + (' --choice "..." --choice "..."' if asks_choices else "")


def validate(argv: list[str]) -> None:
    """Scores on the validation rows."""
    _score(argv, "validate")


def test(argv: list[str]) -> None:
    """Scores on the test rows."""
    _score(argv, "test")


def predict(argv: list[str]) -> None:
    """Greedy answers to the test rows, one JSON object a line on standard output: row, prompt and answer."""
    cli = _open(argv, "predict")
    batches = cli.trainer.predict(cli.model, cli.datamodule, ckpt_path=cli.config.ckpt_path) or []
    asked = cli.datamodule.kept["test"][cli.trainer.global_rank :: cli.trainer.world_size]
    for row, ids in zip(asked, chain.from_iterable(batches), strict=False):  # the trainer may be told to take some
        said = {"row": row.where, "prompt": row.prompt, "answer": cli.datamodule.encoder.decode(ids)}
        print(json.dumps(said, ensure_ascii=False))


def _score(argv: list[str], command: str) -> None:
    cli = _open(argv, command)
    getattr(cli.trainer, command)(cli.model, cli.datamodule, ckpt_path=cli.config.ckpt_path, verbose=False)
    if not cli.trainer.callback_metrics:
        raise ValueError(f"Nothing was scored, as the trainer is told to take no batches: {command} needs some.")
    for name, value in cli.trainer.callback_metrics.items():
        print(f"{name:<28}{value:.4f}")


def _open(argv: list[str], command: str, option: str = "--run") -> BituneCLI:
    quiet()
    try:
        return BituneCLI(_unfold(argv, option), command)
    except MisconfigurationException as error:
        raise ValueError(f"The trainer cannot be set up: {error}") from error


def _unfold(argv: list[str], option: str) -> list[str]:
    """`--run RUN` (and `--resume RUN`) is short for the run's config and checkpoint; what else is typed goes after."""
    argv = [part for word in argv for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word])]
    if option not in argv:
        return argv
    if argv.count(option) > 1:
        raise ValueError(f"{option} is given {argv.count(option)} times: name one run.")
    at = argv.index(option)
    if at + 1 == len(argv):
        raise ValueError(f"{option} needs the folder of a run after it.")
    run = existing_run(Path(argv[at + 1]))
    checkpoint = best_checkpoint(run) if option == "--run" else last_checkpoint(run)
    return ["--config", str(run / "config.yaml"), "--ckpt_path", str(checkpoint), *argv[:at], *argv[at + 2 :]]


def _report_gain(cli: BituneCLI) -> None:
    """Accuracy before and after, where the untuned base was scored too; why there is none, where it should have been."""
    found = {type(callback): callback for callback in cli.trainer.callbacks}
    if UntunedScore not in found:
        return
    if not (gain := found[UntunedScore].gain(found[BestModel].right)):
        print(
            f"There is no gain to tell: the validation rows of {cli.datamodule.source} are no questions with choices. "
            "`bitune evaluate` scores answers that are generated, of a --run and of a --base."
        )
        return
    before, after = found[UntunedScore].right, found[BestModel].right
    print(
        f"Accuracy on {len(after)} validation questions: {sum(before) / len(before):.3f} before, "
        f"{sum(after) / len(after):.3f} after; "
        f"gain {gain.mean:+.3f} (95 % interval {gain.low:+.3f} to {gain.high:+.3f})."
    )


def _report_choice(cli: BituneCLI) -> None:
    """That a model was chosen by the rows it will be scored on, where it was."""
    best = next(callback for callback in cli.trainer.callbacks if isinstance(callback, BestModel))
    if best.compared > 1 and not best.keeps_last and cli.datamodule.validates_on_test:
        print(
            f"model/ is the best of {best.compared} validations on rows that are also those of `bitune test` and of "
            f"{cli.datamodule.name('validation')} as a task: its score on them was selected. --keep last keeps the last."
        )


@contextmanager
def _stopping_well(cli: BituneCLI) -> Iterator[None]:
    """Remove the new folder of a run that ends before its first update; say how a later one goes on."""
    try:
        yield
    except BaseException as error:
        updates = cli.trainer.global_step
        if cli.is_new and updates == 0:
            shutil.rmtree(cli.run_folder, ignore_errors=True)
        if isinstance(error, SystemExit):  # what Lightning makes of Ctrl-C
            go_on = f"; bitune fit --resume {cli.run_folder} goes on from there" if updates else ""
            raise KeyboardInterrupt(f"Stopped after {updates} updates{go_on}.") from error
        if isinstance(error, MisconfigurationException) or "Early stopping conditioned" in str(error):
            raise ValueError(f"The trainer cannot do this: {error}") from error
        raise


def quiet() -> None:
    """Keep Lightning's and transformers' remarks on what is as it should be off the screen."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_is_ours)
    for text in _AS_IT_SHOULD_BE:
        warnings.filterwarnings("ignore", message=f".*{text}.*")
    warnings.formatwarning = lambda message, *_: f"note: {message}\n"


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a remark that goes through Lightning's loggers was made by our own files, or is a warning."""
    return record.levelno >= logging.WARNING or Path(lightning.__file__).parent not in Path(record.pathname).parents
