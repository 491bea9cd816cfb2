"""Fixtures of the method's tests."""

import pytest
from decoders import FAMILIES


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    """A family of decoders by name; `decoders.build` makes one."""
    return request.param
