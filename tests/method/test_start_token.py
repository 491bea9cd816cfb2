"""A new start token: one row beside the base's embedding, and nothing else is new (B05)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from decoders import build, draw, randomise, tiny
from keep64 import Keep64
from safetensors.torch import load_file
from test_generation import NEVER, step_by_step
from test_known_answers import close, flat, gradients, same

from bitune_pl import VARIANTS, Bitune, Sample, load_decoder
from bitune_pl.method import three_pass
from bitune_pl.method.fingerprint import fingerprint

SEP, VOCAB = "<sep>", 97
ROOT = Path(__file__).parents[2]


def ending(samples: list[Sample]) -> list[Sample]:
    """The same samples, their prompts one token longer."""
    return [Sample(torch.cat([s.prompt, torch.tensor([VOCAB])]), s.answers) for s in samples]


def made(family="llama", variant="bitune", tied: bool = False, **settings) -> Bitune:
    torch.manual_seed(0)
    model = randomise(Bitune.build(tiny(family, tie_word_embeddings=tied), variant, start_token=SEP, **settings).eval())
    with torch.no_grad():
        row(model).normal_(std=0.3)
    return model


def row(model: Bitune) -> torch.nn.Parameter:
    return model.decoder.get_input_embeddings().start_token.weight


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_one_pass_equals_three_passes(family, checkpointing):
    equals_three_passes(family, "bitune", checkpointing)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_pass_equals_three_passes_in_each_variant(variant):
    equals_three_passes("llama", variant, checkpointing=True)


def equals_three_passes(family, variant, checkpointing):
    """In logits, loss and every gradient, that of the new row among them."""
    model, samples = build(family, variant, dtype=torch.float64, start_token=SEP).double(), ending(draw())
    singles = [Sample(s.prompt, [answer]) for s in samples for answer in s.answers]
    with Keep64():
        slow = three_pass.loss(model, singles)
        theirs = gradients(model, slow)
        close(model.answer_logits(singles), three_pass.answer_logits(model, singles), 1e-9)
        if checkpointing:
            model.checkpoint_activations()
            model.train()
        fast = model.loss(singles)
        ours = gradients(model, fast)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9)
    same(ours, theirs)
    [start] = [gradient for name, gradient in ours.items() if "start_token" in name]
    assert start.shape[0] == 1 and start.all()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_base_knows_nothing_of_it(family, tied):
    """Its tables keep their rows, bit for bit, in training; logits keep their columns; the fingerprint stays."""
    torch.manual_seed(0)
    decoder = tiny(family, tie_word_embeddings=tied)
    before, mark = {n: p.clone() for n, p in decoder.named_parameters()}, fingerprint(decoder)
    model = Bitune.build(decoder, start_token=SEP).train()
    start, trained = row(model).detach().clone(), [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.5, weight_decay=0.1)
    for seed in range(2):
        model.loss(ending(draw(seed=seed))).backward()
        optimizer.step()
        optimizer.zero_grad()
    base = {n.replace("base_layer.", ""): p for n, p in decoder.named_parameters() if not p.requires_grad}
    assert all(torch.equal(base[name], value) for name, value in before.items())
    assert (row(model) != start).all() and row(model).dtype == torch.float32
    assert decoder.get_input_embeddings().weight.shape[0] == VOCAB == model.start_token_id
    assert decoder.get_output_embeddings().weight.shape[0] == VOCAB
    assert {logits.shape[1] for answers in model.answer_logits(ending(draw())) for logits in answers} == {VOCAB}
    assert fingerprint(decoder) == model.base_fingerprint == mark


def test_it_is_the_only_thing_trained_where_there_is_no_adapter():
    model = made("llama", "plain", adapter="none")
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        "decoder.model.embed_tokens.start_token.weight"
    ]
    assert gradients(model, model.loss(ending(draw())))["decoder.model.embed_tokens.start_token.weight"].all()


def test_the_token_before_it_is_prefilled(family):
    """With the embedding of a token of the base, the new token is that token."""
    model = made(family)
    table = model.decoder.get_input_embeddings()
    with torch.no_grad():
        row(model).copy_(table.weight[5])
    old = [Sample(torch.cat([s.prompt, torch.tensor([5])]), s.answers) for s in draw()]
    torch.manual_seed(0)
    plain = randomise(Bitune.build(tiny(family, tie_word_embeddings=False)).eval())
    close(model.answer_logits(ending(draw())), plain.answer_logits(old))


@pytest.mark.parametrize("adapter", ["lora", "ia3", "full", "none"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_same_logits_come_back(adapter, tied, tmp_path):
    model = made(tied=tied, adapter=adapter)
    expected = model.answer_logits(ending(draw()))
    model.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    again = Bitune.from_pretrained(tmp_path / "model", tiny("llama", tie_word_embeddings=tied))
    assert again.start_token_id == VOCAB and torch.equal(row(again), row(model))
    assert torch.equal(flat(again.answer_logits(ending(draw()))), flat(expected))
    stored = [name for file in (tmp_path / "model").rglob("*.safetensors") for name in load_file(file)]
    assert stored.count("start_token") == 1 and not any("embed" in name for name in stored)


REOPEN = """
import sys, torch
from bitune_pl import Bitune, Sample
model = Bitune.from_pretrained(sys.argv[1])
logits = model.answer_logits([Sample(torch.tensor([5, 6, 7, model.start_token_id]), [torch.tensor([8, 9])])])[0][0]
torch.save(logits, sys.argv[2])
"""


def test_the_same_logits_come_back_in_a_new_process(tmp_path):
    torch.manual_seed(0)
    tiny("llama").save_pretrained(tmp_path / "base")
    model = randomise(Bitune.build(load_decoder(str(tmp_path / "base"), torch.float32), start_token=SEP))
    model.save_pretrained(tmp_path / "model")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    paths = [str(tmp_path / "model"), str(tmp_path / "logits.pt")]
    subprocess.run([sys.executable, "-c", REOPEN, *paths], env=environment, check=True, capture_output=True)
    sample = Sample(torch.tensor([5, 6, 7, VOCAB]), [torch.tensor([8, 9])])
    assert torch.equal(torch.load(paths[1]), model.eval().answer_logits([sample])[0][0])


def test_a_missing_row_is_named(tmp_path):
    made().save_pretrained(tmp_path / "model")
    (tmp_path / "model/start_token.safetensors").unlink()
    torch.manual_seed(0)
    with pytest.raises(FileNotFoundError, match="lacks start_token.safetensors"):
        Bitune.from_pretrained(tmp_path / "model", tiny("llama", tie_word_embeddings=False))


PROMPTS = [sample.prompt for sample in ending(draw([(13, ()), (7, ()), (2, ())]))]
ALONE = torch.tensor([VOCAB])


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_equals_step_by_step_in_each_variant(variant):
    greedy_equals_step_by_step(made("llama", variant))


def test_greedy_equals_step_by_step(family):
    greedy_equals_step_by_step(made(family))


def greedy_equals_step_by_step(model):
    for prompts in ([*PROMPTS, ALONE], [ALONE]):
        for prompt, new in zip(prompts, model.generate(prompts, max_new_tokens=6, **NEVER), strict=True):
            assert new.tolist() == step_by_step(model, prompt, 6)


PENALTIES = [
    dict(repetition_penalty=1.5),
    dict(no_repeat_ngram_size=1),
    dict(no_repeat_ngram_size=2, num_beams=3, num_return_sequences=2),
    dict(do_sample=True, temperature=50.0, top_k=0),
    dict(do_sample=True, typical_p=0.9, top_k=0),
    dict(do_sample=True, eta_cutoff=1e-3, renormalize_logits=True),
]


@pytest.mark.parametrize("settings", PENALTIES, ids=lambda settings: "-".join(settings))
def test_penalties_may_look_it_up_and_it_is_never_generated(settings):
    """They index scores by the ids of the prompt, and the new one has no column in the base's logits."""
    model = made()
    for new in model.generate(PROMPTS, max_new_tokens=20, **{**NEVER, **settings}):
        assert len(new) == 20 and int(new.max()) < VOCAB
    assert not model.decoder._forward_hooks


