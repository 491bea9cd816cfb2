"""Figures 2 and 3: what is drawn is what the runs logged."""

import inspect
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from drawn import curves
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from bitune_pl import Bitune
from bitune_pl.data.datamodule import BituneData
from bitune_pl.evaluation.run import open_run
from bitune_pl.reproduction.figures.alpha import draw_blocks, draw_trajectories
from bitune_pl.reproduction.figures.style import THETA_INIT
from bitune_pl.reproduction.figures.trajectories import DEFAULTS, PARTS, Trajectory, labelled, read
from bitune_pl.training.module import BituneModule

UPDATES = 4


def with_config(run: str, place: Path, changes: dict) -> Path:
    """A copy of a run whose config says otherwise."""
    shutil.copytree(run, place)
    config = yaml.safe_load((place / "config.yaml").read_text())
    for name, value in changes.items():
        group, _, setting = name.partition(".")
        config[group][setting] = value
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    return place


def made_cell(run: Trajectory, path: Path, theta_init: float = 0.01) -> Path:
    """The cell of a run, as far as figures read it."""
    alpha = {"updates": run.updates} | {f"{part}_mean": run.mean[part] for part in PARTS} | run.final
    settings = {"model": {"theta_init": theta_init}, "trainer": {"max_steps": UPDATES}}
    cell = {"model": "smollm2", "method": "Bitune", "seed": 42, "settings": settings, "alpha": alpha}
    path.write_text(json.dumps(cell))
    return path


def logged(run: str, tag: str) -> tuple[list[int], list[float]]:
    events = EventAccumulator(run).Reload().Scalars(tag)
    return [event.step for event in events], [event.value for event in events]


def test_curves_are_what_the_runs_logged(runs):
    figure = draw_trajectories([read(runs["usual"]), read(runs["0.1"])])
    for axis, part in zip(figure.axes, PARTS, strict=True):
        drawn = list(curves(axis).values())
        assert drawn == [logged(runs[name], f"{part}/mean") for name in ("0.1", "usual")]
        assert len(drawn[0][0]) == UPDATES + 1 and len(set(drawn[0][1])) > 1
        assert axis.get_title() == PARTS[part]


def test_labels_name_theta_init_and_the_largest_comes_first(runs):
    figure = draw_trajectories([read(runs["usual"]), read(runs["0.1"])])
    found = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [label.rpartition("= ")[2] for label in found] == ["0.1", "0.01"]


def test_seeds_are_averaged_within_a_band(runs):
    first, second = logged(runs["usual"], "alpha_v/mean")[1], logged(runs["seed 43"], "alpha_v/mean")[1]
    figure = draw_trajectories([read(runs["usual"]), read(runs["seed 43"])])
    [(label, (updates, mean))] = curves(figure.axes[1]).items()
    assert label.endswith("(2 seeds)") and updates == [0, 1, 2, 3, 4]
    assert mean == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)])
    [band] = figure.axes[1].collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(min(first + second))


def test_runs_of_two_methods_are_told_apart(runs):
    found = labelled([read(runs["usual"]), read(runs["anti-causal"])])
    assert set(found) == {"bitune, updates = 4", "anti_causal, updates = 1"}


@pytest.mark.parametrize(
    ("name", "value", "labels"),
    [
        ("data.source", "categories", ["categories", "sums"]),
        ("model.adapter", "dora", ["dora", "lora"]),
        ("model.lr", 0.5, ["lr = 0.01", "lr = 0.5"]),
        ("trainer.accumulate_grad_batches", 2, ["accumulate_grad_batches = 2", "accumulate_grad_batches = default"]),
        ("trainer.max_steps", 8, ["updates = 4", "updates = 4 of 8"]),
        ("data.source", "cost$ and $more", [r"cost\$ and \$more", "sums"]),
    ],
)
def test_only_runs_that_differ_in_their_seeds_alone_are_averaged(runs, tmp_path, name, value, labels):
    changed = with_config(runs["seed 43"], tmp_path / "changed", {name: value})
    figure = draw_trajectories([read(runs["usual"]), read(changed)])
    assert sorted(curves(figure.axes[0])) == labels
    figure.draw_without_rendering()


def test_a_run_that_stopped_early_cuts_no_other(runs, tmp_path):
    short = json.loads(made_cell(read(runs["usual"]), tmp_path / "a.json").read_text())
    short["alpha"] |= {name: short["alpha"][name][:3] for name in ("updates", "alpha_k_mean", "alpha_v_mean")}
    (tmp_path / "b.json").write_text(json.dumps(short))
    drawn = curves(draw_trajectories([read(tmp_path / "a.json"), read(tmp_path / "b.json")]).axes[0])
    assert {label: len(updates) for label, (updates, _) in drawn.items()} == {"updates = 2 of 4": 3, "updates = 4": 5}


def test_the_same_seed_twice_is_one_seed(runs):
    drawn = curves(draw_trajectories([read(runs[name]) for name in ("usual", "usual", "seed 43")]).axes[0])
    assert [label.partition(" (")[2] for label in drawn] == ["3 runs, 2 seeds)"]


@pytest.mark.parametrize("draw", [draw_trajectories, draw_blocks])
def test_nothing_to_draw_is_a_sentence(draw):
    with pytest.raises(ValueError, match="There is no run to draw"):
        draw([])


