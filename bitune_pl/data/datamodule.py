"""BituneData: a source, encoded and batched, as Lightning wants it.

Everything it does is done elsewhere: `sources` reads, `encoding` makes ids, `cache` keeps them, `batching` decides on
updates. It does not load a tokenizer, since that belongs to the base: it takes the one it is given, or the training
module's, and likewise the id of a start token that is a new one.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from transformers import PreTrainedTokenizerBase

from bitune_pl.data import cache, identity, settings, sources
from bitune_pl.data.batching import InOrder, Loader
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.example import Example
from bitune_pl.data.plan import Plan
from bitune_pl.data.rows import Rows
from bitune_pl.data.sources import Loaded
from bitune_pl.data.templates import Template

_PARTS = {
    TrainerFn.FITTING: ("train", "validation"),
    TrainerFn.VALIDATING: ("validation",),
    TrainerFn.TESTING: ("test",),
    TrainerFn.PREDICTING: ("test",),
}


class BituneData(LightningDataModule):
    """Training, validation and test batches of one source.

    An update is `batch_size x trainer.accumulate_grad_batches x ranks` rows.

    Args:
        source: a name of the table (categories, sums, ultrafeedback, commonsense_qa, ...), or your own data: the path
            of a `.jsonl`, `.json`, `.csv` or `.parquet` file or of a folder written by `save_to_disk`, or `owner/name`
            (`owner/name:configuration`) on the Hugging Face hub.
        fields: which columns of your own data are which, where their names do not say it, such as
            `{prompt: frage, answer: antwort}`; see `own` for the fields.
        root: folder with local copies of the data sets, `<root>/<source>/<split>.jsonl`; without it, the hub.
        validation_source: source or file to validate on, in place of the source's own validation part.
        template: prompt with named fields, such as "Question: {question}\\n\\nAnswer:", in place of the source's own.
        base: name of the base, for messages.
        max_length: longest row in tokens (prompt, answer, end); longer ones are dropped and counted.
        batch_size: rows of a micro-batch.
        batch_tokens: most tokens of a micro-batch (prompts, answers, ends), in place of a number of rows: an update is
            then as many rows as fit into `trainer.accumulate_grad_batches x ranks` of them.
        seed: of the order of the rows.
        num_workers: processes that make batches; 0 is best unless rows are very long.
        train_rows: only the first so many rows are trained on.
        validation_rows: only the first so many rows are validated on.

    Raises:
        ValueError: if a setting cannot be; before anything is read.
    """

    def __init__(
        self,
        source: str = "categories",
        root: str | None = None,
        validation_source: str | None = None,
        fields: dict[str, str | list[str]] | None = None,
        template: str | None = None,
        base: str | None = None,
        max_length: int = 512,
        batch_size: int = 10,
        batch_tokens: int | None = None,
        seed: int = 42,
        num_workers: int = 0,
        train_rows: int | None = None,
        validation_rows: int | None = None,
    ) -> None:
        super().__init__()
        self.source, self.root, self.base = source, root, base
        self.validation_source = validation_source or source
        if Path(self.validation_source).exists() and Path(self.validation_source).resolve() == Path(source).resolve():
            self.validation_source = source  # the same file under another spelling has no other rows
        sources.check(source, fields)
        sources.check(self.validation_source)
        self.fields, self.prompt_template = fields, template and Template(template).prompt
        self.max_length, self.batch_size, self.batch_tokens = max_length, batch_size, batch_tokens
        self.seed, self.num_workers = seed, num_workers
        self.limits = {"train": train_rows, "validation": validation_rows, "test": validation_rows}
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.start_token_id: int | None = None
        self.rows: dict[str, Rows] = {}
        self.kept: dict[str, list[Example]] = {}  # the text of rows that are predicted
        self.allow_zero_length_dataloader_with_multiple_devices = True  # more ranks than validation rows
        settings.check(template, max_length, batch_size, batch_tokens, num_workers, self.limits)

    @cached_property
    def encoder(self) -> Encoder:
        """Text to ids, as this run does it."""
        module = self.trainer and self.trainer.lightning_module
        tokenizer = self.tokenizer or getattr(module, "tokenizer", None)
        if tokenizer is None:
            raise ValueError(f"The data needs the tokenizer of its base ({self.base}): set BituneData.tokenizer first.")
        start = self.start_token_id if self.start_token_id is not None else getattr(module, "start_token_id", None)
        return Encoder(tokenizer, self.max_length, start)

    @cached_property
    def template(self) -> Template:
        """How prompts and answers of the training rows read."""
        return sources.find(self.source, self.fields, self.prompt_template).template

    def examples(self, part: str) -> list[Example]:
        """The rows of a part as text, before any is dropped for its length."""
        return self.load(part).examples

    def load(self, part: str, broken: list[str] | None = None) -> Loaded:
        """The rows of a part as text, and those left out; `broken` takes the errors of single rows."""
        name, limit = self.name(part), self.limits[part]
        whole, names = self._has_own_validation, self._names(name)
        return sources.load(name, part, self.root, self.prompt_template, limit, whole, names, broken)

    def name(self, part: str) -> str:
        """The source of a part."""
        return self.source if part == "train" else self.validation_source

    def parts(self) -> list[str]:
        """The parts that there are, each rows of its own."""
        trained, evaluated = (sources.find(name, self._names(name)) for name in (self.source, self.validation_source))
        parts = ["train"] if trained.splits.train else []
        parts += ["validation"] if self._has_validation() else []
        return parts + (["test"] if evaluated.splits.test != evaluated.splits.validation else [])

    def prepare_data(self) -> None:
        """Let one process fetch and tokenise for all; they find it in the caches, as nothing is kept here."""
        if self.trainer.world_size > 1:
            for part in self._needed(self.trainer.state.fn):
                self._encode(part)

    def setup(self, stage: str) -> None:
        """Read and encode the parts of a stage, each once.

        Raises:
            ValueError: if rows are unusable, or there are none to score.
        """
        if stage != TrainerFn.FITTING and not self._holds_out:
            raise ValueError(
                f"{self.source} is too small to hold rows out (it has fewer than ten), so there are none to score: give "
                "data.validation_source."
            )
        for part in self._needed(TrainerFn(stage)):
            if part not in self.rows:
                self.rows[part] = self._encode(part, log=True)

    def state_dict(self) -> dict[str, Any]:
        """What the run learns from; empty until its rows are read."""
        return self._identity() if "train" in self.rows else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises:
        ValueError: if a run would go on with other rows, or with other updates of them.
        """
        if self.trainer and self.trainer.state.fn == TrainerFn.FITTING:
            identity.refuse_other(state, self._identity())

    def _identity(self) -> dict[str, Any]:
        return {
            "data.source": self.source,
            "data.validation_source": self.validation_source,
            "data.template": self.template.prompt,
            "data.max_length": self.max_length,
            **identity.of_updates(self._plan(), self.rows["train"]),
            "validation rows": identity.of_rows(self.rows.get("validation")),
        }

    def _plan(self) -> Plan:
        ranks, steps = self.trainer.world_size, self.trainer.accumulate_grad_batches
        return Plan(self.batch_size, steps, ranks, self.seed, self.batch_tokens)

    def train_dataloader(self) -> Loader:
        return Loader(self.rows["train"], self._plan(), self.trainer.global_rank, self.num_workers)

    def val_dataloader(self) -> InOrder | list:
        return self._in_order("validation")

    def test_dataloader(self) -> InOrder | list:
        return self._in_order("test")

    def predict_dataloader(self) -> InOrder | list:
        return self._in_order("test")

    def _in_order(self, part: str) -> InOrder | list:
        if part not in self.rows:
            return []
        return InOrder(
            self.rows[part], self.batch_size, self.trainer.global_rank, self.trainer.world_size, self.num_workers
        )

    @property
    def validates_on_test(self) -> bool:
        """Whether the validation rows are those that `test` scores, so that what is chosen by them is scored on them."""
        source = sources.find(self.validation_source, self._names(self.validation_source))
        return source.splits.test == source.splits.validation and not source.tested_on

    @property
    def _has_own_validation(self) -> bool:
        return self.validation_source != self.source

    @property
    def _holds_out(self) -> bool:
        return self._has_own_validation or sources.holds_out(self.source, self.fields)

    def _has_validation(self) -> bool:
        """A user's own file of a few rows is all trained on."""
        if self._holds_out:
            return True
        rank_zero_info(f"{self.source} is too small to hold rows out for validation; give data.validation_source.")
        return False

    def _names(self, name: str) -> dict[str, str | list[str]] | None:
        """The columns that the user named; those of the table's sources are known."""
        return None if name in sources.SOURCES else self.fields

    def _needed(self, stage: TrainerFn) -> Iterator[str]:
        """The parts of a stage, each looked for when its turn comes: what is wrong with training rows is said first."""
        return (part for part in _PARTS[stage] if part == "train" or self._has_validation())

    def _encode(self, part: str, log: bool = False) -> Rows:
        loaded = self.load(part)
        encoded = cache.encode(self.encoder, loaded.examples, with_choices=part != "train")
        dropped = loaded.dropped + encoded.dropped
        summary = sources.summary(len(encoded.rows) + len(dropped), dropped)
        if not len(encoded.rows):
            raise ValueError(f"{self.name(part)} ({part}): no usable rows ({summary}).")
        if part == "test":
            left_out = {row.where for row in encoded.dropped}
            self.kept[part] = [example for example in loaded.examples if example.where not in left_out]
        if log:
            remark = f" ({encoded.remark})" if encoded.remark else ""
            rank_zero_info(f"{self.name(part)} ({part}), rows kept: {summary}{remark}")
        return encoded.rows
