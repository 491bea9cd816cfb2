import pytest
import torch

from bitune_pl.evaluation.stops import TextStops, cut_at


@pytest.mark.parametrize(
    ("text", "stops", "left"),
    [
        ("one. two? three", [".", "?"], "one"),
        ("one. two? three", ["?", "."], "one"),
        ("one. two. three", ["."], "one"),
        (".one", ["."], ""),
        ("one", ["."], "one"),
        ("one", [], "one"),
    ],
)
def test_a_text_is_cut_at_the_first_stop_string_in_it(text, stops, left):
    assert cut_at(text, stops) == left


def test_a_row_is_met_as_soon_as_its_new_text_holds_a_stop_string(encoder):
    """A digit is a token; the first two are the prompt."""
    ids = torch.stack([encoder.prompt(text) for text in ("34012345", "34349999", "34999999", "33499998")])
    stops = TextStops(encoder, ["34", "98"])
    met = [stops(ids[:, :length], None).tolist() for length in range(3, 9)]
    assert [list(row) for row in zip(*met, strict=True)] == [
        [False, False, False, False, True, True],
        [False, True, True, True, True, True],
        [False, False, False, False, False, False],
        [False, False, False, False, False, True],
    ]
