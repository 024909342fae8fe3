"""Registered memory on a stand-in for CuPy: where a copy was not waited for, or memory unregistered too early, it shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from card import be_late, installed
from gpu import test_registered_memory

FIXTURES = ("_small_pieces", "sides")

globals().update(
    {name: each for name, each in vars(test_registered_memory).items() if name.startswith("test_") or name in FIXTURES}
)

pytestmark = test_registered_memory.pytestmark


@pytest.fixture(autouse=True)
def _on_a_late_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With nothing under way, and no memory that anybody had."""
    be_late(monkeypatch)
    with installed():
        yield
