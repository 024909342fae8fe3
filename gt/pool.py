"""Memory for large arrays that come and go, and that others on this machine may be shown: `numpy.empty`, recycled.

A pool is one memfd, long and sparse, mapped once here and once in each process that it is shown to; `ranges.py` says which
ranges of it are in use. A range goes back when the array and all views of it are gone, with its pages in place on all sides,
and these are given up when nobody has wanted them for a while. Where there is no such memory, arrays are ordinary ones.

What a fork means. A parent and its child share such memory, and an array that was fetched belongs to both, each to do with as
it likes. So before a fork arrays are mapped privately, over themselves: from then on either sees what was there, and
what it writes itself. And nothing that is in use then is ever used again, for the child may look at it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any, Final
from weakref import WeakSet

import numpy as np

from .host import memory_limit
from .memfd import BULK, Memory
from .ranges import PAGE, Ranges

SMALL: Final = 64 << 10
"""Bytes up to which memory is the C library's, which keeps what is small by itself."""
KEPT: Final = 1 << 30
"""Bytes that stay warm at most while nobody uses them."""
SPARSE: Final = 4
"""So many times longer than what may be in use is the memory, so that there is always a place of the right size."""
SHIFT: Final = 2048
"""Bytes from the beginning of a page at which an array begins. Those of the C library begin at 16, and a copy takes three times
as long when its target lies a little behind its source, as pages go: the processor takes it for reading what was just written."""
_POPULATE_WRITE: Final = 23
"""Linux 5.14: bring in pages for writing, or say that there are none (else the process would be killed at their first use)."""
Array = np.ndarray[Any, Any]


def half_of_memory() -> int:
    """The bytes that a pool takes at most unless it is told: half of what processes here may use."""
    return memory_limit() // 2


