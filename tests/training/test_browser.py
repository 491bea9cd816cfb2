"""The dashboard and a run's page in a real browser, at 1280 x 800. The pictures stay in the folder BITUNE_PICTURES, if set."""

import json
import os
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from browser import browser, tensorboard
from stand_in import a_thousand_updates, read
from tiny_base import CPU, save_tiny_base
from transformers import LlamaConfig, LlamaForCausalLM

from bitune_pl.cli import main
from bitune_pl.training.dashboard.overview import LAYOUT

pytestmark = [pytest.mark.slow, pytest.mark.browser]

BLOCKS, UPDATES = 8, 12
SOME = ["--data.train_rows", "60", "--data.validation_rows", "6", "--trainer.val_check_interval", "4"]

# By chart: how many lines it has, leaving out those of a single point.
LINES = """
const lines = tagged('vz-line-chart2').map((chart) => every(chart.shadowRoot || chart)
  .filter((e) => e.tagName === 'path' && e.classList.contains('line') && e.getAttribute('d').split('L').length > 1));
"""
TITLES = "return tagged('tf-card-heading').map((heading) => heading.displayName || heading.tag)"


@pytest.fixture(scope="module")
def page():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    place = os.environ.get("BITUNE_PICTURES")
    folder = Path(place) if place else tmp_path_factory.mktemp("pictures")
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def runs(page, tmp_path_factory) -> Path:
    """A run of eight blocks that went on from update 6 after it had come to 8, and a plain run."""
    root = tmp_path_factory.mktemp("seen")
    base = save_tiny_base(root / "base")
    config = LlamaConfig.from_pretrained(base)
    config.num_hidden_layers, config.initializer_range = BLOCKS, 0.1
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(base)
    fit = ["fit", *CPU, *SOME, "--trainer.max_epochs", "9", "--trainer.default_root_dir", str(root / "runs")]
    fit += ["--model.base", base, "--model.lr", "0.01", "--trainer.max_steps"]
    assert main([*fit, "8", f"--trainer.callbacks={KEPT}"]) == 0
    (run,) = (root / "runs" / "categories").iterdir()
    again = ["fit", "--config", str(run / "config.yaml"), "--ckpt_path", str(run / "checkpoints" / "six.ckpt")]
    assert main([*again, "--trainer.max_steps", str(UPDATES)]) == 0
    assert main([*fit, "2", "--model.method", "plain"]) == 0
    return run.rename(run.with_name("a-bitune")).parents[1]


KEPT = """[{class_path: lightning.pytorch.callbacks.ModelCheckpoint,
 init_args: {every_n_train_steps: 6, filename: six, save_top_k: -1}}]"""


@pytest.fixture(scope="module")
def board(runs):
    with tensorboard(runs) as address:
        yield address


def test_every_alpha_is_a_curve_of_one_chart(page, board, runs, pictures):
    """The paper's Figures 2 and 3 while a run trains: 8 blocks, 13 points each, though two updates were made twice."""
    page.open(f"{board}#custom_scalars&_smoothingWeight=0")
    page.until(f"{LINES} return lines.slice(0, 2).map((of) => of.length)", [BLOCKS, BLOCKS])
    points = page.ask(f"{LINES} return lines[0].map((line) => line.getAttribute('d').split('L').length)")
    assert points == [UPDATES + 1] * BLOCKS
    with urlopen(f"{board}data/plugin/scalars/scalars?tag=alpha_v/layer_03&run=categories/a-bitune") as answer:
        shown = [(step, value) for _, step, value in json.load(answer)]
    expected = [(e.step, e.value) for e in read(runs / "categories" / "a-bitune").Scalars("alpha_v/layer_03")]
    assert [step for step, _ in shown] == list(range(UPDATES + 1)) and shown == [
        pytest.approx(point) for point in expected
    ]
    titles = page.ask(TITLES)
    assert [title[:7] for title in titles[:4]] == ["alpha_k", "alpha_v"] * 2 and titles[4:6] == ["loss", "scores"]
    assert page.ask("return tagged('vz-line-chart2').every((e) => e.getBoundingClientRect().left < 1280)")
    page.picture(pictures / "custom_scalars.png")


