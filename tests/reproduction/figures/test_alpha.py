"""Figures 2 and 3: what is drawn is what the runs logged."""

import inspect
import json

import pytest
import torch
from drawn import curves
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bitune_pl import Bitune
from bitune_pl.evaluation.run import open_run
from bitune_pl.reproduction.figures.alpha import draw_blocks, draw_trajectories
from bitune_pl.reproduction.figures.trajectories import DEFAULTS, PARTS, labelled, read
from bitune_pl.training.module import BituneModule

UPDATES = 4


def logged(run: str, tag: str) -> tuple[list[int], list[float]]:
    events = EventAccumulator(run).Reload().Scalars(tag)
    return [event.step for event in events], [event.value for event in events]


def test_curves_are_what_the_runs_logged(runs):
    figure = draw_trajectories([read(runs["usual"]), read(runs["0.1"])])
    for axis, part in zip(figure.axes, PARTS, strict=True):
        drawn = list(curves(axis).values())
        assert drawn == [logged(runs[name], f"{part}/mean") for name in ("0.1", "usual")]
        assert len(drawn[0][0]) == UPDATES and len(set(drawn[0][1])) > 1
        assert axis.get_title() == PARTS[part]


def test_labels_name_theta_init_and_the_largest_comes_first(runs):
    figure = draw_trajectories([read(runs["usual"]), read(runs["0.1"])])
    found = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [label.rpartition("= ")[2] for label in found] == ["0.1", "0.01"]


def test_seeds_are_averaged_within_a_band(runs):
    first, second = logged(runs["usual"], "alpha_v/mean")[1], logged(runs["seed 43"], "alpha_v/mean")[1]
    figure = draw_trajectories([read(runs["usual"]), read(runs["seed 43"])])
    [(label, (updates, mean))] = curves(figure.axes[1]).items()
    assert label.endswith("(2 seeds)") and updates == [1, 2, 3, 4]
    assert mean == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)])
    [band] = figure.axes[1].collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(min(first + second))


def test_runs_of_two_methods_are_told_apart(runs):
    assert set(labelled([read(runs["usual"]), read(runs["anti-causal"])])) == {"bitune", "anti_causal"}


def test_a_curve_of_one_update_is_a_dot(runs):
    [line] = [
        line
        for line in draw_trajectories([read(runs["anti-causal"])]).axes[0].get_lines()
        if not line.get_label().startswith("_")
    ]
    assert line.get_marker() == "o" and len(line.get_xdata()) == 1


def test_the_final_alphas_are_those_of_the_model(runs):
    model = open_run(runs["usual"]).model
    last = {part: [logged(runs["usual"], f"{part}/layer_{i:02d}")[1][-1] for i in range(2)] for part in PARTS}
    drawn = curves(draw_blocks([read(runs["usual"])]).axes[0])
    for part, (label, (blocks, alphas)) in zip(PARTS, drawn.items(), strict=True):
        assert blocks == [0, 1] and alphas == last[part]
        assert label == f"{PARTS[part]} (mean {sum(alphas) / 2:.3f})"
    assert torch.allclose(torch.tensor(last["alpha_k"]), model.alphas()["alpha_k"], atol=1e-6)


def test_each_run_has_a_panel_that_shows_all_its_points(runs):
    figure = draw_blocks([read(runs["usual"]), read(runs["0.1"])])  # the first drawn is the flatter one
    for axis in figure.axes:
        low, high = axis.get_ylim()
        assert all(low < alpha < high for _, alphas in curves(axis).values() for alpha in alphas)
    titles = [axis.get_legend().get_title().get_text() for axis in figure.axes]
    assert [title.partition("= ")[2] for title in titles] == ["0.1, after update 4", "0.01, after update 4"]


def test_a_cell_of_the_reproduction_draws_the_same(runs, tmp_path):
    run = read(runs["0.1"])
    alpha = {"updates": run.updates} | {f"{part}_mean": run.mean[part] for part in PARTS} | run.final
    cell = {
        "model": "smollm2",
        "method": "Bitune",
        "seed": 42,
        "settings": {"model": {"theta_init": 0.1}},
        "alpha": alpha,
    }
    (tmp_path / "cell.json").write_text(json.dumps(cell))
    again = read(tmp_path / "cell.json")
    assert (again.updates, again.mean, again.final) == (run.updates, run.mean, run.final)
    assert again.settings["theta_init"] == run.settings["theta_init"]


def test_defaults_are_those_of_a_run():
    settings = inspect.signature(BituneModule).parameters
    assert {name: settings[name].default for name in DEFAULTS} == DEFAULTS
    assert inspect.signature(Bitune.build).parameters["theta_init"].default == DEFAULTS["theta_init"]