def test_a_curve_of_one_update_is_a_dot(runs):
    whole = read(runs["anti-causal"])
    one = replace(whole, updates=whole.updates[:1], mean={part: curve[:1] for part, curve in whole.mean.items()})
    [line] = [line for line in draw_trajectories([one]).axes[0].get_lines() if not line.get_label().startswith("_")]
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
    again = read(made_cell(run, tmp_path / "cell.json", theta_init=0.1))
    assert (again.updates, again.mean, again.final) == (run.updates, run.mean, run.final)
    assert again.settings["model.theta_init"] == run.settings["model.theta_init"]


@pytest.mark.parametrize(
    "damage",
    [
        {"settings": [1]},
        {"settings": {"model": {"theta_init": "x"}}},
        {"settings": {"model": {"theta_init": 0}}},
        {"settings": {"model": "foo"}},
        {"settings": {"model": [], "data": 3}},
        {"alpha": 3},
        {"alpha": {"updates": [1]}},
        {"alpha": {"updates": [1, 2], "alpha_k_mean": [0.5], "alpha_v_mean": [0.5], "alpha_k": [1], "alpha_v": [1]}},
        {"alpha": {"updates": [1], "alpha_k_mean": [0.5], "alpha_v_mean": [0.5], "alpha_k": [1], "alpha_v": [1, 1]}},
        {"alpha": {"updates": [1], "alpha_k_mean": ["a"], "alpha_v_mean": [0.5], "alpha_k": [1], "alpha_v": [1]}},
        {"alpha": {"updates": [1], "alpha_k_mean": [9e99], "alpha_v_mean": [0.5], "alpha_k": [1], "alpha_v": [1]}},
        {"alpha": {"updates": [1], "alpha_k_mean": [10**401], "alpha_v_mean": [1], "alpha_k": [1], "alpha_v": [1]}},
        {"alpha": {"updates": [], "alpha_k_mean": [], "alpha_v_mean": [], "alpha_k": [], "alpha_v": []}},
    ],
)
def test_a_damaged_cell_is_a_sentence(runs, tmp_path, damage):
    path = made_cell(read(runs["usual"]), tmp_path / "cell.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(ValueError, match=r"cell.json is damaged \("):
        read(path)


@pytest.mark.parametrize("text", ['{"model": "a"}', '{"method": "a", "seed": 1, "alpha": {}}', "[" * 100_000, '{"al'])
def test_what_is_no_cell_is_a_sentence(text, tmp_path):
    (tmp_path / "cell.json").write_text(text)
    with pytest.raises(ValueError, match="cell.json is (no cell|damaged)"):
        read(tmp_path / "cell.json")


@pytest.mark.parametrize(
    "text",
    ["model: {lr: 1", "- model", "model: foo", "model: {theta_init: x}", "data: [1]", "a: " + "[" * 3000, "a: 2026-99-99",
     "model: {method: 3}", "model: {method: {b: c}}", "model: {theta_init: [1]}", "\0"],
)  # fmt: skip
def test_a_damaged_config_is_a_sentence(runs, tmp_path, text):
    run = shutil.copytree(runs["usual"], tmp_path / "run")
    (run / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=str(run)):
        read(run)


def test_events_without_means_are_a_sentence(runs, tmp_path):
    run = shutil.copytree(runs["silent"], tmp_path / "run")
    with SummaryWriter(str(run)) as events:
        for part in PARTS:
            events.add_scalar(f"{part}/layer_00", 0.5, 1)
    with pytest.raises(FileNotFoundError, match="has logged no alpha yet"):
        read(run)


def test_keys_are_seen_inside_values_of_the_same_alpha(runs):
    keys, values = [
        line for line in draw_blocks([read(runs["usual"])]).axes[0].get_lines() if line.get_marker() in "os"
    ]
    assert values.get_markerfacecolor() == "none" and values.get_markersize() > keys.get_markersize() + 1


def test_panels_of_seeds_are_told_apart(runs):
    figure = draw_blocks([read(runs["usual"]), read(runs["seed 43"])])
    titles = [axis.get_legend().get_title().get_text() for axis in figure.axes]
    assert ["seed 42" in titles[0], "seed 43" in titles[1]] == [True, True]


def test_defaults_are_those_of_a_run():
    sides = {"model": BituneModule, "data": BituneData}
    known = {
        f"{side}.{name}": said.default
        for side, of in sides.items()
        for name, said in inspect.signature(of).parameters.items()
    }
    assert {name: known[name] for name in DEFAULTS} == DEFAULTS
    assert inspect.signature(Bitune.build).parameters["theta_init"].default == DEFAULTS["model.theta_init"]


def test_a_row_that_is_named_after_a_setting_is_not_named_twice(tmp_path):
    """Table 15's rows are called 0.1, 0.01 and 0.001."""
    alpha = {
        "updates": [1, 2],
        "alpha_k_mean": [0.5, 0.4],
        "alpha_v_mean": [0.5, 0.4],
        "alpha_k": [0.4],
        "alpha_v": [0.4],
    }
    for theta_init in (0.1, 0.01):
        settings = {"model": {"method": "bitune", "theta_init": theta_init}}
        cell = {"model": "smollm2", "method": str(theta_init), "seed": 42, "settings": settings, "alpha": alpha}
        (tmp_path / f"{theta_init}.json").write_text(json.dumps(cell))
    groups = labelled([read(tmp_path / "0.01.json"), read(tmp_path / "0.1.json")])
    assert list(groups) == [f"{THETA_INIT} = 0.1", f"{THETA_INIT} = 0.01"]
