"""A session in this thread for each test of the device and the backend."""

from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest

import gt

if find_spec("torch") is None or tuple(map(int, version("torch").split(".")[:2])) < (2, 12):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def session() -> Iterator[Any]:
    """One in-memory worker."""
    opened = gt.connect("inproc", workers=1)
    gt.manual_seed(0)
    yield opened
    gt.disconnect()
