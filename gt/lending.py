"""Bulk data in another process' memory: what a worker keeps of what a client shows it.

A client's memory (`pool.py`) is mapped once, and stays mapped while the client is there, so that its pages are in place. A tensor
that was put *is* the client's range; when the last array that reads it is gone, the client is told.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from .errors import ProtocolError
from .memfd import BULK, machine, mapped

ALIGNED: Final = 64
"""Bytes at multiples of which a tensor begins in shared memory."""
Array = np.ndarray[Any, Any]


class _Loan:
    """Who holds a client's range while some array reads it: NumPy keeps this alive for as long."""

    __slots__ = ("__array_interface__", "memory", "returned", "token")

    def __init__(self, memory: mmap.mmap, found: Array, returned: deque[Any], token: Any) -> None:
        self.memory = memory
        self.returned = returned
        self.token = token
        self.__array_interface__ = found.__array_interface__

    def __del__(self) -> None:
        self.returned.append(self.token)


class Borrower:
    """Clients' memory, as far as it is used here: the last that each has shown."""

    def __init__(self) -> None:
        self.machine = machine()
        self.maps: dict[int, tuple[str, mmap.mmap]] = {}
        self.returned: deque[Any] = deque()
        """The tokens of what is read no more. Whoever frees an array may be in any thread."""

    def read(
        self, client: int, where: str, offset: int, shape: Sequence[int], dtype: np.dtype[Any], token: Any
    ) -> Array:
        """An array in a client's memory, not writable; `token` is `returned` when it and all its views are gone.

        Raises `OSError` or `ValueError` when the memory cannot be opened, `ProtocolError` when there are no such bytes.
        """
        memory, found = self._found(client, where, offset, prod(shape) * dtype.itemsize)
        found.flags.writeable = False
        lent = np.asarray(_Loan(memory, found, self.returned, token))
        return lent.view(dtype).reshape(tuple(shape))

    def write(self, client: int, where: str, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array in a client's memory, to be written to. Raises as `read` does."""
        _, found = self._found(client, where, offset, prod(shape) * dtype.itemsize)
        return found.view(dtype).reshape(tuple(shape))

    def forget(self, client: int) -> None:
        """Let a client's memory go, with the last array that reads it."""
        self.maps.pop(client, None)

    def _found(self, client: int, where: str, offset: int, nbytes: int) -> tuple[mmap.mmap, Array]:
        known = self.maps.get(client)
        memory = known[1] if known is not None and known[0] == where else mapped(where, BULK, write=True)
        if offset % ALIGNED or offset + nbytes > len(memory):
            raise ProtocolError(f"there is no shared memory at {offset} + {nbytes}")
        self.maps[client] = where, memory
        return memory, np.ndarray((nbytes,), np.uint8, memory, offset)
