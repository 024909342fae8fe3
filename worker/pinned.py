"""Pinned memory of the host, where what goes out of a GPU's memory goes first: blocks that are used again.

The system takes a millisecond to pin a block, and a copy to it a tenth of that, so a block that comes back is kept for the
next of its size, and only given up when another size needs the room. What is in the blocks is `spill.py`'s.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ranges import rounded

from .buffers import Pinning

Block = np.ndarray[Any, np.dtype[np.uint8]]


class Pinned:
    """Blocks of at most `limit` bytes in all."""

    def __init__(self, device: Pinning, limit: int) -> None:
        self.device = device
        self.limit = limit
        self.used = self.most = 0
        """Bytes of blocks that are in use, and were at most."""
        self.reserved = 0
        """Bytes of all blocks."""
        self.free: dict[int, list[Block]] = {}
        """By size, what nobody uses."""

    def ever(self, nbytes: int) -> bool:
        """Whether so many bytes fit when all else is gone."""
        return rounded(nbytes) <= self.limit

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes."""
        return self.used + rounded(nbytes) <= self.limit

    def take(self, nbytes: int) -> Block | None:
        """A block of at least so many bytes; None where there is no room. Raises `MemoryError`."""
        size = rounded(nbytes)
        if self.used + size > self.limit:
            return None
        waiting = self.free.get(size)
        if waiting:
            block = waiting.pop()
        else:
            if self.reserved + size > self.limit:
                self.release(self.reserved + size - self.limit)
            block = self.device.pin(size)
            self.reserved += size
        self.used += size
        self.most = max(self.most, self.used)
        return block

    def back(self, block: Block) -> None:
        """Nobody needs what is in a block any more. A copy from or to it may be under way: whatever is done to it next is
        done after that, in the device's own order, or when it was waited for (`Pinning.settle`)."""
        self.used -= block.nbytes
        self.free.setdefault(block.nbytes, []).append(block)

    def release(self, nbytes: int) -> None:
        """Give up free blocks of so many bytes at least, the largest first."""
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
        assert self.reserved - self.used == sum(size * len(blocks) for size, blocks in self.free.items())
