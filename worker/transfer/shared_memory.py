"""Shared memory between the workers of one machine: this worker's own, which others read, and theirs, which it reads.

A worker announces its memory (`gt/wire/shared_memory/memfd.py`) in its address, with the facts by which a peer knows whether it
can open it. Other peers get their pieces through the socket. `gt/wire/shared_memory/slab.py` tracks which slot is lent to whom.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from gt.errors import WorkerError
from gt.sharding.collectives import MAX_CHUNK_BYTES
from gt.wire.shared_memory.memfd import DEFAULT_SHARED_BYTES, SharedMemory, is_near, machine, map_memory
from gt.wire.shared_memory.slab import Slab


class LentMemory:
    """The memory that a worker lends, and that of the peers that it knows."""

    def __init__(self, limit: float = DEFAULT_SHARED_BYTES) -> None:
        slots = int(limit) // MAX_CHUNK_BYTES
        self.own = SharedMemory(slots * MAX_CHUNK_BYTES) if slots and machine() else None
        self.slab = Slab(slots if self.own else 0)
        self.near: set[int] = set()
        """The workers that can read what this one lends."""
        self.peers: dict[int, mmap.mmap] = {}
        """The memory that peers lend."""

    def announce(self, address: str) -> str:
        """A worker's address, with the place of its memory."""
        return address if self.own is None else f"{address}#{self.own.where}"

    def know(self, worker: int, address: str) -> None:
        """Map a peer's memory, if it is on this machine."""
        where = (*address.split("#"), "")[1]
        if worker in self.near or self.own is None or not is_near(where):
            return
        self.near.add(worker)
        try:
            self.peers[worker] = map_memory(where)
        except (OSError, ValueError):
            pass  # it has ended already; whoever needs what it lent is told so

    def forget(self, worker: int) -> None:
        """A peer is gone: its loans are returned, and its memory is unmapped with the last array over it."""
        self.near.discard(worker)
        self.peers.pop(worker, None)
        self.slab.lost(worker)

    def reaches(self, worker: int) -> bool:
        """Whether a peer can read what this worker lends."""
        return worker in self.near

    @property
    def lent(self) -> int:
        """The number of slots in use."""
        return len(self.slab.loans)

    def lend(self, nbytes: int, readers: list[int]) -> tuple[int, int, np.ndarray[Any, Any]] | None:
        """The number of a loan, its offset, and the bytes to fill; None if it is too large or all slots are in use."""
        lent = self.slab.lend(readers) if nbytes <= MAX_CHUNK_BYTES else None
        if lent is None or self.own is None:
            return None
        loan, slot = lent
        return loan, slot * MAX_CHUNK_BYTES, np.ndarray((nbytes,), np.uint8, self.own.map, slot * MAX_CHUNK_BYTES)

    def back(self, reader: int, loans: list[int]) -> None:
        """`reader` has read these loans."""
        self.slab.back(reader, loans)

    def view(self, worker: int, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes that a peer has lent, read-only. Raises `WorkerError` if there are none."""
        memory = self.peers.get(worker)
        if memory is None:
            raise WorkerError(f"the shared memory of worker {worker} cannot be read: it has ended, or is elsewhere")
        if offset + nbytes > len(memory):
            raise WorkerError(f"worker {worker} has no shared memory at {offset} + {nbytes}")
        return np.ndarray((nbytes,), np.uint8, memory, offset)
