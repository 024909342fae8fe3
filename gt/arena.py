"""Slots of shared memory, and to whom they are lent: the books without the memory, which `shared.py` has.

All slots are of one size and there is a fixed number of them. The one freed last is lent next, because its pages are in
place and in a cache: a page touched for the first time costs ten times a copy. Nobody waits for a slot: when none is
free the sender takes another way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Loan(NamedTuple):
    """A slot in use, and the workers that have not read it yet."""

    slot: int
    readers: set[int]


class Arena:
    """Which slots are free, and who still reads the others. Loans' numbers begin behind `last`, and are never used again."""

    def __init__(self, slots: int, last: int = 0) -> None:
        self.slots = slots
        self.free = list(range(slots - 1, -1, -1))
        self.loans: dict[int, Loan] = {}
        self.last = last

    def lend(self, readers: Iterable[int]) -> tuple[int, int] | None:
        """(the loan's number, its slot) for these workers to read, or None when all slots are in use."""
        if not self.free:
            return None
        self.last += 1
        slot = self.free.pop()
        self.loans[self.last] = Loan(slot, set(readers))
        return self.last, slot

    def back(self, reader: int, loans: Iterable[int]) -> None:
        """`reader` has read these; what it does not hold it cannot give back."""
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
