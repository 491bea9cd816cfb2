"""Continuing prompts from the mixed cache equals recomputing everything at each step (DESIGN 5.10; C03, C05, B03)."""

import pytest
import torch
from decoders import build, draw
from transformers import GenerationConfig, StoppingCriteria

from bitune_pl import Sample

PROMPTS = [sample.prompt for sample in draw([(13, ()), (7, ()), (1, ()), (2, ())])]
NEVER = dict(do_sample=False, eos_token_id=None)


def step_by_step(model, prompt, steps: int) -> list[int]:
    """The likeliest next token from a forward that recomputes prompt and answer each time."""
    answer: list[int] = []
    for _ in range(steps):
        tail = torch.tensor([*answer, 0])
        answer.append(int(model.answer_logits([Sample(prompt, [tail])])[0][0][-1].argmax()))
    return answer


def greedy_equals_step_by_step(model) -> None:
    together = model.generate(PROMPTS, max_new_tokens=8, **NEVER)
    for prompt, new in zip(PROMPTS, together, strict=True):
        assert new.tolist() == step_by_step(model, prompt, 8)
        assert torch.equal(model.generate([prompt], max_new_tokens=8, **NEVER)[0], new)


def test_one_new_token_and_start_tokens_alone(family):
    model = build(family)
    assert [len(new) for new in model.generate(PROMPTS, max_new_tokens=1, **NEVER)] == [1] * 4
    [alone] = model.generate([PROMPTS[2]], max_new_tokens=3, **NEVER)
    assert alone.tolist() == step_by_step(model, PROMPTS[2], 3)


def test_a_finished_row_ends_with_its_end_token_and_nothing_else():
    model = build("llama")
    free = [new.tolist() for new in model.generate(PROMPTS, max_new_tokens=12, **NEVER)]
    end = free[0][4]
    ended = model.generate(PROMPTS, max_new_tokens=12, do_sample=False, eos_token_id=end)
    for new, whole in zip(ended, free, strict=True):
        assert new.tolist() == (whole[: whole.index(end) + 1] if end in whole else whole)


def test_beams_are_scored_by_the_likelihood_of_forward(family):
    """Several return sequences in order; the best beam is at least as likely as greedy's answer."""
    model = build(family)
    found = model.generate(PROMPTS, max_new_tokens=5, num_beams=4, num_return_sequences=3, **NEVER)
    greedy = model.generate(PROMPTS, max_new_tokens=5, **NEVER)
    assert len(found) == 12
    for i, prompt in enumerate(PROMPTS):
        beams = found[3 * i : 3 * i + 3]
        scores = [s.sum().item() for s in model.log_likelihood([Sample(prompt, [*beams, greedy[i]])])[0]]
        assert sorted(scores[:3], reverse=True) == pytest.approx(scores[:3])
        assert scores[0] >= scores[3] - 1e-4


def test_sampled_sequences_are_reproducible_and_differ():
    model = build("llama")
    config = GenerationConfig(do_sample=True, num_return_sequences=4, max_new_tokens=6, eos_token_id=None, top_k=0)
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append([new.tolist() for new in model.generate(PROMPTS[:2], generation_config=config)])
    assert runs[0] == runs[1] and len(runs[0]) == 8
    assert len({tuple(new) for new in runs[0][:4]}) > 1


def test_prefill_leaves_model_and_cache_as_they_were(family):
    model = build(family).train()
    cache, mask = model.prefill(PROMPTS)
    assert model.training and model.decoder.training
    assert mask.sum(1).tolist() == [12, 6, 0, 1] and mask.shape == (4, 12)
    assert {layer.keys.shape[2] for layer in cache.layers} == {12}
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    model.generate(PROMPTS, max_new_tokens=2)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == trained
    assert {layer.keys.shape[2] for layer in cache.layers} == {12}


