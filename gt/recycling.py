"""Arrays in memory that was used before: a page that is touched for the first time costs as much as copying it many times.

`Recycler.empty` is `numpy.empty` for large arrays that come and go, as values do that are put and fetched again and again.
The memory goes back when the array and all views of it are gone, is kept for the next of about that size, and is given up
when nobody has wanted it for a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

import numpy as np

LARGE: Final = 1 << 20
"""Bytes from which memory is recycled; what is smaller the C library keeps by itself."""
KEPT: Final = 1 << 30
"""Bytes that are kept at most while nobody uses them."""
IDLE: Final = 10.0
"""Seconds after which memory that nobody has wanted is given up."""
Block = np.ndarray[Any, Any]


class _Lease:
    """Who holds a block while some array reads it: NumPy keeps this alive for as long."""

    __slots__ = ("__array_interface__", "block", "returned")

    def __init__(self, block: Block, returned: deque[Block]) -> None:
        self.block = block
        self.returned = returned
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self.returned.append(self.block)


class Recycler:
    """Memory of arrays that are gone, by size, the last freed first: its pages may still be in a cache."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.free: dict[int, list[tuple[Block, float]]] = {}
        self.nbytes = 0
        """Bytes that nobody uses."""
        self.returned: deque[Block] = deque()
        """What has come back and was not yet looked at: whoever frees an array may be anywhere."""
        self.now = 0.0
        self.lock = Lock()

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A new array in row-major order, whose values are whatever was there."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LARGE:
            return np.empty(shape, dtype)
        size = rounded(nbytes)
        with self.lock:
            self._collect()
            waiting = self.free.get(size)
            if waiting:
                block, _ = waiting.pop()
                self.nbytes -= size
            else:
                block = np.empty(size, np.uint8)
        return np.asarray(_Lease(block, self.returned))[:nbytes].view(dtype).reshape(shape)

    def trim(self, now: float) -> None:
        """Give up what nobody has wanted for a while; `now` in seconds, from any clock that goes on."""
        with self.lock:
            self.now = now
            self._collect()
            for size, waiting in list(self.free.items()):
                lasting = [(block, since) for block, since in waiting if now - since < IDLE]
                self.nbytes -= size * (len(waiting) - len(lasting))
                if lasting:
                    self.free[size] = lasting
                else:
                    del self.free[size]

    def _collect(self) -> None:
        while self.returned:
            block = self.returned.popleft()
            if self.nbytes + block.size <= self.kept:
                self.free.setdefault(block.size, []).append((block, self.now))
                self.nbytes += block.size


def rounded(nbytes: int) -> int:
    """A size of block that holds so many bytes and at most an eighth more, so that nearly equal arrays share memory."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
