"""A machine for each test of processes; afterwards nothing of it may be left."""

from collections.abc import Iterator

import pytest
from daemons import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    try:
        yield made
        made.close()
        assert made.left() == []
    finally:
        made.close()
        made.remove()
