"""Whatever is in a file: every row as it was written, or why not; never a wrong label, and never one row less."""

import json
import string

import any_rows
import pytest
from any_rows import DROPPED, REFUSED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped
from bitune_pl.data.rows import encode
from bitune_pl.data.sources import load

ANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONGEST = 200  # tokens; of this tokenizer each stands for a byte or more
NAMES = "prompt answer question choices instruction input output messages role content x".split()
ENDING = st.sampled_from(["\n", "\r\n", "\n\n", "\r\n \r\n"])


def is_a_sentence(error: Exception, path) -> bool:
    return path.name in str(error) and str(error).rstrip()[-1] == "." and "\n" not in str(error)


@pytest.fixture
def encoder(byte_level):
    return Encoder(byte_level, LONGEST)


def check_read(path, fates: list[tuple[str, object]]) -> list:
    """Hold what is read of a file against what should become of the row at each place; returns the kept ones."""
    kept = [(where, *fate) for where, fate in fates if fate not in (DROPPED, REFUSED)]
    dropped, refused = ([where for where, fate in fates if fate == what] for what in (DROPPED, REFUSED))
    broken = []
    loaded = load(str(path), "train", whole=True, broken=broken)
    assert [(e.where, e.prompt, e.answers, e.gold) for e in loaded.examples] == kept
    assert [row.where for row in loaded.dropped] == dropped
    assert [said.split(": ")[0] for said in broken] == refused
    if refused:
        with pytest.raises(ValueError, match=f"^{refused[0]}: ") as error:
            load(str(path), "train", whole=True)
        assert is_a_sentence(error.value, path)
    else:
        assert load(str(path), "train", whole=True) == loaded
    return loaded.examples


def check_encoded(encoder, examples) -> None:
    """Each is encoded as it reads, or left out for its length and named."""
    rows, dropped = encode(encoder, examples, with_choices=True)
    left_out = [row.where for row in dropped]
    fitting = [example for example in examples if example.where not in left_out]
    assert len(left_out) + len(fitting) == len(examples)
    assert all(len((e.prompt + e.answer).encode()) >= LONGEST for e in examples if e not in fitting)
    for example, (sample, choices, gold) in zip(fitting, rows, strict=True):
        (learned,) = (answer.tolist() for answer in sample.answers)
        assert len(sample.prompt) + len(learned) <= LONGEST
        assert encoder.decode(sample.prompt) == example.prompt and encoder.decode(learned[:-1]) == example.answer
        assert learned[-1] == encoder.eos and encoder.eos not in learned[:-1]
        scored = tuple(map(encoder.decode, choices.answers)) if choices else example.answers
        assert scored == example.answers and gold == (example.gold if choices else None)


@ANY
@given(any_rows.lines(), ENDING, st.booleans())
def test_every_line_comes_out_as_it_went_in(encoder, tmp_path, lines, ending, mark):
    path, height = tmp_path / "t.jsonl", ending.count("\n")
    path.write_bytes(("\ufeff" * mark + ending.join(text for text, _ in lines)).encode())
    fates = [(f"t.jsonl line {1 + i * height}", fate) for i, (_, fate) in enumerate(lines)]
    check_encoded(encoder, check_read(path, fates))


@ANY
@given(any_rows.lines(any_rows.NO_ROW), ENDING | st.just(""), st.booleans())
def test_every_row_of_a_list_comes_out_as_it_went_in(encoder, tmp_path, lines, ending, mark):
    path, height = tmp_path / "t.json", ending.count("\n")
    listed = f",{ending}".join(text for text, _ in lines)
    path.write_bytes(("\ufeff" * mark + f"[{ending}{listed}{ending}]\n").encode())
    places = (f"{1 + i * height}" if height or i == 1 else f"1, row {i}" for i in range(1, len(lines) + 1))
    fates = [(f"t.json line {place}", fate) for place, (_, fate) in zip(places, lines, strict=True)]
    check_encoded(encoder, check_read(path, fates))


