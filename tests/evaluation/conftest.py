import pytest
import torch
from evaluation_models import built
from tiny_base import tiny_base  # noqa: F401
from transformers import LogitsProcessor

from bitune_pl import Bitune, load_tokenizer
from bitune_pl.data.encoding import Encoder


@pytest.fixture(scope="session")
def encoder(tiny_base) -> Encoder:  # noqa: F811
    return Encoder(load_tokenizer(tiny_base))


@pytest.fixture(scope="session")
def bitune(tiny_base) -> Bitune:  # noqa: F811
    return built(tiny_base)


@pytest.fixture(scope="session")
def plain(tiny_base) -> Bitune:  # noqa: F811
    return built(tiny_base, "plain", "none")


class Script(LogitsProcessor):
    """Makes each row of a batch say what it is told, token by token."""

    def __init__(self, rows: list[list[int]]):
        self.rows, self.width = rows, None

    def __call__(self, input_ids, scores):
        self.width = self.width or input_ids.shape[1]
        said = input_ids.shape[1] - self.width
        out = torch.full_like(scores, -1e9)
        for row, ids in enumerate(self.rows):
            out[row, ids[said % len(ids)]] = 0
        return out


@pytest.fixture
def told(plain, encoder, monkeypatch):
    """Tell the model what to say after each prompt; returns the model."""

    def tell(said: dict[str, str | list[int]]) -> Bitune:
        ids = {p: encoder.prompt(t).tolist() if isinstance(t, str) else t for p, t in said.items()}

        def generate(prompts, **settings):
            rows = [ids[encoder.decode(prompt)] for prompt in prompts]
            return Bitune.generate(plain, prompts, logits_processor=[Script(rows)], **settings)

        monkeypatch.setattr(plain, "generate", generate)
        return plain

    return tell
