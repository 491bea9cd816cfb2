"""The cache of tokenised rows: read when nothing changed, never when anything did."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from bitune_pl.data import cache, rows
from bitune_pl.data.datamodule import BituneData
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example

EXAMPLES = [
    Example("Which:", (" red", " apple tree", " two"), 1, "line 1"),
    Example("Why:", (" a" * 40,), 0, "line 2"),
    Example("Who:", (" you",), 0, "line 3"),
]


@pytest.fixture
def encoder(byte_level):
    return Encoder(byte_level, max_length=30)


def keys_of(encoded):
    return encoded.key, encoded.was_found


def test_a_second_run_reads_what_the_first_made(encoder):
    fresh = cache.encode(encoder, EXAMPLES, True)
    again = cache.encode(encoder, EXAMPLES, True)
    assert not fresh.was_found and again.was_found and fresh.key == again.key
    plain, dropped = rows.encode(encoder, EXAMPLES, True)
    assert again.dropped == fresh.dropped == dropped and [row.where for row in dropped] == ["line 2"]
    for name in ("ids", "ends", "first", "golds"):
        assert np.array_equal(getattr(again.rows, name), getattr(plain, name))
    assert again.rows[0].sample.answers[0].tolist() == plain[0].sample.answers[0].tolist()


def test_anything_that_matters_is_in_the_key(encoder, byte_level):
    other = PreTrainedTokenizerFast(
        tokenizer_object=byte_level.backend_tokenizer.__class__.from_str(byte_level.backend_tokenizer.to_str()),
        eos_token="</s>",
    )
    other.backend_tokenizer.normalizer = normalizers.NFC()
    assert other.vocab_size == byte_level.vocab_size
    changed = [
        (encoder, EXAMPLES, True),
        (encoder, EXAMPLES, False),
        (encoder, EXAMPLES[:2], True),
        (encoder, [Example("Which?", *_rest(EXAMPLES[0])), *EXAMPLES[1:]], True),
        (encoder, [Example("Which:", EXAMPLES[0].answers, 2, "line 1"), *EXAMPLES[1:]], True),
        (Encoder(byte_level, max_length=31), EXAMPLES, True),
        (Encoder(other, max_length=30), EXAMPLES, True),
        (Encoder(byte_level, max_length=30, start_token=500), EXAMPLES, True),
        (Encoder(byte_level, max_length=30, start_token=501), EXAMPLES, True),
    ]
    assert len({cache.make_key(*settings) for settings in changed}) == len(changed)


def _rest(example):
    return example.answers, example.gold, example.where


def test_j04_a_changed_template_or_file_is_seen(byte_level, tmp_path, caplog):
    file = tmp_path / "t.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n')
    other = tmp_path / "v.jsonl"
    other.write_bytes(file.read_bytes())

    def ids(**settings):
        data = BituneData(str(file), validation_source=str(other), **settings)
        data.tokenizer = byte_level
        with caplog.at_level("INFO"):
            data.setup("fit")
        return byte_level.decode(data.rows["train"][0].sample.prompt)

    assert ids() == ids() == "a"
    said = [line for line in caplog.messages if "(train)" in line]
    key = said[0].split()[-1].rstrip(")")
    assert said[0].endswith(f"rows kept: 1 of 1 (tokenised, kept in the cache as {key})")
    assert said[1].endswith(f"(read from the cache as {key})")
    assert ids(template="{prompt}!") == "a!" and ids(template="{prompt}?") == "a?"
    stamp = os.stat(file)
    file.write_text('{"prompt": "c", "answer": "b"}\n')
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert ids() == "c", "same size, same time, other text"


@pytest.mark.parametrize("damage", ["cut", "gone", "empty", "other"])
def test_a_damaged_entry_is_made_anew(encoder, damage):
    entry = cache.folder() / cache.encode(encoder, EXAMPLES, False).key
    ids = entry / "ids.npy"
    match damage:
        case "cut":
            ids.write_bytes(ids.read_bytes()[:-4])
        case "gone":
            ids.unlink()
        case "empty":
            (entry / "dropped.json").write_text("")
        case "other":
            np.save(ids, np.zeros(3, dtype=np.int32))
    assert not cache.encode(encoder, EXAMPLES, False).was_found
    assert cache.encode(encoder, EXAMPLES, False).was_found
    assert not list(cache.folder().glob("unfinished-*"))


def test_many_at_once(encoder):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: cache.encode(encoder, EXAMPLES, False), range(8)))
    assert len({encoded.key for encoded in made}) == 1 and all(len(encoded.rows) == 2 for encoded in made)
    assert os.listdir(cache.folder()) == [made[0].key]


def test_a_folder_that_cannot_be_written_and_none_wanted(encoder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BITUNE_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be kept in .*set BITUNE_CACHE"):
        assert keys_of(cache.encode(encoder, EXAMPLES, False)) == ("", False)
    monkeypatch.setenv("BITUNE_CACHE", "off")
    assert keys_of(cache.encode(encoder, EXAMPLES, False)) == ("", False) and cache.folder() is None
    monkeypatch.delenv("BITUNE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "bitune_pl" / "rows"