WELL = [
    {"prompt": "P", "answer": "A"},
    {"instruction": "I", "input": "J", "output": "A"},
    {"question": "Q", "choices": ["a", "b", "c"], "answer": "b"},
    {"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]},
]
ANYTHING = st.recursive(
    any_rows.GOOD | any_rows.UNUSABLE | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


@ANY
@given(st.sampled_from(WELL), st.lists(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=2), max_size=5))
def test_any_value_in_any_field(tmp_path, well, changes):
    """No row is lost, and no answer is made up."""
    path, rows, broken = tmp_path / "t.jsonl", [well, *(well | change for change in changes)], []
    path.write_text("\n".join(map(json.dumps, rows)))
    loaded = load(str(path), "train", whole=True, broken=broken)
    places = [row.where for row in loaded.examples + loaded.dropped] + [said.split(": ")[0] for said in broken]
    assert sorted(places) == [f"t.jsonl line {i}" for i in range(1, len(rows) + 1)]
    for example in loaded.examples:
        written = {str(value).strip() for value in _scalars(rows[int(example.where.split()[-1]) - 1])}
        assert {answer.strip() for answer in example.answers} <= written
        assert "None" not in example.prompt or any("None" in value for value in written)


def _scalars(value):
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _scalars(inner)
    else:
        yield value


@ANY
@given(st.binary(max_size=60), st.sampled_from([".jsonl", ".json", ".csv", ".tsv", ".parquet"]))
def test_any_bytes(encoder, tmp_path, content, ending):
    path = tmp_path / f"t{ending}"
    path.write_bytes(content)
    try:
        check_encoded(encoder, load(str(path), "train", whole=True).examples)
    except ValueError as error:
        assert is_a_sentence(error, path)


CELL = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('",;\n'), min_size=1, max_size=9)


@ANY
@given(
    st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5), st.sampled_from(",;\t"), st.sampled_from(["\n", "\r\n"])
)
def test_csv_comes_out_as_it_went_in(encoder, tmp_path, rows, delimiter, ending):
    path = tmp_path / "t.csv"
    quoted = [delimiter.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    path.write_bytes(ending.join([f"prompt{delimiter}answer", *quoted]).encode())
    usable = [(p, (" " + a.removeprefix(" "),)) for p, a in rows if p.strip() and a.strip()]
    if usable:
        loaded = load(str(path), "train", whole=True)
        assert [(e.prompt, e.answers) for e in loaded.examples] == usable
        assert len(loaded.dropped) == len(rows) - len(usable)
        check_encoded(encoder, loaded.examples)


CHOICE = st.sampled_from([*string.ascii_uppercase[:4], "0", "1", "2", "red", "blue", " red", ""])


@ANY
@given(st.lists(CHOICE, min_size=2, max_size=4), CHOICE | st.integers(-1, 4))
def test_a_label_is_right_or_refused(tmp_path, choices, answer):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"question": "Q", "choices": choices, "answer": answer}]))
    said = str(answer).strip()
    meant = {i for i, choice in enumerate(choices) if said in (choice.strip(), string.ascii_uppercase[i], str(i))}
    try:
        (example,) = load(str(path), "train", whole=True).examples
    except ValueError as error:
        assert is_a_sentence(error, path)
        assert len(meant) != 1 or "" in choices
    else:
        assert {example.gold} == meant


def test_a_row_of_forty_megabytes(encoder, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [
        {"prompt": "a", "answer": "b"},
        {"prompt": "word " * 8_000_000, "answer": "b"},
        {"prompt": "c", "answer": "d"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept, dropped = encode(encoder, load(str(path), "train", whole=True).examples, with_choices=False)
    assert dropped == [Dropped("t.jsonl line 2", "longer than 40000 characters")]
    assert [encoder.decode(row.sample.prompt) for row in kept] == ["a", "c"]
