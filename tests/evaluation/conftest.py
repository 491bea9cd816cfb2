from tiny_base import tiny_base  # noqa: F401
