"""Shared memory between the workers of one machine: this worker's own, which others read, and theirs, which it reads.

It is a memfd that peers open by /proc/<pid>/fd/<n>: it has no name in any folder, so nothing is left of it however its
worker ends, and what a reader has mapped stays readable when the writer is gone. It is sealed against shrinking, so
no access can fail. A worker announces it in its address, with the facts by which a peer knows that it can open it; peers
elsewhere get their pieces through the socket. Which slot is lent to whom is in `arena.py`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from gt.collectives import CHUNK
from gt.errors import WorkerError

from .arena import Arena

SHARED_MEMORY: Final = 256 << 20
"""Bytes of shared memory that a worker lends at most. Pages are taken as they are needed, and used again."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FORM: Final = re.compile(r".*#([^#/]{1,200})/([0-9]{1,10})/([0-9]{1,10})/([0-9a-f]{16})")


def machine() -> str:
    """Who can open each other's descriptors: one kernel, one process namespace, one user. Empty when that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return re.sub(r"[^\w:.-]", "", f"{boot}:{namespace}:{os.getuid()}")


class Shared:
    """The memory that a worker lends, and that of the peers it knows."""

    def __init__(self, limit: float = SHARED_MEMORY) -> None:
        slots = int(limit) // CHUNK
        self.machine = machine() if slots else ""
        self.arena = Arena(slots if self.machine else 0)
        self.name = os.urandom(8).hex()
        self.near: set[int] = set()
        """Workers that can read what this one lends."""
        self.peers: dict[int, mmap.mmap] = {}
        """The memory that peers lend."""
        if self.machine:
            self.descriptor = os.memfd_create(f"gt-{self.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.descriptor, slots * CHUNK)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self.own = mmap.mmap(self.descriptor, slots * CHUNK)

    def announce(self, address: str) -> str:
        """A worker's address, and where its memory is."""
        if not self.machine:
            return address
        return f"{address}#{self.machine}/{os.getpid()}/{self.descriptor}/{self.name}"

    def know(self, worker: int, address: str) -> None:
        """Map a peer's memory, if it is on this machine."""
        if worker in self.near:
            return
        match = _FORM.fullmatch(address)
        if match is None or not self.machine or match[1] != self.machine:
            return
        self.near.add(worker)
        try:
            self.peers[worker] = _mapped(int(match[2]), int(match[3]), match[4])
        except (OSError, ValueError):
            pass  # it has ended already; whoever needs what it lent is told so

    def forget(self, worker: int) -> None:
        """A peer is gone: what it borrowed is free, what it lent is unmapped with the last array that reads it."""
        self.near.discard(worker)
        self.peers.pop(worker, None)
        self.arena.lost(worker)

    def reaches(self, worker: int) -> bool:
        """Whether a peer can read what this worker lends."""
        return worker in self.near

    @property
    def lent(self) -> int:
        """Slots in use."""
        return len(self.arena.loans)

    def lend(self, nbytes: int, readers: list[int]) -> tuple[int, int, np.ndarray[Any, Any]] | None:
        """(the loan's number, its offset, the bytes to fill), or None when it is too large or all slots are in use."""
        lent = self.arena.lend(readers) if nbytes <= CHUNK else None
        if lent is None:
            return None
        loan, slot = lent
        return loan, slot * CHUNK, np.ndarray((nbytes,), np.uint8, self.own, slot * CHUNK)

    def back(self, reader: int, loans: list[int]) -> None:
        """`reader` has read these loans."""
        self.arena.back(reader, loans)

    def view(self, worker: int, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes that a peer has lent, not writable. Raises `WorkerError` when there are none."""
        memory = self.peers.get(worker)
        if memory is None:
            raise WorkerError(f"the shared memory of worker {worker} cannot be read: it has ended, or is elsewhere")
        if offset + nbytes > len(memory):
            raise WorkerError(f"worker {worker} has no shared memory at {offset} + {nbytes}")
        return np.ndarray((nbytes,), np.uint8, memory, offset)


def _mapped(pid: int, descriptor: int, name: str) -> mmap.mmap:
    """A peer's memory, read only. Raises `OSError` or `ValueError` when it is not what it was announced to be."""
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    if str(path.readlink()) != f"/memfd:gt-{name} (deleted)":
        raise ValueError("another file")
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("it could shrink under its readers")
        return mmap.mmap(opened, 0, prot=mmap.PROT_READ)
    finally:
        os.close(opened)
