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
from .state.worker_duty import WorkersBefore

SLOT: Final = struct.Struct("<Q")
FIRST_NUMBERS: Final = (1, 0, 1, 1)
"""The first session, worker, mesh and mark."""
FILE_NAME: Final = "numbers"
ORDERS_PER_START: Final = 1 << 42
"""How many orders a dispatcher may give: 500 days at 100,000 a second."""
STARTS_SLOT: Final = len(FIRST_NUMBERS)
WORKERS_SLOT: Final = STARTS_SLOT + 1
BEATS_SLOT: Final = STARTS_SLOT + 2
EPOCH_SLOT: Final = STARTS_SLOT + 3
REPLACED_SLOT: Final = STARTS_SLOT + 4
SERVICE_SLOT: Final = STARTS_SLOT + 5
SPARES_SLOT: Final = STARTS_SLOT + 6
LEAVING_SLOT: Final = STARTS_SLOT + 7
"""Behind the numbers is how many dispatchers have started, how many workers the last one had, and a count that grows while it
works; then its epoch, the epoch of one that has taken its place elsewhere (0: none has), and a random number by which all
dispatchers of this service are known; then how many spares it kept, and the processes of the workers that it was draining."""
MAX_LEAVING: Final = 16
"""So many drains at most go on at the next dispatcher."""
FILE_BYTES: Final = SLOT.size * (LEAVING_SLOT + MAX_LEAVING)
NUMBERS_AHEAD: Final = 1_000_000_000
STARTS_AHEAD: Final = 1 << 10
"""So many numbers, and so many starts of dispatchers, a dispatcher leaves out that takes over with a copy of this file: more than
the other one can have given since that was made."""


MAX_NUMBER: Final = 1 << 62
"""All numbers that a dispatcher has counted are smaller."""
MAX_STARTS: Final = MAX_NUMBER // ORDERS_PER_START


class DamagedNumbers(GTError, OSError):
    """A file of numbers has some that no dispatcher can have given."""


class FolderInUse(GTError, OSError):
    """Another dispatcher goes on with the sessions in this folder, here or elsewhere."""


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


def replaced_by(folder: Path) -> int:
    """The epoch of a dispatcher that has taken the place of the one that had this folder; 0: none has. Raises `OSError`."""
    return _slot((folder / FILE_NAME).read_bytes(), REPLACED_SLOT)


def new_service() -> int:
    """A number by which a new service is known."""
    return int.from_bytes(os.urandom(7), "big") + 1


def store_numbers(folder: Path, data: bytes) -> None:
    """Make the file of a folder a copy of another one's. Raises `OSError`."""
    with (folder / FILE_NAME).open("r+b") as file:  # it is locked, so it must stay the same file
        file.write(data.ljust(FILE_BYTES, b"\0")[:FILE_BYTES])


def next_epoch(folder: Path) -> int:
    """The epoch in which a dispatcher with a copy of another one's folder would take its place. Raises `OSError`."""
    return max(1, _slot((folder / FILE_NAME).read_bytes(), EPOCH_SLOT)) + 1


def read_workers(folder: Path) -> int:
    """How many workers the dispatcher had of which a folder has a copy. Raises `OSError`."""
    return _slot((folder / FILE_NAME).read_bytes(), WORKERS_SLOT)


def read_service(folder: Path) -> int:
    """The number of the service of which a folder is. Raises `OSError`."""
    return _slot((folder / FILE_NAME).read_bytes(), SERVICE_SLOT)


def take_over_numbers(folder: Path) -> int:
    """Have the numbers in a copied file go on far beyond those that the other dispatcher gives. Returns the new epoch. Raises
    `OSError`, `DamagedNumbers` if they cannot."""
    epoch, path = next_epoch(folder), folder / FILE_NAME
    data = path.read_bytes()
    _check(data, path)
    slots = [_slot(data, at) for at in range(FILE_BYTES // SLOT.size)]
    for at in range(STARTS_SLOT):
        slots[at] += NUMBERS_AHEAD
    slots[STARTS_SLOT] += STARTS_AHEAD
    slots[EPOCH_SLOT], slots[REPLACED_SLOT] = epoch, 0
    store_numbers(folder, b"".join(map(SLOT.pack, slots)))
    return epoch


def _check(data: bytes, path: Path) -> None:
    """Raise `DamagedNumbers` if a file has numbers that cannot go on."""
    slots = [_slot(data, at) for at in range(LEAVING_SLOT)]
    if max(slots) >= MAX_NUMBER or slots[STARTS_SLOT] >= MAX_STARTS:
        text = f"{path} is damaged: no dispatcher has counted so far; the sessions in its folder cannot go on, so remove it"
        raise DamagedNumbers(text)


def _slot(data: bytes, at: int) -> int:
    number: int = SLOT.unpack_from(data.ljust(FILE_BYTES, b"\0"), at * SLOT.size)[0]
    return number


class NumberFile:
    """The numbers that follow those of all dispatchers that had this folder, what is noted of the `workers` of the last one, and
    the `epoch` of this one. Raises `OSError`, `DamagedNumbers` if they cannot go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, FILE_BYTES)
            self.memory = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        _check(self.memory[:], folder / FILE_NAME)
        starts = next(_count(self.memory, STARTS_SLOT, 0))
        self.beats = _count(self.memory, BEATS_SLOT, 0)
        sessions, workers, meshes, marks = (
            _count(self.memory, slot, first) for slot, first in enumerate(FIRST_NUMBERS)
        )
        self.numbers = Numbers(sessions, workers, meshes, marks, starts * ORDERS_PER_START)
        service, spares = (self._get(slot) for slot in (WORKERS_SLOT, SPARES_SLOT))
        leaving = frozenset(self._get(LEAVING_SLOT + at) for at in range(MAX_LEAVING)) - {0}
        self.workers = WorkersBefore(service, spares, leaving)
        self.epoch: int = max(1, SLOT.unpack_from(self.memory, EPOCH_SLOT * SLOT.size)[0])
        SLOT.pack_into(self.memory, EPOCH_SLOT * SLOT.size, self.epoch)
        self.service: int = SLOT.unpack_from(self.memory, SERVICE_SLOT * SLOT.size)[0] or new_service()
        SLOT.pack_into(self.memory, SERVICE_SLOT * SLOT.size, self.service)

    def _get(self, slot: int) -> int:
        number: int = SLOT.unpack_from(self.memory, slot * SLOT.size)[0]
        return number

    def note_workers(self, now: WorkersBefore) -> None:
        """Note what the next dispatcher is to know of the workers that the service has."""
        if now != self.workers:
            self.workers = now
            leaving = [*sorted(now.leaving)[:MAX_LEAVING], *[0] * MAX_LEAVING][:MAX_LEAVING]
            for slot, number in enumerate([now.spares, *leaving], SPARES_SLOT):
                SLOT.pack_into(self.memory, slot * SLOT.size, number)
            SLOT.pack_into(self.memory, WORKERS_SLOT * SLOT.size, now.service)

    def note_replaced(self, epoch: int) -> None:
        """Note that another dispatcher, of this epoch, has taken the place of this one: none goes on with this folder."""
        SLOT.pack_into(self.memory, REPLACED_SLOT * SLOT.size, epoch)


def _count(memory: mmap.mmap, slot: int, first: int) -> Iterator[int]:
    """Counts on from what a slot says, or from `first`."""
    at = slot * SLOT.size
    while True:
        number = max(first, SLOT.unpack_from(memory, at)[0])
        SLOT.pack_into(memory, at, number + 1)
        yield number
