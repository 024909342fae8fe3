"""How many values of tensors are alive, for tests that nothing is left behind."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gt.client.segment.value import TensorValue


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """What is not freed at once stays. What was there before is not counted by `live_values`, or walked by the garbage collector
    ever again: in a run of all tests that is millions of objects."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def live_values() -> int:
    """The values that were made `without_garbage_collector` and are alive."""
    return sum(count for kind, count in Counter(map(type, gc.get_objects())).items() if issubclass(kind, TensorValue))
