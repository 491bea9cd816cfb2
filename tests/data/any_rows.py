"""Rows of every kind, well written and spoiled, each with what is to become of it."""

import json
import math
import string

from hypothesis import strategies as st

DROPPED, REFUSED = "dropped", "refused"  # of a row that is kept: its prompt, its answers, and which is right
TEXT = st.text(max_size=12) | st.sampled_from(
    ["\ufeff", "\x00", "\u2028x", "</s>", "a\r\nb", " b", "None", "😊" * 3, "x" * 9000, "word " * 9000]
)
GOOD = TEXT.filter(str.strip) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
BLANK = st.sampled_from(["", " ", "\n", "\u2028", None, math.nan])
UNUSABLE = BLANK | st.just("a\ud800")
WRONG = st.sampled_from([True, ["a"], [{"a": "b"}], {"a": "b"}])
CHOICE = TEXT.filter(lambda text: len(text) < 20 and text.strip() and text.strip() not in [*"ABCD0123"])
NO_ROW = st.sampled_from(["[]", "7", "null", '"x"'])
NO_JSON = st.sampled_from(["{'prompt': 1}", '{"prompt": ', "{} {}", "x"])


def is_blank(value) -> bool:
    return value is None or value != value or not str(value).strip()


def answers(*values) -> tuple[str, ...]:
    return tuple(" " + str(value).removeprefix(" ") for value in values)


def _spoils(draw, *names):
    """Changes of a row's fields for which it is dropped, and for which it is refused; `...` takes a field away."""
    return [{name: draw(UNUSABLE)} for name in names], [{name: value} for name in names for value in (draw(WRONG), ...)]


@st.composite
def prompt_answer(draw):
    prompt, answer = draw(GOOD), draw(GOOD)
    return {"prompt": prompt, "answer": answer}, (str(prompt), answers(answer), 0), *_spoils(draw, "prompt", "answer")


@st.composite
def instruction(draw):
    said, context, output = draw(GOOD), draw(GOOD | BLANK | st.just(...)), draw(GOOD)
    whole = str(said) if context is ... or is_blank(context) else f"{said}\n{context}"
    row = {"instruction": said, "input": context, "output": output}
    fate = (f"Question: {whole}\n\nAnswer:", answers(output), 0)
    return row, fate, *_spoils(draw, "instruction", "output")


@st.composite
def worded_sum(draw):
    question, answer = draw(GOOD), draw(GOOD)
    fate = (f"Question: {question}\n\nAnswer:", answers(answer), 0)
    return {"question": question, "answer": answer}, fate, *_spoils(draw, "question", "answer")


@st.composite
def question(draw):
    """The right choice is named by its text, letter or position, or by a label of the row's own."""
    asked, texts = draw(GOOD), draw(st.lists(CHOICE, min_size=2, max_size=4, unique_by=str.strip))
    gold, listed = draw(st.integers(0, len(texts) - 1)), "\n".join(texts)
    named = draw(st.sampled_from([texts[gold], string.ascii_uppercase[gold], gold, str(gold), float(gold)]))
    labels = draw(st.permutations("21BA"))[: len(texts)]
    columns = {f"choice{i}": text for i, text in enumerate(texts)}
    said = draw(
        st.sampled_from(
            [
                {"choices": texts, "answer": named},
                {"choices": json.dumps(texts), "answer": named},
                columns | {"answer": named},
            ]
            + [{"choices": {"text": texts, "label": labels}, "answer": labels[gold]}]
        )
    )
    fate = (f"Question: {asked}\n\nChoices:\n{listed}\n\nAnswer:", answers(*texts), gold)
    dropped = [{"question": draw(UNUSABLE)}, {"choices": ["a", draw(UNUSABLE)]}]
    refused = [{"answer": value} for value in (None, True, -1, 99, ...)] + [
        {"choices": v} for v in ("a, b", ["a"], "ab", None)
    ]
    return {"question": asked, **said}, fate, dropped, refused


@st.composite
def chat(draw):
    system, user, answer = draw(GOOD | BLANK | st.just(...)), draw(GOOD), draw(GOOD)
    turn = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    turns = turn if system is ... else [{"role": "system", "content": system}, *turn]
    asked = str(user) if system is ... or is_blank(system) else f"{system}\n\n{user}"
    dropped = [turns + turn, turn[::-1], turn[:1], [], [turn[0], turn[1] | {"content": draw(UNUSABLE)}]]
    refused = [
        "text",
        None,
        ...,
        ["a"],
        [turn[0], turn[1] | {"content": draw(WRONG)}],
        [turn[0], {"role": "assistant"}],
    ]
    fate = (f"Question: {asked}\n\nAnswer:", answers(answer), 0)
    return {"messages": turns}, fate, *([{"messages": value} for value in values] for values in (dropped, refused))


@st.composite
def row(draw, kind, spoiled: bool):
    """A line of a file, and what becomes of it."""
    fields, fate, dropped, refused = draw(kind)
    fate = draw(st.sampled_from([fate, fate, fate, DROPPED, REFUSED])) if spoiled else fate
    fields |= {"x": draw(GOOD | BLANK | WRONG | st.just(...))}
    fields |= draw(st.sampled_from(dropped if fate == DROPPED else refused)) if fate in (DROPPED, REFUSED) else {}
    said = {name: value for name, value in fields.items() if value is not ...}
    return json.dumps(said, ensure_ascii=draw(st.booleans())).replace("\ud800", "\\ud800"), fate


@st.composite
def lines(draw, broken=NO_ROW | NO_JSON):
    """Rows of one kind, the first of them well written, between some that are spoiled and some that are no rows."""
    kind = draw(st.sampled_from([prompt_answer(), instruction(), worded_sum(), question(), chat()]))
    any_row = st.sampled_from([row(kind, True)] * 4 + [st.tuples(broken, st.just(REFUSED))]).flatmap(
        lambda found: found
    )
    before = draw(st.lists(st.tuples(broken, st.just(REFUSED)), max_size=1))
    return [*before, draw(row(kind, False)), *draw(st.lists(any_row, max_size=6))]
