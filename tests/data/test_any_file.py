"""Whatever is in a file: rows as they were written, or a sentence that names the file; never a wrong label."""

import json
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Dropped
from bitune_pl.data.sources import load

ANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(max_size=12) | st.sampled_from(
    ["", " ", "\n", "\ufeff", "\x00", "\u2028x", "</s>", "a\r\nb", "😊" * 3, "x" * 9000]
)
SCALAR = TEXT | st.none() | st.integers() | st.floats() | st.booleans()
FIELD = SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(TEXT, SCALAR, max_size=2)
NAMES = st.sampled_from(["prompt", "answer", "question", "choices", "instruction", "input", "output", "messages", "x"])
ENDING = st.sampled_from(["\n", "\r\n", "\n\n", "\r\n \r\n"])


def encoded(encoder, path):
    """Each example with what it became."""
    examples = load(str(path), "train", whole=True).examples
    return list(zip(examples, encoder.training_ids(examples), strict=True))


def is_a_sentence(error: Exception, path) -> bool:
    return path.name in str(error) and str(error).rstrip()[-1] == "." and "\n" not in str(error)


@pytest.fixture
def encoder(byte_level):
    return Encoder(byte_level, max_length=200)


@ANY
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6), ENDING, st.booleans(), st.booleans())
def test_prompts_and_answers_come_out_as_they_went_in(encoder, tmp_path, rows, ending, mark, ascii):
    path = tmp_path / "t.jsonl"
    lines = [json.dumps({"prompt": p, "answer": a}, ensure_ascii=ascii) for p, a in rows]
    path.write_bytes(("\ufeff" * mark + ending.join(lines)).encode("utf-8", "surrogatepass"))
    where = {f"t.jsonl line {1 + i * ending.count(chr(10))}": row for i, row in enumerate(rows)}
    try:
        found = encoded(encoder, path)
    except ValueError as error:
        assert is_a_sentence(error, path)
        return
    for example, ids in found:
        prompt, answer = where[example.where]
        assert example.prompt == prompt and example.answers == (" " + answer.removeprefix(" "),)
        if isinstance(ids, Dropped):
            assert ids.where == example.where and len(prompt + answer) > 20
            continue
        read, (learned,) = ids
        assert encoder.decode(read) == prompt and encoder.decode(learned[:-1]) == example.answer
        assert learned[-1] == encoder.eos and encoder.eos not in learned[:-1]


@ANY
@given(
    st.lists(st.dictionaries(NAMES, FIELD, max_size=4), min_size=1, max_size=4), st.sampled_from([".jsonl", ".json"])
)
def test_any_rows(encoder, tmp_path, rows, ending):
    path = tmp_path / f"t{ending}"
    text = json.dumps(rows) if ending == ".json" else "\n".join(map(json.dumps, rows))
    path.write_text(text)
    try:
        found = encoded(encoder, path)
    except ValueError as error:
        assert is_a_sentence(error, path)
        return
    written = {str(value).strip() for row in rows for value in _scalars(row)}
    for example, _ in found:
        assert {part.strip() for part in example.answers} <= written
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
        encoded(encoder, path)
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
    usable = [row for row in rows if row[0].strip() and row[1].strip()]
    if usable:
        examples = [example for example, _ in encoded(encoder, path)]
        assert [(e.prompt, e.answer) for e in examples] == [(p, " " + a.removeprefix(" ")) for p, a in usable]


CHOICE = st.sampled_from([*string.ascii_uppercase[:4], "0", "1", "2", "red", "blue", " red", ""])


@ANY
@given(st.lists(CHOICE, min_size=2, max_size=4), CHOICE | st.integers(-1, 4))
def test_a_label_is_right_or_refused(encoder, tmp_path, choices, answer):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"question": "Q", "choices": choices, "answer": answer}]))
    said = str(answer).strip()
    meant = {i for i, choice in enumerate(choices) if said in (choice.strip(), string.ascii_uppercase[i], str(i))}
    try:
        example, _ = encoded(encoder, path)[0]
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
    first, huge, last = encoded(encoder, path)
    assert huge[1] == Dropped("t.jsonl line 2", "longer than 40000 characters")
    assert not isinstance(first[1], Dropped) and not isinstance(last[1], Dropped)
