"""A `model/` folder is opened whole or not at all, and what is wrong with it is said with the file's name."""

import json

import pytest

from bitune_pl.cli import main
from bitune_pl.data.templates import WORDED_SUM
from bitune_pl.evaluation.run import open_run, write_prompt
from bitune_pl.method.backbone import name_of_dtype, usual_dtype
from bitune_pl.method.model import Bitune


@pytest.fixture
def folder(bitune, encoder, tmp_path):
    bitune.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    write_prompt(tmp_path, WORDED_SUM, 99)
    return tmp_path


def test_a_folder_opens_with_its_tokenizer_and_template(folder, encoder):
    opened = open_run(folder)
    assert (opened.template, opened.encoder.max_length) == (WORDED_SUM, 99)
    assert opened.encoder.prompt("Was?").tolist() == encoder.prompt("Was?").tolist()


def test_the_base_is_in_the_type_of_the_run_unless_another_is_asked_for(
    folder, tiny_base, tmp_path, capsys, monkeypatch
):
    asked_of = []
    generate = Bitune.generate
    monkeypatch.setattr(Bitune, "generate", lambda model, *a, **k: asked_of.append(model) or generate(model, *a, **k))
    usual = name_of_dtype(usual_dtype())
    for number, (told, expected) in enumerate(
        [
            (["--run", str(folder)], "float32"),
            (["--run", str(folder), "--dtype", "bfloat16"], "bfloat16"),
            (["--base", tiny_base], usual),
            (["--base", tiny_base, "--dtype", "float32"], "float32"),
        ]
    ):
        out = tmp_path / f"{number}.json"
        assert main(["evaluate", *told, "--tasks", "categories", "--limit", "1", "--out", str(out)]) == 0
        assert json.loads(out.read_text())["model"]["dtype"] == expected
        assert main(["generate", *told, "--prompt", "Was?", "--max-new-tokens", "1"]) == 0
        assert name_of_dtype(asked_of[-1].decoder.dtype) == expected
    assert main(["evaluate", "--dtype", "float16", "--run", str(folder), "--tasks", "categories"]) == 2
    assert "choose from" in capsys.readouterr().err


def test_a_tokenizer_that_is_cut(folder):
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(
        ValueError,
        match="tokenizer.json or tokenizer_config.json is damaged .*: copy the run's whole model folder again[.]$",
    ):
        open_run(folder)


@pytest.mark.parametrize("part", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_missing(folder, part):
    (folder / part).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {part}: copy the run's whole model folder[.]$"):
        open_run(folder)


def test_half_a_surrogate_pair_is_told(encoder):
    with pytest.raises(ValueError, match="holds half a surrogate pair"):
        encoder.prompt("a\ud800")


def test_a_folder_without_a_model_is_told_apart(tmp_path):
    """What is there says what to do next."""
    stopped, nothing = tmp_path / "stopped", tmp_path / "nothing"
    (stopped / "checkpoints").mkdir(parents=True)
    (stopped / "config.yaml").touch()
    partly = tmp_path / "partly"
    (partly / "model").mkdir(parents=True)
    nothing.mkdir()
    for name in ("one", "two"):
        (tmp_path / "runs" / name / "model").mkdir(parents=True)
        (tmp_path / "runs" / name / "model" / "prompt.json").touch()
    for folder, said in {
        stopped: f"has no model: bitune fit --resume {stopped} goes on with a training that was stopped, and writes it",
        partly: "partly/model lacks prompt.json: copy the run's whole model folder",
        stopped / "config.yaml": "config.yaml is no folder: give the folder of a finished run",
        tmp_path / "runs": f"holds runs and is none: name one, such as {tmp_path}/runs/two",
        nothing: "holds no model",
        tmp_path / "nowhere": "does not exist: give the folder of a finished run",
    }.items():
        with pytest.raises(FileNotFoundError, match=said):
            open_run(folder)