def test_scalars_are_sorted_by_block(page, board, pictures):
    page.open(f"{board}#scalars&_smoothingWeight=0")
    page.until("return tagged('tf-scalar-card').length > 8", True)
    tags = page.ask("return tagged('tf-scalar-card').map((card) => card.tag)")
    assert [tag for tag in tags if tag.startswith("alpha_k/layer")] == [f"alpha_k/layer_{i:02d}" for i in range(BLOCKS)]
    page.until(f"{LINES} return lines[0].length", 1)
    page.picture(pictures / "scalars.png")


def test_heat_maps_are_shown_as_they_were_drawn(page, board, pictures):
    page.open(f"{board}#images")
    shown = "return tagged('img').map((e) => [e.naturalWidth, e.naturalHeight, e.clientWidth, e.clientHeight])"
    page.until(shown, [[350, 210, 350, 210]] * 2)
    assert page.ask(TITLES) == ["heat_map/alpha_k", "heat_map/alpha_v"]
    page.picture(pictures / "images.png")


def test_answers_and_settings_can_be_read(page, board, pictures):
    page.open(f"{board}#text")
    page.until("return new Set(tagged('tf-card-heading').map((e) => e.tag)).size", 4)
    page.until("return tagged('pre').length > 9", True)
    assert page.ask("return tagged('pre')[0].textContent").startswith("Question: ")
    assert page.ask("return tagged('pre').every((e) => !e.children[0] || !e.children[0].children.length)")
    cells = page.ask("return tagged('td').map((e) => e.textContent)")
    assert cells[cells.index("updates") + 1] in (str(UPDATES), "2")
    page.picture(pictures / "text.png")


def test_each_run_is_one_line_of_the_hparams_tab_with_its_last_scores(page, board, runs, pictures):
    page.open(f"{board}#hparams")
    cells = "return tagged('vaadin-grid-cell-content').map((e) => e.textContent.trim()).filter((text) => text)"
    page.until(f"{cells}.includes('accuracy/validation')".replace("return ", "return (", 1) + ")", True)
    page.until(cells.replace("return ", "return (", 1) + ".filter((text) => text.startsWith('categories/')).length)", 2)
    found = page.ask(cells)
    row = found[found.index("categories/a-bitune") :][:6]
    assert row[1:4] == ["0.010000", "bitune, lora", "42"]
    events = read(runs / "categories" / "a-bitune")
    expected = [events.Scalars(tag)[-1] for tag in ("accuracy/validation", "loss/validation")]
    assert [float(cell) for cell in row[4:]] == pytest.approx([event.value for event in expected], rel=1e-3)
    assert expected[1].step == UPDATES
    page.picture(pictures / "hparams.png")


def test_a_thousand_updates_of_thirty_blocks_open_in_seconds(page, tmp_path):
    trainer, module, callbacks = a_thousand_updates(tmp_path)
    trainer.loggers[0].experiment.add_custom_scalars(LAYOUT)
    trainer.loggers[0].finalize("success")
    with tensorboard(tmp_path) as address:
        start = time.monotonic()
        page.open(f"{address}#custom_scalars&_smoothingWeight=0")
        page.until(f"{LINES} return lines.slice(0, 2).map((of) => of.length)", [30, 30], 60)
    print(f"60 curves of 1000 updates: {time.monotonic() - start:.1f} s from opening to drawn")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_run_fits_its_window(page, runs, pictures, tmp_path, scheme):
    out = tmp_path / "page.html"
    assert main(["report", str(runs / "categories" / "a-bitune"), "--out", str(out)]) == 0
    page.scheme(scheme)
    page.open(out.as_uri())
    assert page.ask("return document.documentElement.scrollWidth") == 1280
    boxes = page.ask(BOXES)
    assert len(boxes) > 80
    for i, (text, left, top, right, bottom) in enumerate(boxes):
        for other, left2, top2, right2, bottom2 in boxes[i + 1 :]:
            across, down = min(right, right2) - max(left, left2), min(bottom, bottom2) - max(top, top2)
            assert across < 1 or down < 3, f"{text!r} and {other!r} overlap"
    assert (
        page.ask("return performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:')).length")
        == 0
    )
    page.picture(pictures / f"report-{scheme}.png")
    page.scheme("light")


# Every text of the charts with its place.
BOXES = """
return every(document).filter((e) => e.tagName === 'text').map((e) => {
  const box = e.getBoundingClientRect();
  return [e.textContent, box.left, box.top, box.right, box.bottom];
});
"""