@pytest.mark.parametrize("variant", ["plain", "bitune", "echo"])
@pytest.mark.parametrize("name", ["llama", "mistral", "phi"])
def test_decoding_by_hand_from_prefill_as_documented(name, variant):
    """As the docstring of `generation.prefill` says it, step after step, prompts of unequal lengths together."""
    model, steps = build(name, variant), []
    cache, mask = model.prefill(PROMPTS)
    positions, tokens = mask.sum(1, keepdim=True), torch.stack([prompt[-1:] for prompt in PROMPTS])
    for t in range(4):
        mask = torch.cat([mask, torch.ones(len(PROMPTS), 1, dtype=torch.long)], dim=1)
        with torch.no_grad():
            logits = model.decoder(
                input_ids=tokens, attention_mask=mask, cache=cache, position_ids=positions + t
            ).logits[:, -1]
        steps.append((logits, tokens := logits.argmax(1, keepdim=True)))
    answers = torch.cat([new for _, new in steps], dim=1)
    for i, prompt in enumerate(PROMPTS):
        [[expected]] = model.answer_logits([Sample(prompt, [answers[i]])])
        torch.testing.assert_close(torch.stack([logits[i] for logits, _ in steps]), expected, rtol=1e-4, atol=1e-4)


def test_choices_are_scored_the_same_in_any_order(family):
    """C03: nothing of one choice is left when the next is scored."""
    model, [sample] = build(family), draw([(11, (2, 3, 1, 4))])
    forward = [s.sum() for s in model.log_likelihood([sample])[0]]
    backward = [s.sum() for s in model.log_likelihood([Sample(sample.prompt, sample.answers[::-1])])[0]]
    torch.testing.assert_close(torch.stack(forward), torch.stack(backward[::-1]), rtol=1e-5, atol=0)


def test_bad_requests_are_one_sentence():
    model = build("llama")
    assert model.generate([]) == []
    with pytest.raises(ValueError, match="nothing to prefill"):
        model.prefill([PROMPTS[2]])
    with pytest.raises(ValueError, match="return_dict_in_generate"):
        model.generate(PROMPTS, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="at least one token"):
        model.generate([torch.empty(0, dtype=torch.long)])


class AfterTwo(StoppingCriteria):
    """Stops the first row after two new tokens, and the others never."""

    def __call__(self, input_ids, scores, **kwargs):
        return (torch.arange(len(input_ids)) == 0) & (input_ids.shape[1] >= len(PROMPTS[0]) + 2)


@pytest.mark.parametrize("pad", [2, 7])
def test_a_row_stopped_by_a_criterion_ends_there(pad):
    """Not with padding, whether or not the padding is the end token."""
    model = build("llama")
    settings = dict(max_new_tokens=6, do_sample=False, eos_token_id=2, pad_token_id=pad)
    whole = model.generate(PROMPTS, **settings)
    stopped = model.generate(PROMPTS, stopping_criteria=[AfterTwo()], **settings)
    assert [new.tolist() for new in stopped] == [whole[0][:2].tolist(), *(new.tolist() for new in whole[1:])]


class OnToken(StoppingCriteria):
    """Stops a beam at one of two tokens."""

    def __init__(self, tokens):
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.tokens)


@pytest.mark.parametrize("pad", [2, 7, None])
@pytest.mark.parametrize("end", [2, None])
def test_a_stopped_beam_ends_where_it_stopped(pad, end):
    """No token after the one that stopped it, although the padding may be the end token."""
    model, tokens = build("llama"), range(3, 60)
    settings = dict(max_new_tokens=6, do_sample=False, eos_token_id=end, pad_token_id=pad, num_beams=2)
    found = model.generate(PROMPTS, stopping_criteria=[OnToken(list(tokens))], num_return_sequences=2, **settings)
    assert len({len(new) for new in found}) > 1
    for new in found:
        *before, last = new.tolist()
        assert last in tokens or last == end or len(new) == 6
        assert not any(token in tokens or token == end for token in before) and all(0 <= t < 97 for t in before)
