"""Bulk data in another process' memory: what a worker uses of the memory that a client shows it.

A client's memory (`pool.py`) is mapped once, and stays mapped while the client uses it, so that its pages stay mapped
too. A tensor that was put *is* the client's range; when the last array over it is gone, the client is told.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from gt.errors import ProtocolError

from .memfd import BULK_KIND, machine, map_memory

ALIGNMENT_BYTES: Final = 64
"""The alignment, in bytes, of tensors in shared memory."""
IDLE_MAP_SECONDS: Final = 10.0
"""A client's memory that is not used for so many seconds, or twice as many at most, is unmapped."""
Array = np.ndarray[Any, Any]


class BorrowedRange:
    """Holds a range of a client's memory while some array reads it: NumPy keeps this object alive for that long."""

    __slots__ = ("__array_interface__", "memory", "place", "returned", "token")

    def __init__(
        self, memory: mmap.mmap, found: Array, returned: deque[Any], token: Any, place: tuple[str, int]
    ) -> None:
        self.memory = memory
        self.place = place
        """The name of the memory, and the offset in it."""
        self.returned = returned
        self.token = token
        self.__array_interface__ = found.__array_interface__

    def __del__(self) -> None:
        self.returned.append(self.token)


class Borrower:
    """The clients' memories that are used here: for each client, the last one that it has shown."""

    def __init__(self) -> None:
        self.machine = machine()
        self.maps: dict[int, tuple[str, mmap.mmap]] = {}
        self.used: set[int] = set()
        """The clients whose memory was used since the last look."""
        self.looked = 0.0
        self.returned: deque[Any] = deque()
        """The tokens of loans that nobody reads any more. Arrays may be freed in any thread."""
        self.taken: set[Any] = set()
        """The tokens of loans that were not given back yet."""

    def read(
        self, client: int, where: str, offset: int, shape: Sequence[int], dtype: np.dtype[Any], token: Any
    ) -> Array:
        """A read-only array in a client's memory; when it and all its views are gone, `token` is added to `returned`.

        Raises `OSError` or `ValueError` if the memory cannot be opened, `ProtocolError` if it has no such bytes.
        """
        memory, found = self._found(client, where, offset, prod(shape) * dtype.itemsize)
        found.flags.writeable = False
        self.taken.add(token)
        lent = np.asarray(BorrowedRange(memory, found, self.returned, token, (where, offset)))
        return lent.view(dtype).reshape(tuple(shape))

    def write(self, client: int, where: str, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A writable array in a client's memory. Raises as `read` does."""
        _, found = self._found(client, where, offset, prod(shape) * dtype.itemsize)
        return found.view(dtype).reshape(tuple(shape))

    def forget(self, client: int) -> None:
        """Unmap a client's memory, once the last array over it is gone."""
        self.maps.pop(client, None)
        self.used.discard(client)

    def trim(self, now: float) -> None:
        """Unmap what was not used for a while: a session may have moved to other workers. `now` is in seconds, from any steady
        clock."""
        if now - self.looked >= IDLE_MAP_SECONDS:
            for client in self.maps.keys() - self.used:
                self.forget(client)
            self.used.clear()
            self.looked = now

    def _found(self, client: int, where: str, offset: int, nbytes: int) -> tuple[mmap.mmap, Array]:
        known = self.maps.get(client)
        memory = known[1] if known is not None and known[0] == where else map_memory(where, BULK_KIND, write=True)
        if offset % ALIGNMENT_BYTES or offset + nbytes > len(memory):
            raise ProtocolError(f"there is no shared memory at {offset} + {nbytes}")
        self.maps[client] = where, memory
        self.used.add(client)
        return memory, np.ndarray((nbytes,), np.uint8, memory, offset)


def lent_place(root: Array) -> tuple[str, int] | None:
    """Where the memory of an array lies that looks at no other array, if it is a client's."""
    base: Any = root.base
    return base.place if isinstance(base, BorrowedRange) else None


def copy_of(where: str, offset: int, nbytes: int) -> Array:
    """A copy of bytes of a client's memory. Raises `OSError` or `ValueError` if they are not there."""
    memory = map_memory(where, BULK_KIND)
    if offset < 0 or nbytes < 0 or offset + nbytes > len(memory):
        raise ValueError(f"there is no shared memory at {offset} + {nbytes}")
    return np.ndarray((nbytes,), np.uint8, memory, offset).copy()
