"""Bitune on PyTorch Lightning: decoders that read their prompt in both directions (arXiv 2405.14862).

The names below are imported when they are first used, so that `import bitune_pl` is instant.
"""

from importlib import import_module

_HOMES = {
    "Sample": "bitune_pl.sample",
    "Bitune": "bitune_pl.method.model",
    "Method": "bitune_pl.method.variants",
    "VARIANTS": "bitune_pl.method.variants",
    "load_decoder": "bitune_pl.method.backbone",
    "load_tokenizer": "bitune_pl.method.backbone",
    "BituneModule": "bitune_pl.training.module",
    "BituneData": "bitune_pl.data.datamodule",
}

__all__ = list(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'bitune_pl' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
