"""The heap of a process that is a worker's alone: what the garbage collector looks at, and what is kept of freed memory.

A program of thousands of steps is a hundred thousand objects, and to make them starts the collector, which looks at all others
too: five times a quarter of what it took to fuse them. Programs have no reference cycles, so there is nothing to find.
A training step frees and makes the same arrays over and over, so memory that was freed is kept (`gt/daemon/heap.py`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

from gt.bounds import MIB
from gt.daemon.heap import keep_freed_memory

KEPT_HEAP_BYTES: Final = 256 * MIB
"""Bytes that are kept at the end of the heap when nobody uses them."""
MMAP_THRESHOLD_BYTES: Final = 32 * MIB
"""Bytes from which an array has pages of its own: the most that glibc takes."""


def keep_freed_arrays() -> bool:
    """Keep the memory of arrays that are freed. Returns False where the C library does not keep any."""
    return keep_freed_memory(KEPT_HEAP_BYTES, MMAP_THRESHOLD_BYTES)


@contextlib.contextmanager
def long_lived() -> Iterator[None]:
    """What is made meanwhile is left to reference counts alone: the collector neither runs nor looks at it afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
