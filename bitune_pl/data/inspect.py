"""`bitune data show` and `bitune data check`: look at data as the model will see it, without loading a model.

    bitune data show  --config configs/smollm2.yaml --rows 2
    bitune data check --data.source mine.csv --base google/gemma-2b

`show` prints rows as text and as tokens, and how long rows are. `check` reads every row of every part and reports what
is kept, what is dropped or broken and why, duplicates, and prompts that are both trained on and evaluated. Settings are
those of `bitune fit`; what a config says of model and trainer is passed over, but for `model.base`
and `model.start_token`.
"""

from collections.abc import Callable, Sequence

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from transformers import PreTrainedTokenizerBase

from bitune_pl.arguments import configs_of
from bitune_pl.data import report
from bitune_pl.data.datamodule import BituneData

LoadTokenizer = Callable[[str], PreTrainedTokenizerBase]


def main(argv: Sequence[str], load_tokenizer: LoadTokenizer, start_token_id: Callable[[str], int]) -> int:
    """Run `show` or `check`; the exit status is 1 where `check` found rows that cannot be read, or none left in a part.

    Args:
        load_tokenizer: gives the tokenizer of a base, by name.
        start_token_id: gives the id that a new start token has on a base, by name.

    Raises:
        ValueError, OSError: with a sentence for the user.
    """
    action, *rest = argv or ["--help"]
    if action in ("-h", "--help"):
        print(f"usage: bitune data show|check [...]\n\n{__doc__.partition(':')[2].strip()}")
        return 0
    if action not in ("show", "check"):
        raise ValueError(f"`bitune data` takes show or check, not {action!r}.")
    settings = _parse(action, rest)
    data = BituneData(**settings.data)
    data.tokenizer = load_tokenizer(settings.data.base)
    if settings.start_token is not None:
        data.start_token_id = start_token_id(settings.data.base)
    if action == "check":
        data.limits = dict.fromkeys(data.limits)  # every row, also where a run would take the first ones
        return report.check(data)
    report.show(data, settings.part, settings.rows)
    return 0


def _parse(action: str, argv: list[str]) -> Namespace:
    parser = ArgumentParser(prog=f"bitune data {action}", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="a config of `bitune fit`; those after it go before it")
    parser.add_class_arguments(BituneData, "data", skip={"base"})
    parser.add_argument(
        "--start_token",
        "--model.start_token",
        metavar="<sep>",
        help="prompts end in a new start token, as the config's may",
    )
    parser.add_argument("--data.base", "--base", "--model.base", default="smollm2", help="whose tokenizer to use")
    if action == "show":
        parser.add_argument("--part", default="train", choices=["train", "validation", "test"], help="rows to show")
        parser.add_argument("--rows", type=int, default=3, help="how many rows to show")
    try:
        return parser.parse_args(argv, parser.parse_object(_configured(argv)))
    except ArgumentError as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{said[:300].rstrip('.')}; bitune data {action} --help lists the settings.") from None


def _configured(argv: list[str]) -> dict:
    """The settings of the configs on the command line that concern the data."""
    found: dict = {}
    start_token = None
    for config in configs_of(argv).values():
        found |= config.get("data") or {}
        model = config.get("model") or {}
        found |= {"base": model["base"]} if model.get("base") else {}
        start_token = model.get("start_token", start_token)
    return {"data": found, "start_token": start_token}
