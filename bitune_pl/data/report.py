"""What `bitune data show` and `bitune data check` print.

Everything is counted on examples and ids as training gets them: same reading, same template, same encoder.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from bitune_pl.data import sources
from bitune_pl.data.datamodule import BituneData
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped, Example
from bitune_pl.data.rows import encode

NAMED = 10  # broken rows that are named, of each part
BAR = 40  # characters of the longest bar


def show(data: BituneData, part: str, rows: int) -> None:
    """The first rows of a part, as text and as tokens, and the lengths of all."""
    loaded = data.load(part)
    for example in loaded.examples[:rows]:
        print("\n".join(_row(data.encoder, example, with_choices=part != "train")), end="\n\n")
    encoded, dropped = encode(data.encoder, loaded.examples, with_choices=False)
    dropped = loaded.dropped + dropped
    print(f"{data.name(part)} ({part}), tokenizer of {data.base}, rows kept: ", end="")
    print(sources.summary(len(encoded) + len(dropped), dropped))
    print("\n".join(_histogram(encoded.lengths, dropped)))


def check(data: BituneData) -> int:
    """Read every row; the status is 1 if some cannot be read, or a part has none left."""
    print(f"{data.source}, tokenizer of {data.base}, at most {data.max_length} tokens\n")
    print(f"  {'part':<12}{'rows':>8}{'kept':>8}{'dropped':>9}{'broken':>8}{'longest':>9}{'learned tokens':>16}")
    found: dict[str, list[Example]] = {}
    remarks: list[str] = []
    broken, without = 0, False
    for part in data.parts():
        errors: list[str] = []
        try:
            loaded = data.load(part, errors)
        except FileNotFoundError as error:
            remarks.append(f"{part}: {error}")
            continue
        rows, dropped = encode(data.encoder, loaded.examples, with_choices=False)
        found[part], broken, without = loaded.examples, broken + len(errors), without or not len(rows)
        print(_counts(part, rows, loaded.dropped + dropped, errors))
        remarks += [f"{part}: dropped {text}" for text in sources.reasons(loaded.dropped + dropped)]
        remarks += [f"{part}: {error}" for error in errors[:NAMED]]
        remarks += [f"{part}: and {len(errors) - NAMED} more broken rows"] if len(errors) > NAMED else []
    remarks += [*_duplicates(found), *_overlaps(found)]
    if not found:
        raise FileNotFoundError(remarks[0].partition(": ")[2])
    print("\n" + "\n".join(f"  {remark}" for remark in remarks or ["Nothing dropped, nothing twice, no overlap."]))
    return int(broken > 0 or without)


def _counts(part: str, rows, dropped: list[Dropped], errors: list[str]) -> str:
    kept, longest = len(rows), max(rows.lengths, default=0)
    total = kept + len(dropped) + len(errors)
    learned = int(rows.answer_tokens.sum())
    return f"  {part:<12}{total:>8}{kept:>8}{len(dropped):>9}{len(errors):>8}{longest:>9}{learned:>16}"


def _duplicates(found: dict[str, list[Example]]) -> Iterable[str]:
    for part, examples in found.items():
        places: dict[tuple, list[str]] = defaultdict(list)
        for example in examples:
            places[_same(example.prompt), tuple(map(_same, example.answers))].append(example.where)
        twice = [where for where in places.values() if len(where) > 1]
        if twice:
            more = sum(map(len, twice)) - len(twice)
            yield f"{part}: {more} rows repeat an earlier one, first {twice[0][1]} (as {twice[0][0]})"


def _overlaps(found: dict[str, list[Example]]) -> Iterable[str]:
    trained = {_same(example.prompt): example.where for example in found.get("train", [])}
    for part in found.keys() - {"train"}:
        both = [(e.where, trained[_same(e.prompt)]) for e in found[part] if _same(e.prompt) in trained]
        if both:
            yield f"{part}: {len(both)} prompts are trained on too, first {both[0][0]} (as {both[0][1]})"


def _same(text: str) -> str:
    """What counts as the same text: white space and case do not."""
    return " ".join(text.casefold().split())


def _row(encoder: Encoder, example: Example, with_choices: bool) -> list[str]:
    """A row as text, then as tokens."""
    sample = encoder.training(example)
    text = [f"  | {line}" for line in (example.prompt + "[" + example.answer + "]").split("\n")]
    head = [f"{example.where}, the answer in brackets", "", *text, ""]
    if isinstance(sample, Dropped):
        return [*head, f"  dropped: {sample.reason}"]
    prompt, answer = sample.prompt.tolist(), sample.answers[0].tolist()
    roles = ["prompt"] * (len(prompt) - 1) + ["start token, the answer's first input"]
    roles += ["learned"] * (len(answer) - 1) + ["learned: the end"]
    lines = [
        f"  {i:>8}{token:>9}  {_spelled(encoder, token):<22}{role}"
        for i, (token, role) in enumerate(zip(prompt + answer, roles, strict=True))
    ]
    border = len(prompt)
    table = [*_shortened(lines[:border], 3, 5), "  " + "-" * 60, *_shortened(lines[border:], 8, 3)]
    scored = _scored(encoder, example) if with_choices and len(example.answers) > 1 else []
    return [*head, f"  {'position':>8}{'id':>9}  {'token':<22}", *table, "", *_sizes(prompt, answer), *scored]


def _sizes(prompt: list[int], answer: list[int]) -> list[str]:
    return [f"  {len(prompt)} tokens of prompt, {len(answer)} of answer, which are learned"]


def _scored(encoder: Encoder, example: Example) -> list[str]:
    """The choices as evaluation scores them: without end, the right one marked."""
    ids = encoder.choices(example).answers
    marks = ["right" if i == example.gold else "" for i in range(len(ids))]
    lines = [
        f"    {mark:<6}{text!r} = {choice.tolist()}"
        for mark, text, choice in zip(marks, example.answers, ids, strict=True)
    ]
    return ["  choices, as they are scored:", *lines]


def _spelled(encoder: Encoder, token: int) -> str:
    if [token] == encoder.closing:
        return "<sep>"
    control = encoder.tokenizer.added_tokens_decoder.get(token)
    return control.content if control else repr(encoder.tokenizer.decode([token]))


def _shortened(lines: list[str], first: int, last: int) -> list[str]:
    if len(lines) <= first + last + 1:
        return lines
    return [*lines[:first], f"  {'...':>8}  {len(lines) - first - last} more", *lines[-last:]]


def _histogram(lengths: np.ndarray, dropped: list[Dropped]) -> list[str]:
    """Rows by length, prompt and answer and end together; dropped ones by reason."""
    if not len(lengths):
        return []
    width = max(1, -(-int(lengths.max()) // 8))
    counts = Counter((lengths - 1) // width)
    most = max(counts.values())
    lines = [
        f"  {i * width + 1:>5} - {(i + 1) * width:<5}{counts[i]:>8}  {'#' * -(-BAR * counts[i] // most)}"
        for i in range(min(counts), max(counts) + 1)
    ]
    return ["", f"  {'tokens':<13}{'rows':>8}", *lines, *(f"  {text}" for text in sources.reasons(dropped))]
