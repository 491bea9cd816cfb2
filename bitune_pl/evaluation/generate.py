"""`bitune generate`: a run, or a base, answers a prompt.

The prompt is filled into the template that the run was trained with, so that it reads as the training rows did, unless
`--raw` gives it as it is. A base has no template: its prompts are raw.
"""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from bitune_pl.arguments import Arguments
from bitune_pl.data import files
from bitune_pl.data.fields import SURROGATE

BATCH = 8  # prompts that are continued together
LONGEST = 256  # new tokens of an answer where no number is given
GIVEN = "--field"  # the key of a row under which stand the names of the fields that were typed


def main(argv: list[str]) -> None:
    """Print an answer for each prompt."""
    args = _parser().parse_args(argv)
    _check_numbers(args)
    rows = list(_rows(args))
    if not rows:
        raise ValueError(f'{args.file} holds no row to answer: give one object a line, such as {{"prompt": ...}}.')

    from bitune_pl.evaluation.run import open_either  # heavy: only once there is something to ask

    model, encoder, template = open_either(args.run, args.base, args.dtype)
    raw = args.raw or template is None
    prompts = [_raw(row, args.base) if raw else _fill(template, row) for row in rows]
    encoded = [encoder.prompt(text) for text in prompts]
    longest = _longest_answer(model, encoded, args.max_new_tokens)
    sampling = {"do_sample": True, "temperature": args.temperature} if args.temperature else {"do_sample": False}
    for start in range(0, len(prompts), BATCH):
        ids = encoded[start : start + BATCH]
        for answer in model.generate(ids, max_new_tokens=longest, eos_token_id=encoder.eos, **sampling):
            text = encoder.decode(answer).strip()
            print(json.dumps({"answer": text}, ensure_ascii=False) if len(prompts) > 1 else text, flush=True)


def _parser() -> Arguments:
    parser = Arguments("generate", "Answer a prompt, given by --prompt, --file or standard input.")
    parser.add_model()
    parser.add_argument("--prompt", metavar="TEXT", help="what goes into the template's field")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="a text file with the prompt, or .jsonl: a row of fields a line; - is standard input",
    )
    parser.add_argument(
        "--choice",
        metavar="TEXT",
        action="append",
        default=[],
        help="a choice, where the template lists some; repeat it",
    )
    parser.add_argument(
        "--field", metavar="NAME=TEXT", action="append", default=[], help="a further field of the template"
    )
    parser.add_argument("--raw", action="store_true", help="take the prompt as it is, without the template")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="longest answer (256, or what there is room for)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="sample at this temperature; 0 is greedy"
    )
    return parser


def _check_numbers(args: Namespace) -> None:
    if args.max_new_tokens is not None and args.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens is a number of tokens, at least 1, not {args.max_new_tokens}.")
    if not 0 <= args.temperature < math.inf:
        raise ValueError(f"--temperature is a number from 0 (greedy) up, not {args.temperature}.")


def _longest_answer(model, prompts: list, asked: int | None) -> int:
    """New tokens for which there are positions that the decoder was made for; the last new token is not read.

    Raises:
        ValueError: if there are none, or fewer than were asked for.
    """
    longest = max(len(ids) for ids in prompts) * model.method.prompt_copies
    room = model.positions + 1 - longest if model.positions else asked or LONGEST
    if room < (asked or 1):
        fewer = f", or ask for at most {room} new tokens" if room > 0 else ""
        raise ValueError(
            f"The longest prompt takes {longest} of the decoder's {model.positions} positions, which leaves no room for "
            f"{asked or 'any'} new tokens: shorten it{fewer}."
        )
    return asked or min(room, LONGEST)


def _rows(args: Namespace) -> Iterator[dict]:
    """What to ask: `prompt`, the template's fields by name, and `choices`."""
    if args.prompt is not None and args.file is not None:
        raise ValueError("Give the prompt by --prompt or by --file, not by both.")
    if args.prompt is None and args.file is None and sys.stdin.isatty():
        raise ValueError("There is no prompt: give one by --prompt TEXT, --file FILE or standard input.")
    fields = dict(map(_pair, args.field))
    if args.file is not None and args.file.endswith(".jsonl"):
        for where, row in files.read(Path(args.file), args.file):
            yield _whole({"choices": args.choice} | fields | _checked(row, where), fields, where)
    else:
        text = args.prompt if args.prompt is not None else _text(args.file or "-").rstrip("\n")
        if args.prompt is None and not text.strip():
            raise ValueError(f"{_called(args.file or '-')} is empty: give a prompt by --prompt TEXT or in a file.")
        yield _whole({"prompt": text, "choices": args.choice, **fields}, fields, "The prompt")


