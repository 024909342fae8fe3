"""A session for each test of the client: all three cores in this thread, one in-memory worker."""

from collections.abc import Iterator
from typing import Any

import pytest

import gt


@pytest.fixture
def session() -> Iterator[Any]:
    opened = gt.connect("inproc", workers=1)
    gt.manual_seed(0)
    yield opened
    for builder in opened.builders:
        builder.check()
    gt.disconnect()


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One session for a whole module: for tests that hypothesis runs many times over."""
    opened = gt.connect("inproc", workers=1)
    yield opened
    for builder in opened.builders:
        builder.check()
    gt.disconnect()
