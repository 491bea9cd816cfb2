"""Fixtures of the method's tests."""

import pytest
from decoders import FAMILIES, MORE


@pytest.fixture(params=[*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def family(request) -> str:
    """A family of decoders by name; `decoders.build` makes one."""
    return request.param
