"""A slab: which slots of a shared memory are lent, and to whom. The memory itself is in `worker/transfer/shared_memory.py`.

There is a fixed number of slots, all of one size. The slot freed last is lent next, because its pages are mapped and in a
cache: touching a page for the first time costs ten times a copy. Nobody waits for a slot: when none is free, the sender
uses the socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Loan(NamedTuple):
    """A slot in use, and the workers that have not read it yet."""

    slot: int
    readers: set[int]


class Slab:
    """Which of `slots` slots are free, and who still reads the others. Loans are numbered from `last` + 1 on, never twice."""

    def __init__(self, slots: int, last: int = 0) -> None:
        self.slots = slots
        self.free = list(range(slots - 1, -1, -1))
        self.loans: dict[int, Loan] = {}
        self.last = last

    def lend(self, readers: Iterable[int]) -> tuple[int, int] | None:
        """Lend a slot to these workers: (the number of the loan, the slot), or None when all slots are in use."""
        if not self.free:
            return None
        self.last += 1
        slot = self.free.pop()
        self.loans[self.last] = Loan(slot, set(readers))
        return self.last, slot

    def back(self, reader: int, loans: Iterable[int]) -> None:
        """`reader` has read these loans; numbers of loans that it does not hold are ignored."""
        for number in loans:
            loan = self.loans.get(number)
            if loan is not None and reader in loan.readers:
                self._drop(number, loan, reader)

    def lost(self, reader: int) -> None:
        """`reader` will read nothing more."""
        for number, loan in list(self.loans.items()):
            if reader in loan.readers:
                self._drop(number, loan, reader)

    def _drop(self, number: int, loan: Loan, reader: int) -> None:
        loan.readers.discard(reader)
        if not loan.readers:
            del self.loans[number]
            self.free.append(loan.slot)

    def check(self) -> None:
        """The invariants: each slot is free once, or lent once, to somebody."""
        taken = [loan.slot for loan in self.loans.values()]
        assert sorted(self.free + taken) == list(range(self.slots))
        assert all(loan.readers for loan in self.loans.values())
