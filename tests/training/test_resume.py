"""Going on with a run: the same data and updates or a refusal, a longer schedule, and what is said."""


import pytest

PAIRS = [(f"row {i}", f" {i * i}") for i in range(12)]
OTHER = [(f"now {i}", f" {i * i}") for i in range(12)]  # as many rows, prompts and answers of as many tokens


@pytest.fixture
def stopped(train, rows):
    """A run of one epoch, stopped after `updates` of its four."""

    def run(updates: int, **settings) -> tuple[dict, str]:
        data = {"source": rows("t.jsonl", PAIRS), "validation_source": rows("v.jsonl", PAIRS[:4]), "batch_size": 3}
        made = train(data | settings, {"max_steps": updates})
        made.save_checkpoint("stopped.ckpt")
        return data | settings, "stopped.ckpt"

    return run


CHANGES = {
    "data.seed: 42 in the checkpoint, 3 here": ({"seed": 3}, {}),
    "data.batch_size: 3 in the checkpoint, 2 here": ({"batch_size": 2}, {}),
    "data.max_length: 512 in the checkpoint, 300 here": ({"max_length": 300}, {}),
    "data.template: {prompt} in the checkpoint, X {prompt} here": ({"template": "X {prompt}"}, {}),
    "trainer.accumulate_grad_batches: 1 in the checkpoint, 3 here": ({}, {"accumulate_grad_batches": 3}),
    "training rows: 12 rows (hash ": ({"source": "u.jsonl"}, {}),
    "validation rows: 4 rows (hash ": ({"validation_rows": 3}, {}),
}


@pytest.mark.parametrize("updates", [2, 4])  # in the middle of an epoch, and at its end
def test_other_data_or_updates_are_refused_and_named(train, rows, stopped, updates):
    data, checkpoint = stopped(updates)
    rows("u.jsonl", OTHER)
    for said, (changed, trainer) in CHANGES.items():
        with pytest.raises(ValueError, match="was trained with other data or batches") as error:
            train(data | changed, {"max_steps": 6, **trainer}, ckpt_path=checkpoint)
        assert said in str(error.value)


def test_the_same_rows_may_lie_elsewhere(train, rows, stopped):
    data, checkpoint = stopped(2)
    moved = {"source": rows("moved.jsonl", PAIRS), "validation_source": rows("w.jsonl", PAIRS[:4])}
    assert train(data | moved, {"max_steps": 4}, ckpt_path=checkpoint).global_step == 4


def test_a_run_may_be_scored_on_other_rows(train, rows, stopped):
    data, checkpoint = stopped(4)
    made = train(data, {"max_steps": 4}, ckpt_path=checkpoint)
    made.datamodule.rows.clear()
    made.datamodule.validation_source = rows("w.jsonl", OTHER)
    made.validate(made.lightning_module, datamodule=made.datamodule, ckpt_path=checkpoint, verbose=False)
    assert "loss/validation" in made.callback_metrics
