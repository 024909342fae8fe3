"""When a daemon looks for reference cycles among objects that have lived long: not while somebody waits for it.

Python looks through all of them whenever their number has grown by a quarter. Beside a session with 131,072 different tensors
that took a quarter of a second, in which nobody else was served. Young objects are looked through as ever: that takes less than
a millisecond.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from .heap import ResidentMemory

IDLE_SECONDS: Final = 60.0
"""The least seconds between two looks of an idle process."""
GROWTH_BYTES: Final = 256 << 20
"""The growth of the process after which it looks in any case."""
NEVER: Final = (1 << 31) - 1


class OldGarbage:
    """Looks for garbage among old objects, in place of Python. `memory` tells the bytes of this process; `collect` frees what it
    finds."""

    def __init__(self, memory: Callable[[], int] | None = None, collect: Callable[[], object] = gc.collect) -> None:
        self.memory = memory or ResidentMemory().read
        self.collect = collect
        self.looked_at = 0.0
        self.bytes = self.memory()

    def look(self, now: float, *, idle: bool) -> None:
        """To be called once a second with the time in seconds, and whether nothing is to be done."""
        if (idle and now - self.looked_at >= IDLE_SECONDS) or self.memory() - self.bytes > GROWTH_BYTES:
            self.collect()
            self.looked_at, self.bytes = now, self.memory()


def leave_old_garbage() -> None:
    """Have Python look through young objects alone, in this process, and nobody through what was made until now."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    gc.collect()
    gc.freeze()


@contextmanager
def garbage_later() -> Iterator[None]:
    """In it nobody looks for reference cycles, and later nobody among what was made in it: for a process that loads its modules.

    They stay, and looking through them over and over was a sixth of the time in which a dispatcher loads.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
