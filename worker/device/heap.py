"""The interpreter's garbage collector, in a process that is a worker's alone.

A program of thousands of steps is a hundred thousand objects, and to make them starts the collector, which looks at all others
too: five times a quarter of what it took to fuse them. Programs have no reference cycles, so there is nothing to find.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
