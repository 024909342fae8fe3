"""A session in this thread for each test of JAX as a front end."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import gt

if find_spec("jax") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def session() -> Iterator[Any]:
    """One in-memory worker."""
    opened = gt.connect("inproc", workers=1)
    yield opened
    gt.disconnect()
