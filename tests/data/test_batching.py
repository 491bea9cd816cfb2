"""Which rows are learned when: every row once an epoch, whatever the batches, ranks and interruptions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitune_pl.data.batching import Batch, InOrder, Loader
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example
from bitune_pl.data.plan import Plan
from bitune_pl.data.rows import encode


def rows_of(tokenizer, n: int):
    """Rows that can be told apart by their prompt, with answers of unequal lengths."""
    examples = [Example(f"Q{i}:", (" a" * (i % 5 + 1),), 0, f"line {i}") for i in range(n)]
    return encode(Encoder(tokenizer), examples, with_choices=False)[0]


def seen(tokenizer, batches: list[Batch]) -> list[int]:
    return [int(tokenizer.decode(s.prompt)[1:-1]) for batch in batches for s in batch.samples]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_every_row_once_and_all_ranks_in_step(n, batch_size, accumulate, world_size, epoch):
    plan, tokens = Plan(batch_size, accumulate, world_size, seed=1), np.arange(1, n + 1)
    if n < world_size:
        with pytest.raises(ValueError, match="each rank needs at least one"):
            plan.epoch(tokens, tokens, epoch, 0)
        return
    ranks = [plan.epoch(tokens, tokens, epoch, rank) for rank in range(world_size)]
    assert sorted(i for batches in ranks for batch in batches for i in batch.rows) == list(range(n))
    assert len({len(batches) for batches in ranks}) == 1
    assert all(1 <= len(batch.rows) <= batch_size + 1 for batches in ranks for batch in batches)
    size = batch_size * accumulate * world_size
    assert len(plan.updates(np.arange(n), epoch)) in (n // size, -(-n // size))
    if world_size == 1:
        assert len(plan.updates(np.arange(n), epoch)) == -(-n // size)
        assert all(len(batch.rows) <= batch_size for batch in ranks[0])


LENGTHS = st.lists(st.integers(2, 30), min_size=1, max_size=80)


@given(LENGTHS, st.integers(60, 200), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))
def test_a_token_budget(lengths, budget, accumulate, world_size, epoch):
    lengths, plan = np.array(lengths), Plan(10, accumulate, world_size, seed=1, batch_tokens=budget)
    if len(lengths) < world_size:
        return
    ranks = [plan.epoch(lengths, lengths - 1, epoch, rank) for rank in range(world_size)]
    assert sorted(i for batches in ranks for batch in batches for i in batch.rows) == list(range(len(lengths)))
    assert all(0 < lengths[batch.rows].sum() <= budget for batches in ranks for batch in batches)
    assert {len(batches) for batches in ranks} == {len(plan.epoch(lengths, lengths, 7, 0))}, "as many in every epoch"
    updates = plan.updates(lengths, epoch)
    steps = min(accumulate, len(lengths) // world_size)
    assert len(ranks[0]) == steps * len(updates), "Lightning counts micro-batches"
    for u, update in enumerate(updates):
        mine = [batch for batches in ranks for batch in batches[u * steps : (u + 1) * steps]]
        assert sorted(i for batch in mine for i in batch.rows) == sorted(update)
        assert {(batch.answers, batch.tokens) for batch in mine} == {(len(update), (lengths - 1)[update].sum())}


def test_a_token_budget_is_used_and_not_too_small():
    lengths = np.random.default_rng(0).integers(20, 200, 5000)
    batches = Plan(10, 1, 1, batch_tokens=4096).epoch(lengths, lengths, 0, 0)
    assert np.mean([lengths[batch.rows].sum() for batch in batches]) > 0.9 * 4096
    with pytest.raises(ValueError, match="data.batch_tokens is 300, but the longest row has 199 tokens: give at least"):
        Plan(10, batch_tokens=300).epoch(lengths, lengths, 0, 0)


def test_ranks_have_about_the_same_to_do():
    lengths = np.random.default_rng(0).integers(20, 500, 800)
    ranks = [Plan(4, 2, 4).epoch(lengths, lengths, 0, rank) for rank in range(4)]
    loads = np.array([[lengths[batch.rows].sum() for batch in batches] for batches in ranks])
    spread = (loads.max(0) - loads.min(0)) / loads.mean(0)
    assert spread.mean() < 0.1, "dealt at random it is 0.6"


def test_denominators_are_those_of_the_whole_update():
    plan, tokens = Plan(batch_size=2, accumulate=2, world_size=2, seed=0), np.arange(100, 123)
    ranks = [plan.epoch(tokens, tokens, 0, rank) for rank in range(2)]
    for u, update in enumerate(plan.updates(tokens, 0)):
        mine = [batch for batches in ranks for batch in batches[2 * u : 2 * u + 2]]
        assert sorted(i for batch in mine for i in batch.rows) == sorted(update)
        assert {batch.answers for batch in mine} == {len(update)}
        assert {batch.tokens for batch in mine} == {tokens[update].sum()}


def test_updates_do_not_depend_on_how_they_are_cut():
    cut = [Plan(8, 1, 1, 3), Plan(2, 4, 1, 3), Plan(1, 4, 2, 3)]
    first, *others = ([sorted(update) for update in plan.updates(np.arange(30), 2)] for plan in cut)
    assert all(other == first for other in others)


def test_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return np.concatenate(Plan(4, seed=seed).updates(np.ones(40), epoch)).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


@pytest.mark.parametrize("n", [21, 1])
def test_validation_is_every_row_once(byte_level, n):
    rows = rows_of(byte_level, n)
    ranks = [list(InOrder(rows, 2, rank, world_size=2)) for rank in range(2)]
    assert sorted(seen(byte_level, ranks[0] + ranks[1])) == list(range(n))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stop", [3, 10])
def test_resume_in_mid_epoch_and_at_its_end(byte_level, num_workers, stop):
    rows = rows_of(byte_level, 40)
    whole, cut, resumed = (Loader(rows, Plan(4, seed=5), num_workers=num_workers) for _ in range(3))
    epochs = []
    for epoch in range(2):
        whole.set_epoch(epoch)
        epochs.append(seen(byte_level, list(whole)))
    batches = iter(cut)
    before = seen(byte_level, [next(batches) for _ in range(stop)])
    resumed.load_state_dict(cut.state_dict())
    iterator = iter(resumed)
    resumed.set_epoch(0 if stop < 10 else 1)
    after = seen(byte_level, list(iterator))
    assert before + after == (epochs[0] if stop < 10 else epochs[0] + epochs[1])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(40)) and epochs[0] != epochs[1]
    assert len(resumed) == 10, "an epoch stays as long as it is while it is resumed"


def test_a_state_of_other_data_or_batches_is_refused(byte_level):
    state = Loader(rows_of(byte_level, 40), Plan(4)).state_dict()
    with pytest.raises(ValueError, match="data.batch_size: 4 in the checkpoint, 5 here"):
        Loader(rows_of(byte_level, 40), Plan(5)).load_state_dict(state)
    with pytest.raises(ValueError, match="training rows: 40 rows .* in the checkpoint, 39 rows"):
        Loader(rows_of(byte_level, 39), Plan(4)).load_state_dict(state)


def test_loading_leaves_the_global_random_state_alone(byte_level):
    loader, state = Loader(rows_of(byte_level, 4), Plan(2)), torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_are_what_the_encoder_says(byte_level):
    encoder = Encoder(byte_level, max_length=30)
    examples = [
        Example("Which:", (" red", " apple tree", " two"), 1, "line 1"),
        Example("Why:", (" a" * 40,), 0, "line 2"),
        Example("Who:", (" you",), 0, "line 3"),
    ]
    rows, dropped = encode(encoder, examples, with_choices=True)
    assert [row.where for row in dropped] == ["line 2"]
    question, single = rows[0], rows[1]
    assert torch.equal(question.sample.prompt, encoder.prompt("Which:")) and question.gold == 1
    assert torch.equal(question.sample.answers[0], encoder.training(examples[0]).answers[0])
    expected = encoder.choices(examples[0]).answers
    assert all(torch.equal(a, b) for a, b in zip(question.choices.answers, expected, strict=True))
    assert single.choices is None and single.gold is None
    assert rows.answer_tokens.tolist() == [len(question.sample.answers[0]), len(single.sample.answers[0])]


def test_a_batch_moves_whole(byte_level):
    batch = next(iter(Loader(rows_of(byte_level, 4), Plan(4)))).to("meta")
    assert all(s.prompt.is_meta and s.answers[0].is_meta for s in batch.samples)
    assert batch.choices == [None] * 4 and batch.answers == 4 and len(batch) == 4
