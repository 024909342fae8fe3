"""What holds after every test of the dispatcher."""

from collections.abc import Iterator

import one_dispatcher
import pytest


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """The invariants of every core that the test made hold, and when all its peers have left nothing of them is left."""
    one_dispatcher.made.clear()
    yield
    for each in one_dispatcher.made:
        each.idle = True  # what a test held back goes on
        one_dispatcher.leave_nothing(each)
    one_dispatcher.made.clear()