class _Lease:
    """Who holds a range while some array reads it: NumPy keeps this alive for as long."""

    __slots__ = ("__array_interface__", "arena", "offset")

    def __init__(self, arena: _Arena, offset: int, nbytes: int) -> None:
        self.arena = arena
        self.offset = offset
        self.__array_interface__ = {
            "data": (arena.address + offset + SHIFT, False), "shape": (nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self.arena.back(self.offset)


class _Arena:
    """A memory and its ranges. A *retired* one gives out no more: what comes back is given up at once, or, when a child may
    look at it (`frozen`), with the whole."""

    def __init__(self, limit: int, kept: int) -> None:
        span = -(-SPARSE * limit // PAGE) * PAGE
        self.memory = Memory(span, BULK)
        self.ranges = Ranges(span, limit, kept)
        self.address = int(np.frombuffer(self.memory.map, np.uint8).ctypes.data)
        self.returned: deque[int] = deque()
        """What has come back and was not yet looked at: whoever frees an array may be anywhere."""
        self.arrays: set[int] = set()
        """Ranges of arrays that this program may write to."""
        self.retired = self.frozen = False

    def take(self, nbytes: int) -> _Lease | None:
        """A range of so many bytes that has its pages, or None when there is no room."""
        self.collect()
        found = self.ranges.take(nbytes + SHIFT)
        self.give_up()
        if found is None:
            return None
        offset, warm = found
        if not warm and not self._populate(offset, self.ranges.used[offset]):
            self.ranges.back(offset)
            self.ranges.cool_all()
            self.give_up()
            return None
        return _Lease(self, offset, nbytes)

    def _populate(self, offset: int, size: int) -> bool:
        """Have the pages of a range now: who touches what cannot be had later is killed."""
        try:
            try:
                self.memory.map.madvise(_POPULATE_WRITE, offset, size)
            except OSError:
                os.posix_fallocate(self.memory.descriptor, offset, size)
        except OSError:
            return False
        return True

    def back(self, offset: int) -> None:
        """The last array that read a range is gone. May be called anywhere, in any thread."""
        if not self.retired:
            self.returned.append(offset)
        elif not self.frozen:
            self._remove(offset, self.ranges.used[offset])
        self.arrays.discard(offset)

    def collect(self) -> None:
        """Look at what has come back."""
        while self.returned:
            self.ranges.back(self.returned.popleft())

    def give_up(self) -> None:
        """Give up the pages of what got cold."""
        while self.ranges.cooled:
            self._remove(*self.ranges.cooled.pop())

    def _remove(self, offset: int, size: int) -> None:
        try:
            self.memory.map.madvise(mmap.MADV_REMOVE, offset, size)
        except OSError:
            pass  # the pages stay, and are used again

    def retire(self) -> None:
        """Give out no more; the pages of what nobody uses are given up."""
        self.collect()
        self.ranges.cool_all()
        self.give_up()
        self.retired = True
        self.collect()

    def part(self) -> None:
        """Let arrays be this process' own."""
        for offset in list(self.arrays):
            _map_privately(self.address + offset, self.ranges.used[offset], self.memory.descriptor, offset)
        self.arrays.clear()
        self.frozen = True


class Pool:
    """Arrays of at most `limit` bytes in all; `kept`: bytes that stay warm while nobody uses them."""

    def __init__(self, limit: float, kept: int = KEPT) -> None:
        self.limit = int(limit)
        self.kept = kept
        self.arena: _Arena | None = None
        self.arenas: WeakSet[_Arena] = WeakSet()
        """All that some array still lies in."""
        self.lock = threading.Lock()
        _pools.add(self)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A new array in row-major order, whose values are whatever was there. Raises `MemoryError`."""
        nbytes = prod(shape) * dtype.itemsize
        lease = self._lease(nbytes, own=True) if nbytes > SMALL else None
        if lease is None:
            return np.empty(shape, dtype)
        return np.asarray(lease).view(dtype).reshape(shape)

    def room(self, nbytes: int) -> Array | None:
        """So many bytes to be filled once and then shown to others; None when there is no room."""
        lease = self._lease(nbytes, own=False)
        return None if lease is None else np.asarray(lease)

    def place(self, array: Array) -> tuple[str, int] | None:
        """By what others find the memory in which an array of this pool begins, and where in it; None when they may not."""
        arena = self.arena
        if arena is None:
            return None
        offset = int(array.__array_interface__["data"][0]) - arena.address
        return (arena.memory.where, offset) if 0 <= offset < arena.ranges.span else None

    def trim(self, now: float) -> None:
        """Give up what nobody has wanted for a while; `now` in seconds, from any clock that goes on."""
        with self.lock:
            if self.arena is not None:
                self.arena.collect()
                self.arena.ranges.trim(now)
                self.arena.give_up()

    def renew(self) -> None:
        """Never again use what is in use now, for somebody may still read it or write to it."""
        with self.lock:
            self._retire()

    def _retire(self) -> None:
        if self.arena is not None:
            self.arena.retire()
            self.arena = None

    def _lease(self, nbytes: int, *, own: bool) -> _Lease | None:
        if nbytes > self.limit:
            return None
        with self.lock:
            if self.arena is None:
                try:
                    self.arena = _Arena(self.limit, self.kept)
                except (OSError, ValueError, OverflowError):
                    self.limit = 0  # there is none to be had
                    return None
                self.arenas.add(self.arena)
            lease = self.arena.take(nbytes)
            if lease is not None and own:
                self.arena.arrays.add(lease.offset)
            return lease

    def _before_fork(self) -> None:
        self.lock.acquire()
        if self.arena is not None:
            self.arena.collect()
            if self.arena.ranges.used:
                self._retire()
        for arena in list(self.arenas):
            if arena.retired:
                arena.part()

    def _after_fork(self, *, child: bool) -> None:
        if child:  # what is warm is the parent's
            self.arena, self.limit = None, 0
            self.lock = threading.Lock()
        else:
            self.lock.release()


def _map_privately(address: int, nbytes: int, descriptor: int, offset: int) -> None:
    """Have the memory at `address`, which is that of a file, read as it is and write for this process alone."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | _MAP_FIXED
    if function(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, offset) != address:
        raise OSError(ctypes.get_errno(), "fetched arrays cannot be made this process' own before a fork")


_MAP_FIXED: Final = 0x10
_pools: Final[WeakSet[Pool]] = WeakSet()


def _before_fork() -> None:
    _forking[:] = list(_pools)
    for pool in _forking:
        pool._before_fork()


def _after_fork(*, child: bool) -> None:
    pools = list(_forking)
    _forking.clear()
    for pool in pools:
        pool._after_fork(child=child)


_forking: Final[list[Pool]] = []
"""The pools whose locks are held while the process forks."""
os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(child=False),
    after_in_child=lambda: _after_fork(child=True),
)
