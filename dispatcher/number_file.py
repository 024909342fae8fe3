"""The file that keeps what numbers a service has given, for the dispatcher that follows.

It is a mapping of memory, so that what was written is there when this process ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .state.numbers import Numbers

SLOT: Final = struct.Struct("<Q")
FIRST_NUMBERS: Final = (1, 0, 1, 1)
"""The first session, worker, mesh and mark."""
ORDERS_PER_START: Final = 1 << 42
"""How many orders a dispatcher may give: 500 days at 100,000 a second."""


WORKERS_SLOT: Final = len(FIRST_NUMBERS) + 1
"""Behind the numbers is how many dispatchers have started, and how many workers the last one had."""


class NumberFile:
    """The numbers that follow those of all dispatchers that had this file, and how many `workers` the last one had. Raises
    `OSError`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            nbytes = SLOT.size * (WORKERS_SLOT + 1)
            os.ftruncate(descriptor, nbytes)
            self.memory = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        starts = next(_count(self.memory, len(FIRST_NUMBERS), 0))
        sessions, workers, meshes, marks = (
            _count(self.memory, slot, first) for slot, first in enumerate(FIRST_NUMBERS)
        )
        self.numbers = Numbers(sessions, workers, meshes, marks, starts * ORDERS_PER_START)
        self.workers: int = SLOT.unpack_from(self.memory, WORKERS_SLOT * SLOT.size)[0]

    def note_workers(self, count: int) -> None:
        """Note how many workers the service has or waits for."""
        if count != self.workers:
            self.workers = count
            SLOT.pack_into(self.memory, WORKERS_SLOT * SLOT.size, count)


def _count(memory: mmap.mmap, slot: int, first: int) -> Iterator[int]:
    """Counts on from what a slot says, or from `first`."""
    at = slot * SLOT.size
    while True:
        number = max(first, SLOT.unpack_from(memory, at)[0])
        SLOT.pack_into(memory, at, number + 1)
        yield number
