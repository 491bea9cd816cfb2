"""Every committed config makes a module, data and trainer, with a tiny random decoder in place of the base."""

from pathlib import Path

import pytest
from tiny_base import CPU, tiny_base  # noqa: F401

from bitune_pl.training.lightning_cli import BituneCLI

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_makes_what_it_says(config, tiny_base, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    cli = BituneCLI(["--config", str(config), "--model.base", tiny_base, *CPU], "fit")
    cli.model.configure_model()
    assert cli.model.model.theta_k.requires_grad
    assert cli.trainer.max_steps > 0 and cli.trainer.gradient_clip_val == 1.0
    assert cli.datamodule.batch_size * cli.trainer.accumulate_grad_batches == 10
    cli.save_config()
    assert cli.run_folder.parent == Path("runs") / config.stem


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_opens_with_what_it_reproduces(config):
    head = config.read_text().split("\nseed_everything")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert all(word in head for word in ("expected", "hardware", f"bitune fit --config configs/{config.name}"))
