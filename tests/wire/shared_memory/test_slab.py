"""Lent slots: whatever is lent, read, and lost, no slot is lent twice, and all of them come back."""

from __future__ import annotations

from effort import cases
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gt.wire.shared_memory.slab import Slab

SLOTS = 4
READERS = st.sets(st.integers(1, 3), min_size=1)


class Lending(RuleBasedStateMachine):
    """An slab beside a model of it: for each loan its slot and who has not read it."""

    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab(SLOTS)
        self.model: dict[int, tuple[int, set[int]]] = {}

    @rule(readers=READERS)
    def lend(self, readers: set[int]) -> None:
        lent = self.slab.lend(readers)
        assert (lent is None) == (len(self.model) == SLOTS), "a slot is had exactly when one is free"
        if lent is not None:
            number, slot = lent
            assert number not in self.model
            assert slot not in [taken for taken, _ in self.model.values()]
            self.model[number] = slot, set(readers)

    @rule(reader=st.integers(0, 4), loans=st.lists(st.integers(0, 40), max_size=3))
    def read(self, reader: int, loans: list[int]) -> None:
        """Loans that are read twice, by strangers, or were never made, change nothing."""
        self.slab.back(reader, loans)
        for number in loans:
            self._without(number, reader)

    @rule(reader=st.integers(0, 4))
    def lose(self, reader: int) -> None:
        self.slab.lost(reader)
        for number in list(self.model):
            self._without(number, reader)

    def _without(self, number: int, reader: int) -> None:
        _, readers = self.model.get(number, (0, set()))
        readers.discard(reader)
        if not readers:
            self.model.pop(number, None)

    @invariant()
    def agree(self) -> None:
        self.slab.check()
        assert {number: (loan.slot, loan.readers) for number, loan in self.slab.loans.items()} == self.model

    def teardown(self) -> None:
        for reader in range(5):
            self.slab.lost(reader)
        self.slab.check()
        assert sorted(self.slab.free) == list(range(SLOTS))


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=cases(30), stateful_step_count=30)


def test_the_slot_that_was_freed_last_is_lent_next() -> None:
    """Its pages are warm."""
    slab = Slab(3)
    first, second = slab.lend([1]), slab.lend([1])
    assert first is not None
    assert second is not None
    slab.back(1, [first[0]])
    again = slab.lend([2])
    assert again is not None
    assert again[1] == first[1]
    assert again[0] != first[0]
