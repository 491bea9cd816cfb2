"""Settings of data that cannot be, refused before anything is read; those of a source are checked in `sources`."""

from bitune_pl.data.plan import Plan
from bitune_pl.data.templates import Template


def check(
    template: str | None,
    max_length: int,
    batch_size: int,
    batch_tokens: int | None,
    num_workers: int,
    limits: dict[str, int | None],
) -> None:
    """Raises:
    ValueError: naming the setting.
    """
    Plan(batch_size, batch_tokens=batch_tokens)
    if template is not None and not Template(template).fields:
        raise ValueError(f"data.template {template!r} has no field such as {{question}}: every row would read alike.")
    if num_workers < 0:
        raise ValueError(f"data.num_workers is a number of processes, 0 or more, not {num_workers}.")
    if max_length < 3:
        raise ValueError(f"data.max_length is at least 3 (a prompt, an answer and its end), not {max_length}.")
    for part, limit in limits.items():
        if limit is not None and limit < 1:
            raise ValueError(f"data.{part}_rows is a number of rows, at least 1, not {limit}.")
