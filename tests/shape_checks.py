"""Checks the shapes that the method's signatures state, while tests run and only then."""

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

MODULES = "mixing layout attention routing likelihood low_rank copies positions generation three_pass output_layer"

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number will do for a float


def install() -> None:
    install_import_hook([f"bitune_pl.method.{name}" for name in MODULES.split()], f"{__name__}.check")
