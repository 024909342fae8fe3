"""Shared memory for bulk data between processes of one machine: slots that a sender fills and a receiver reads.

The sender's `Lender` has the slots, the receiver's `Borrower` maps them. Both do without where there is no such memory or
it cannot be opened: then data travels in the frames themselves.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Final

from .arena import Arena
from .errors import ProtocolError
from .memfd import SHARED_MEMORY, Memory, machine, mapped

SLOT: Final = 4 << 20
"""Bytes of one slot: large enough that what is said about it costs nothing, small enough to stay in a cache."""
MAX_SLOTS: Final = 16
"""Slots that one process lends at most."""
MAX_MAPPED: Final = 64
"""Other processes' memories that are kept mapped; the one used longest ago goes first."""
_READER: Final = 0


class Lender:
    """The slots of this process. Memory is made when something is lent for the first time; `limit` 0: there is none."""

    def __init__(self, limit: float = SHARED_MEMORY) -> None:
        slots = min(MAX_SLOTS, int(limit) // SLOT)
        self.machine = machine() if slots else ""
        self.arena = Arena(slots if self.machine else 0)
        self.memory: Memory | None = None
        self.users: dict[int, Any] = {}
        """By loan what it was lent for."""

    def lend(self, user: Any) -> tuple[int, str, int, memoryview] | None:
        """(the loan's number, where the memory is, the slot's offset, the slot), or None while all are in use."""
        lent = self.arena.lend((_READER,))
        if lent is None:
            return None
        if self.memory is None:
            self.memory = Memory(self.arena.slots * SLOT, "bulk-")
        loan, slot = lent
        self.users[loan] = user
        return loan, self.memory.where, slot * SLOT, memoryview(self.memory.map)[slot * SLOT : (slot + 1) * SLOT]

    def back(self, loan: int) -> None:
        """A slot was read; or was not lent, which changes nothing."""
        if self.users.pop(loan, None) is not None:
            self.arena.back(_READER, (loan,))

    def drop(self, gone: Callable[[Any], bool]) -> None:
        """Who borrowed for any of these will not say that it has read."""
        for loan in [loan for loan, user in self.users.items() if gone(user)]:
            self.back(loan)


class Borrower:
    """Other processes' memory, as far as it is read here."""

    def __init__(self) -> None:
        self.machine = machine()
        self.maps: dict[str, mmap.mmap] = {}
        self.clients: dict[str, int] = {}
        """For which client each was mapped last."""

    def view(self, where: str, offset: int, nbytes: int, client: int) -> memoryview:
        """Bytes that another process lends, not writable. Raises `OSError` or `ValueError` when its memory cannot be opened,
        `ProtocolError` when there are no such bytes."""
        memory = self.maps.pop(where, None) or mapped(where)
        self.maps[where] = memory
        self.clients[where] = client
        if len(self.maps) > MAX_MAPPED:
            self._unmap(next(iter(self.maps)))
        if offset + nbytes > len(memory):
            raise ProtocolError(f"there is no shared memory at {offset} + {nbytes}")
        return memoryview(memory)[offset : offset + nbytes]

    def forget(self, client: int | None = None) -> None:
        """Unmap what was mapped for a client (None: for any): memory stays as long as somebody has it mapped."""
        for where in [where for where, other in self.clients.items() if client in (None, other)]:
            self._unmap(where)

    def _unmap(self, where: str) -> None:
        del self.maps[where], self.clients[where]
