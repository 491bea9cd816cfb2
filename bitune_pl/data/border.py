"""May a prompt and its answer be tokenised apart?

The ids of an answer are those it has after its prompt. Tokenising prompt and answer together shows them, at the price
of reading every prompt again for every answer. For many tokenizers this is not needed, as their parts prove: if no
token reaches from the prompt's last character into a space after it, then ids(prompt + " answer") is ids(prompt) and
then ids(" answer"). Where the proof fails the encoder tokenises both together: same ids, slower.
"""

import json
import re

from transformers import PreTrainedTokenizerBase

_WHITESPACE_MARKS = "ĉĊċČčĠ"  # tab, newline, vertical tab, form feed, carriage return, space in byte-level vocabularies
_BYTE_LEVEL_TOKEN = re.compile(f"([^{_WHITESPACE_MARKS}])Ġ")
_SENTENCEPIECE_TOKEN = re.compile(r"([^▁\s])▁")
_TEXT_TOKEN = re.compile(r"(\S) ")

# Patterns in which a match holds a space only as its first character, or in a run of white space, and which look ahead
# only from inside such a run: GPT-2 (also built into ByteLevel), Qwen 2 and Llama 3.
_KNOWN_PATTERNS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    *(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in (r"\p{N}", r"\p{N}{1,3}")
    ),
}


def is_clean(prompt: str, answer: str, bridged: frozenset[str] | None) -> bool:
    """Whether ids(prompt + answer) == ids(prompt) + ids(answer) is proven.

    So it is where the prompt does not end in white space nor in one of the characters of `bridged_characters`, and the
    answer opens with a space.
    """
    last = prompt[-1:]
    return (
        bridged is not None and answer.startswith(" ") and not (last.isspace() or last in bridged or last in ("", "▁"))
    )


def bridged_characters(tokenizer: PreTrainedTokenizerBase) -> frozenset[str] | None:
    """The characters from which some token reaches into a space after them; None where nothing can be proven."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE":
        return None
    model = backend.model
    added = [token for token in tokenizer.added_tokens_decoder.values() if not token.special]
    greedy = any(token.lstrip or token.rstrip or token.single_word for token in added)
    reaching = _reaching(_parts(backend.normalizer), _parts(backend.pre_tokenizer))
    if model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix or greedy or reaching is None:
        return None
    found = {c for token in backend.get_vocab(with_added_tokens=False) for c in reaching.findall(token)}
    found |= {c for token in added for c in _TEXT_TOKEN.findall(token.content)}
    is_whole_character = reaching is _SENTENCEPIECE_TOKEN or all(c.isascii() for c in found)
    return frozenset(found) if is_whole_character else None


def _parts(component: object) -> list[dict]:
    """A normalizer or pre-tokenizer as the list of its steps."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    return state.get("normalizers", state.get("pretokenizers", [state]))


def _reaching(normalizers: list[dict], pre_tokenizers: list[dict]) -> re.Pattern | None:
    """What a token that reaches over the border looks like; None where a step is not among those understood."""
    if [step["type"] for step in normalizers] == ["Replace"]:
        replaces_space = normalizers[0]["pattern"] == {"String": " "} and normalizers[0]["content"] == "▁"
        splits_nothing = all(step["type"] == "Split" and step["pattern"] == {"String": " "} for step in pre_tokenizers)
        return _SENTENCEPIECE_TOKEN if replaces_space and splits_nothing else None
    if any(step["type"] != "NFC" for step in normalizers) or not all(map(_is_understood, pre_tokenizers)):
        return None
    return _BYTE_LEVEL_TOKEN if any(step["type"] == "ByteLevel" for step in pre_tokenizers) else None


def _is_understood(step: dict) -> bool:
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    if step["type"] == "Split":
        return step["pattern"].get("Regex") in _KNOWN_PATTERNS and step["behavior"] == "Isolated"
    return step["type"] == "Digits"
