"""The paper's templates, character by character (appendix A.10), and a user's own."""

import pytest

from bitune_pl.data import templates
from bitune_pl.data.templates import Template

FIVE = ("a pen", "a cup", "a bed", "a key", "a hat")


def test_instruction_and_sums():
    assert templates.INSTRUCTION.fill({"instruction": "Say hi."}) == "Question: Say hi.\n\nAnswer:"
    assert templates.WORDED_SUM.fill({"question": "1 + 1?"}) == "Question: 1 + 1?\n\nAnswer:"
    assert templates.INSTRUCTION.fill_answer("Hi.") == " Hi."


def test_choices():
    prompt = templates.CHOICES.fill_choices({"question": "Which?"}, FIVE[:2])
    assert prompt == "Question: Which?\n\nChoices:\na pen\na cup\n\nAnswer:"
    assert templates.CHOICES.fill_answer("a cup", 1) == " a cup"


def test_social():
    prompt = templates.SOCIAL.fill_choices({"context": "Jan ran.", "question": "Why?"}, FIVE[:3])
    assert prompt == (
        "Question: Given the context, answer correctly the question.\nContext: Jan ran.\nQuestion: Why?\n\n"
        "Choices:\n(0) a pen\n(1) a cup\n(2) a bed\n\nAnswer:"
    )
    assert templates.SOCIAL.fill_answer("a bed", 2) == " (2)"


def test_knowledge():
    prompt = templates.KNOWLEDGE.fill_choices({"question": "Which?"}, FIVE[:4])
    assert prompt == "Question: Which?\n(0). a pen\n(1). a cup\n(2). a bed\n(3). a key\n\nAnswer:"
    assert templates.KNOWLEDGE.fill_answer("a key", 3) == " (3)"


def test_another_language_is_a_text():
    frage = Template("Frage: {question}\nA) {choice0}\nB) {choice1}\n\nAntwort:")
    assert frage.fill_choices({"question": "Was?"}, ("ein", "zwei")) == "Frage: Was?\nA) ein\nB) zwei\n\nAntwort:"
    assert frage.fields == ("question", "choice0", "choice1")


def test_braces_in_the_data_stay():
    assert Template("{{x}} {prompt}").fill({"prompt": "{y} {{z}} {0}"}) == "{x} {y} {{z}} {0}"


@pytest.mark.parametrize("text", ["{a.b}", "{0}", "{a!r}", "{a:>5}", "{", "{}"])
def test_only_plain_names(text):
    with pytest.raises(ValueError, match="brace twice"):
        Template(text)


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match=r"x.jsonl line 2: the template asks for \{quest\}, but the row has question"):
        Template("{quest}").fill({"question": "?"}, "x.jsonl line 2")
