"""Memory for large temporary arrays that can be shown to other processes of the machine: `numpy.empty`, with recycling.

A pool is one memfd, long and sparse, mapped once here and once in each process that it is shown to. `ranges.py` knows which
ranges of it are in use. A range is free when the array and all its views are gone; its pages stay allocated on all sides, and
are given up after a while without use. Where there is no such memory, arrays are ordinary ones.

Forks: a parent and its child share this memory, and an array that was fetched belongs to both, to write to independently. So
before a fork, arrays are mapped privately over themselves: both processes see the old values, and their own writes. Memory in
use at a fork is never used again, because the child may read it.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any, Final
from weakref import WeakSet

import numpy as np

from gt.daemon.host import memory_limit

from .memfd import BULK_KIND, SharedMemory
from .page_stamp import PAGE_OFFSET_BYTES, write_stamp
from .ranges import PAGE_BYTES, Ranges

MAX_UNPOOLED_BYTES: Final = 64 << 10
"""Memory of up to this many bytes is left to the C library, which recycles small allocations itself."""
MAX_IDLE_BYTES: Final = 1 << 30
"""The most bytes of unused ranges whose pages are kept."""
SPAN_FACTOR: Final = 4
"""The memory is this many times longer than what may be in use, so that there is always a gap of the right size."""
_POPULATE_WRITE: Final = 23
"""Linux 5.14: allocate pages for writing, or fail (instead of killing the process when it first uses them)."""
Array = np.ndarray[Any, Any]


def half_of_memory() -> int:
    """The default limit of a pool in bytes: half of the memory that processes here may use."""
    return memory_limit() // 2


class _Lease:
    """Holds a range while some array uses it: NumPy keeps this object alive for that long."""

    __slots__ = ("__array_interface__", "arena", "offset")

    def __init__(self, arena: _Arena, offset: int, nbytes: int) -> None:
        self.arena = arena
        self.offset = offset
        self.__array_interface__ = {
            "data": (arena.address + offset + PAGE_OFFSET_BYTES, False), "shape": (nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    @property
    def memory(self) -> mmap.mmap:
        """The memory that the range is of."""
        return self.arena.memory.map

    def __del__(self) -> None:
        self.arena.back(self.offset)


class _Arena:
    """One memory and its ranges. A *retired* arena allocates no more: ranges that come back are given up at once or, if a
    child may read them (`frozen`), with the whole."""

    def __init__(self, limit: int, kept: int) -> None:
        span = -(-SPAN_FACTOR * limit // PAGE_BYTES) * PAGE_BYTES
        self.memory = SharedMemory(span, BULK_KIND)
        self.ranges = Ranges(span, limit, kept)
        self.address = int(np.frombuffer(self.memory.map, np.uint8).ctypes.data)
        self.returned: deque[int] = deque()
        """Ranges that have come back and are still to be collected; arrays may be freed in any thread."""
        self.arrays: set[int] = set()
        """The ranges of arrays that this program may write to."""
        self.retired = self.frozen = False
        self.stamps = itertools.count(1)
        """Numbers for ranges with new pages."""

    def take(self, nbytes: int) -> _Lease | None:
        """A range of so many bytes with its pages allocated, or None if there is no room."""
        self.collect()
        found = self.ranges.take(nbytes + PAGE_OFFSET_BYTES)
        self.give_up()
        if found is None:
            return None
        offset, warm = found
        if not warm and not self._populate(offset, self.ranges.used[offset]):
            self.ranges.back(offset)
            self.ranges.cool_all()
            self.give_up()
            return None
        if not warm:
            write_stamp(self.memory.map, offset, next(self.stamps))
        return _Lease(self, offset, nbytes)

    def _populate(self, offset: int, size: int) -> bool:
        """Allocate the pages of a range now, because a process that touches a page that cannot be allocated is killed."""
        try:
            try:
                self.memory.map.madvise(_POPULATE_WRITE, offset, size)
            except OSError:
                os.posix_fallocate(self.memory.descriptor, offset, size)
        except OSError:
            return False
        return True

    def back(self, offset: int) -> None:
        """Return a range whose last array is gone. May be called in any thread."""
        if not self.retired:
            self.returned.append(offset)
        elif not self.frozen:
            self._remove(offset, self.ranges.used[offset])
        self.arrays.discard(offset)

    def collect(self) -> None:
        """Free the ranges that have come back."""
        while self.returned:
            self.ranges.back(self.returned.popleft())

    def give_up(self) -> None:
        """Give up the pages of ranges that became cold."""
        while self.ranges.cooled:
            self._remove(*self.ranges.cooled.pop())

    def _remove(self, offset: int, size: int) -> None:
        try:
            self.memory.map.madvise(mmap.MADV_REMOVE, offset, size)
        except OSError:
            pass  # the pages stay, and are used again

    def retire(self) -> None:
        """Allocate no more, and give up the pages of unused ranges."""
        self.collect()
        self.ranges.cool_all()
        self.give_up()
        self.retired = True
        self.collect()

    def part(self) -> None:
        """Map the arrays privately."""
        for offset in list(self.arrays):
            _map_privately(self.address + offset, self.ranges.used[offset], self.memory.descriptor, offset)
        self.arrays.clear()
        self.frozen = True


class Pool:
    """Arrays of at most `limit` bytes in all; the pages of up to `kept` bytes of unused ranges are kept."""

    def __init__(self, limit: float, kept: int = MAX_IDLE_BYTES) -> None:
        self.limit = int(limit)
        self.kept = kept
        self.arena: _Arena | None = None
        self.arenas: WeakSet[_Arena] = WeakSet()
        """The arenas that still hold an array."""
        self.lock = threading.Lock()
        _pools.add(self)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A new array in row-major order, with arbitrary values. Raises `MemoryError`."""
        nbytes = prod(shape) * dtype.itemsize
        lease = self._lease(nbytes, own=True) if nbytes > MAX_UNPOOLED_BYTES else None
        if lease is None:
            return np.empty(shape, dtype)
        return np.asarray(lease).view(dtype).reshape(shape)

    def room(self, nbytes: int) -> Array | None:
        """So many bytes, to be filled once and then shown to others; None if there is no room."""
        lease = self._lease(nbytes, own=False)
        return None if lease is None else np.asarray(lease)

    def has_warm(self, nbytes: int, count: int) -> bool:
        """Whether so many ranges of so many bytes are free whose pages are allocated; also if there is no memory to share."""
        with self.lock:
            if self.arena is None:
                return not self.limit
            self.arena.collect()
            return self.arena.ranges.warm_of(nbytes + PAGE_OFFSET_BYTES) >= count

    def place(self, array: Array) -> tuple[str, int] | None:
        """How others find an array of this pool: the name of the memory, and the offset in it. None if they cannot."""
        arena = self.arena
        if arena is None:
            return None
        offset = int(array.__array_interface__["data"][0]) - arena.address
        return (arena.memory.where, offset) if 0 <= offset < arena.ranges.span else None

    def trim(self, now: float) -> None:
        """Give up pages that were not used for a while. `now` is in seconds, from any steady clock."""
        with self.lock:
            if self.arena is not None:
                self.arena.collect()
                self.arena.ranges.trim(now)
                self.arena.give_up()

    def renew(self) -> None:
        """Never use again what is in use now, because another process may still read or write it."""
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
    """Map the memory at `address`, which is a file's, copy-on-write for this process."""
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
