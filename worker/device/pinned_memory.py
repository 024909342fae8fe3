"""Pinned buffers: page-locked memory of the host, where data evicted from a GPU goes first.

Pinning a buffer takes a millisecond, copying to it a tenth of that. So a buffer that is returned is kept for the next request
of its size, and is only given up when another size needs the room. `worker/spill/spill_file.py` decides what the buffers hold.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gt.wire.shared_memory.ranges import PAGE_BYTES, round_to_pages

from .buffers import Pinning

SPARE_DIVISOR: Final = 8
"""The fraction of pinned memory that is kept free: one in so many."""
PinnedBuffer = np.ndarray[Any, np.dtype[np.uint8]]


class PinnedPool:
    """Pinned buffers of at most `limit` bytes in all."""

    def __init__(self, device: Pinning, limit: int) -> None:
        self.device = device
        self.limit = limit
        self.spare = limit // SPARE_DIVISOR // PAGE_BYTES * PAGE_BYTES
        """Bytes that are kept free, so that what comes next waits for nothing."""
        self.used = self.most = 0
        """Bytes of the buffers in use, now and at most."""
        self.reserved = 0
        """Bytes of all buffers."""
        self.free: dict[int, list[PinnedBuffer]] = {}
        """By size, the buffers that nobody uses."""

    def ever(self, nbytes: int) -> bool:
        """Whether `nbytes` bytes would fit if no buffer were in use."""
        return round_to_pages(nbytes) <= self.limit

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for `nbytes` bytes now."""
        return self.used + round_to_pages(nbytes) <= self.limit

    def take(self, nbytes: int) -> PinnedBuffer | None:
        """A buffer of at least `nbytes` bytes, None if there is no room. Raises `MemoryError` if the host cannot pin it."""
        size = round_to_pages(nbytes)
        if self.used + size > self.limit:
            return None
        waiting = self.free.get(size)
        if waiting:
            buffer = waiting.pop()
        else:
            if self.reserved + size > self.limit:
                self.release(self.reserved + size - self.limit)
            buffer = self.device.pin(size)
            self.reserved += size
        self.used += size
        self.most = max(self.most, self.used)
        return buffer

    def back(self, buffer: PinnedBuffer) -> None:
        """Return a buffer whose content nobody needs any more.

        A copy from or to it may still be under way: whatever uses the buffer next comes after that copy in the device's order,
        or waits for it (`Pinning.settle`).
        """
        self.used -= buffer.nbytes
        self.free.setdefault(buffer.nbytes, []).append(buffer)

    def release(self, nbytes: int) -> None:
        """Unpin free buffers of at least `nbytes` bytes together, the largest first."""
        self.device.settle()
        for size in sorted(self.free, reverse=True):
            while self.free[size] and nbytes > 0:
                self.free[size].pop()
                self.reserved -= size
                nbytes -= size
            if not self.free[size]:
                del self.free[size]

    def check(self) -> None:
        """The invariants."""
        assert 0 <= self.used <= self.reserved <= self.limit
        assert self.reserved - self.used == sum(size * len(buffers) for size, buffers in self.free.items())
