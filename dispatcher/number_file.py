"""The file that keeps what numbers a service has given, for the dispatcher that follows, and shows that the present one works.

It is a mapping of memory, so that what was written is there when this process ends, however it ends. A dispatcher holds a lock
on it (flock(2)) as long as its process is there, also while that stands still, so no two of them go on with the same sessions.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gt.errors import GTError

from .state.numbers import Numbers

SLOT: Final = struct.Struct("<Q")
FIRST_NUMBERS: Final = (1, 0, 1, 1)
"""The first session, worker, mesh and mark."""
FILE_NAME: Final = "numbers"
ORDERS_PER_START: Final = 1 << 42
"""How many orders a dispatcher may give: 500 days at 100,000 a second."""
STARTS_SLOT: Final = len(FIRST_NUMBERS)
WORKERS_SLOT: Final = STARTS_SLOT + 1
BEATS_SLOT: Final = STARTS_SLOT + 2
"""Behind the numbers is how many dispatchers have started, how many workers the last one had, and a count that grows while it
works."""


class FolderInUse(GTError, OSError):
    """Another dispatcher goes on with the sessions in this folder."""


def lock_folder(folder: Path, *, wait: bool = False) -> int:
    """Lock the folder of a service's marks, with `wait` once nobody else has the lock. Returns a descriptor, which holds it.
    Raises `FolderInUse` unless it waits, and `OSError`."""
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        text = f"another dispatcher has the folder {folder}: give this one a folder of its own, or --standby-of its address"
        raise FolderInUse(text) from None
    return descriptor


def read_beats(folder: Path) -> int | None:
    """The count that grows while the dispatcher with this folder works; None if there is none yet."""
    try:
        data = (folder / FILE_NAME).read_bytes()
    except OSError:
        return None
    return SLOT.unpack_from(data, BEATS_SLOT * SLOT.size)[0] if len(data) > BEATS_SLOT * SLOT.size else None


class NumberFile:
    """The numbers that follow those of all dispatchers that had this folder, and how many `workers` the last one had. Raises
    `OSError`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            nbytes = SLOT.size * (BEATS_SLOT + 1)
            os.ftruncate(descriptor, nbytes)
            self.memory = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        starts = next(_count(self.memory, STARTS_SLOT, 0))
        self.beats = _count(self.memory, BEATS_SLOT, 0)
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
