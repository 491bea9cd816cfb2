"""`bitune verify`: prove the method on a small random copy of a decoder, in seconds and without its weights.

The copy is made by `small_copy.py`, what is proven is in `ladder.py` and what it is proven on in `subject.py`; this
file prints the table. The exit status is 1 if anything fails.
"""

import time
import warnings
from pathlib import Path

from bitune_pl.arguments import Arguments, read_config
from bitune_pl.method.variants import VARIANTS, name_of, resolve

ADAPTERS = ("lora", "dora", "ia3", "full", "none")


def main(argv: list[str]) -> int:
    """Climb the ladder and print a table; returns the exit status."""
    args = _parser().parse_args(argv)
    asked = _settings(args)
    base, adapter, method = asked.pop("base"), asked.pop("adapter"), resolve(asked.pop("method"))

    from transformers.utils import logging

    from bitune_pl.method.backbone import load_config
    from bitune_pl.method.ladder import rungs
    from bitune_pl.method.subject import Subject

    start = time.perf_counter()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what transformers deprecates is no part of the answer
        subject = Subject(_copy(load_config(base), base), method, adapter, **asked)
        trained = f"{len(subject.trained)} trained tensors" + ", their gradients in float64" * bool(subject.trained)
        print(f"method {name_of(method)}, adapter {adapter}, {trained}\n\n{_HEAD}", flush=True)
        ladder = rungs(method, bool(subject.trained))
        passed = sum(_climb(rung, subject) for rung in ladder)
    print(f"\n{passed} of {len(ladder)} passed in {time.perf_counter() - start:.1f} s")
    return int(passed < len(ladder))


def _parser() -> Arguments:
    parser = Arguments(
        "verify", "Prove the method on a small random copy of a decoder, for which its configuration is enough."
    )
    parser.add_argument(
        "--config", metavar="FILE", help="take them all, and the adapter's settings, from a config of fit"
    )
    parser.add_argument(
        "--base",
        metavar="NAME",
        help="hub id, folder (config.json is enough), .gguf file, smollm2 (the default), gemma3-270m",
    )
    parser.add_argument("--method", metavar="NAME", help=f"{', '.join(VARIANTS)} (bitune)")
    parser.add_argument("--adapter", choices=ADAPTERS, help="what the trained weights are (lora)")
    return parser


TAKEN = {
    "base": "smollm2", "method": "bitune", "adapter": "lora", "adapter_settings": None, "paper_targets": False,
    "start_token": None,
}  # fmt: skip
"""What of a config's `model` is proven, and what it is where neither config nor command line says."""


def _settings(args) -> dict:
    """What is asked for: the command line, else the config, else the default.

    Raises:
        FileNotFoundError, ValueError: if the config cannot be read.
    """
    said = (read_config(Path(args.config)).get("model") or {}) if args.config is not None else {}
    typed = {name: value for name, value in vars(args).items() if name in TAKEN and value is not None}
    return TAKEN | {name: value for name, value in said.items() if name in TAKEN} | typed


def _copy(config, base: str):
    """The copy, and what of it is not as in the base.

    Raises:
        ValueError: if transformers cannot make one.
    """
    from bitune_pl.method.small_copy import Shrunk, random_copy

    try:
        small = Shrunk(config)
        decoder = random_copy(small.config)
    except Exception as error:  # what an odd configuration raises depends on the family
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"A copy of {base} ({config.model_type}) with two layers cannot be made: {reason.rstrip('.')}."
        ) from error
    print(f"A copy of {base} ({config.model_type}) with random weights, in float32")
    for name, (before, after) in small.changes.items():
        print(f"  {name} {after} in place of {before}")
    return decoder


_HEAD = f"{'':<50}{'difference':>12}{'tolerance':>18}"


def _climb(rung, subject) -> bool:
    """Measure one rung and print its line; a rung that ends in an error has failed."""
    try:
        measured, why = rung.measure(subject), ""
    except Exception as error:
        measured, why = float("nan"), f"  {type(error).__name__}: {' '.join(str(error).split())}"
    passed = rung.passes(measured)
    limit = f"{'at least ' if rung.at_least else ''}{_number(rung.limit)}"
    print(f"{rung.name:<50}{_number(measured):>12}{limit:>18}  {'PASS' if passed else 'FAIL'}{why}", flush=True)
    return passed


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1e}"
