"""What holds after every test of the worker."""

from collections.abc import Iterator

import one_mesh
import pytest


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """The invariants of all workers that the test made hold, and no worker holds more of a heap than it should."""
    one_mesh.made.clear()
    yield
    for ranks in one_mesh.made:
        for core in ranks.cores:
            core.check()
        for heap in ranks.heaps:
            heap.slab.check()
    one_mesh.made.clear()