def test_a_repetition_penalty_is_as_without_it():
    """The penalty falls on the tokens of the prompt, the new one only being there."""
    model, settings = made(), dict(repetition_penalty=1.5, max_new_tokens=1, **NEVER)
    for prompt, new in zip(PROMPTS, model.generate(PROMPTS, **settings), strict=True):
        scores = model.answer_logits([Sample(prompt, [torch.tensor([0])])])[0][0][0].detach()
        seen = prompt[:-1].unique()
        scores[seen] = torch.where(scores[seen] < 0, scores[seen] * 1.5, scores[seen] / 1.5)
        assert int(new) == int(scores.argmax())


def test_a_prompt_that_ends_otherwise_is_refused():
    model = made()
    for call in (model.loss, model.answer_logits, model.log_likelihood):
        with pytest.raises(ValueError, match="start token of its own, of id 97, and a prompt ends in the token"):
            call(draw())
    for prompts in ([PROMPTS[0], PROMPTS[0][:-1]], [torch.tensor([5])]):
        with pytest.raises(ValueError, match=r"encode prompts with Encoder\(..., start_token=model.start_token_id\)"):
            model.generate(prompts)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="start_token is null .* or '<sep>' .*, not '<s>'"):
        Bitune.build(tiny("llama"), start_token="<s>")
    decoder = tiny("llama")
    Bitune.build(decoder, "plain", "none", start_token=SEP)
    with pytest.raises(ValueError, match="already carries"):
        Bitune.build(decoder, start_token=SEP)


def test_a_bfloat16_base_has_its_row_in_float32():
    torch.manual_seed(0)
    model = Bitune.build(tiny("llama").bfloat16(), start_token=SEP)
    assert row(model).dtype == torch.float32 and model.decoder.dtype == torch.bfloat16
    assert model.answer_logits(ending(draw()))[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(row(model)[0], model.decoder.get_input_embeddings().weight.float().mean(0))