def _pair(said: str) -> tuple[str, str]:
    name, sign, text = said.partition("=")
    if not sign or not name:
        raise ValueError(f"--field is NAME=TEXT, a field of the template and what it says, not {said!r}.")
    return name, text


def _whole(row: dict, given: dict, where: str) -> dict:
    """The row with the names of the fields that were typed; no text of it may hold half a surrogate pair."""
    for text in (*(value for value in row.values() if isinstance(value, str)), *row["choices"]):
        if SURROGATE.search(text):
            raise ValueError(f"{where}: its text holds half a surrogate pair, which is no character: correct it.")
    return row | {GIVEN: tuple(given)}


def _called(file: str) -> str:
    return "Standard input" if file == "-" else file


def _text(file: str) -> str:
    if file != "-" and Path(file).is_dir():
        raise IsADirectoryError(f"{file} is a folder: name a file to read the prompt from.")
    if file != "-" and not Path(file).exists():
        raise FileNotFoundError(f"There is no file {file} to read the prompt from.")
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{_called(file)} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8.") from None


def _checked(row: dict | ValueError, where: str) -> dict:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row.get("prompt", ""), str):
        raise ValueError(f'{where}: "prompt" is a text, not {str(row["prompt"])[:60]}.')
    choices = row.get("choices", [])
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f'{where}: "choices" is a list of texts, such as ["yes", "no"], not {choices!r}.')
    return row


def _raw(row: dict, base: str | None) -> str:
    """The prompt as it is; there is no template for fields and choices to go into."""
    ignored = [f"--field {name}" for name in row[GIVEN]] + ["choices"] * bool(row["choices"])
    if ignored:
        what = f"{base} has no template, so its prompt" if base else "A raw prompt"
        raise ValueError(f"{what} is taken as it is, and {ignored[0]} would go nowhere: leave {ignored[0]} out.")
    if "prompt" not in row:
        raise ValueError('A raw prompt is taken from the field "prompt", and a row has none: add it.')
    return row["prompt"]


def _fill(template, row: dict) -> str:
    """The template with `prompt` in its one field that nothing else fills; a question without choices has its own."""
    from bitune_pl.data.templates import INSTRUCTION

    choices = tuple(row["choices"])
    fields = {name: text for name, text in row.items() if name not in ("prompt", "choices", GIVEN)}
    asks_choices = [name for name in template.fields if name == "choices" or name.startswith("choice")]
    _check_known(template, row[GIVEN], choices if not asks_choices else ())
    if asks_choices and not choices:
        _check_filled(row, "instruction")
        print(
            "note: this run's questions list their choices (--choice); without any, none are written", file=sys.stderr
        )
        return INSTRUCTION.fill({"instruction": row.get("prompt", "")})
    if len(choices) == 1 or not all(choice.strip() for choice in choices):
        raise ValueError(f"Choices are two or more texts, as in training, not {list(choices)}.")
    open_fields = [name for name in template.fields if name not in fields and name not in asks_choices]
    if len(open_fields) > 1:
        raise ValueError(
            f"The run's template asks for {', '.join(open_fields)}: give all but one of them by --field NAME=TEXT."
        )
    if open_fields and "prompt" not in row:
        raise ValueError(f"The run's template asks for {open_fields[0]}, and there is no prompt to put there.")
    for name in open_fields:
        _check_filled(row, name)
    fields |= {name: row["prompt"] for name in open_fields}
    return template.fill_choices(fields, choices) if asks_choices else template.fill(fields)


def _check_filled(row: dict, name: str) -> None:
    if not row.get("prompt", "").strip():
        raise ValueError(f"The prompt is empty, and the template asks for its {name}: give some text.")


def _check_known(template, given: tuple[str, ...], unlisted: tuple[str, ...]) -> None:
    """Refuse what was typed and has no place in the template; a row of a file may say more than is asked."""
    if unknown := [name for name in given if name not in template.fields]:
        raise ValueError(
            f"The run's template has no field {unknown[0]!r}; its fields are {', '.join(template.fields)}."
        )
    if unlisted:
        raise ValueError("The run's template lists no choices, so they would go nowhere: leave --choice out.")
