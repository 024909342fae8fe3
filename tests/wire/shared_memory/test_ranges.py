"""Ranges of one memory: never in use twice, never more than was agreed, warm ones first, and whole again when all are back."""

from __future__ import annotations

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gt.wire.shared_memory.ranges import COLD_AFTER_SECONDS, PAGE_BYTES, Ranges, round_to_pages

SOME = 64 * PAGE_BYTES
LIMIT = 16 * SOME


class Using(RuleBasedStateMachine):
    """Ranges beside a list of who has which bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = Ranges(2 * LIMIT, LIMIT, LIMIT // 2)
        self.model: dict[int, int] = {}
        self.pages: dict[int, int] = {}
        """By offset the size of each range whose pages are there."""
        self.now = 0.0

    @rule(nbytes=st.one_of(st.integers(1, 5 * PAGE_BYTES), st.integers(1, LIMIT)))
    def take(self, nbytes: int) -> None:
        size = round_to_pages(nbytes)
        found = self.ranges.take(nbytes)
        self._look()
        if found is None:
            assert sum(self.model.values()) + size > LIMIT or self.ranges.used, "an empty memory has room for anything"
            return
        offset, warm = found
        assert all(offset + size <= start or start + taken <= offset for start, taken in self.model.items())
        assert warm == (self.pages.pop(offset, None) == size), "it is warm exactly when its pages are in place"
        assert offset % PAGE_BYTES == 0
        self.model[offset] = size

    @rule(which=st.integers(0, 1000))
    def back(self, which: int) -> None:
        if self.model:
            offset = list(self.model)[which % len(self.model)]
            self.pages[offset] = self.model.pop(offset)
            self.ranges.back(offset)
            self._look()

    @rule(seconds=st.floats(0, COLD_AFTER_SECONDS))
    def trim(self, seconds: float) -> None:
        self.now += seconds
        self.ranges.trim(self.now)
        self._look()

    def _look(self) -> None:
        while self.ranges.cooled:
            offset, size = self.ranges.cooled.pop()
            assert self.pages.pop(offset) == size, "pages are given up once, and whole"

    @invariant()
    def agree(self) -> None:
        self.ranges.check()
        assert self.ranges.used == self.model
        assert {offset: size for offset, (size, _) in self.ranges.warm.items()} == self.pages

    def teardown(self) -> None:
        for offset in list(self.model):
            self.ranges.back(offset)
        self.ranges.cool_all()
        self.ranges.check()
        assert self.ranges.cold == [(0, 2 * LIMIT)]


TestUsing = Using.TestCase
TestUsing.settings = settings(max_examples=cases(30), stateful_step_count=40)


def test_the_range_that_came_back_last_is_taken_next() -> None:
    """Its bytes may still be in a cache; one of nearly the same size will do."""
    ranges = Ranges(LIMIT, LIMIT, LIMIT)
    taken = [ranges.take(8 * PAGE_BYTES) for _ in range(3)]
    offsets = [found[0] for found in taken if found is not None]
    for offset in (offsets[0], offsets[2], offsets[1]):
        ranges.back(offset)
    assert ranges.take(8 * PAGE_BYTES - 5) == (offsets[1], True)
    assert ranges.take(8 * PAGE_BYTES) == (offsets[2], True)


def test_what_is_idle_gets_cold_and_what_is_in_use_does_not() -> None:
    ranges = Ranges(LIMIT, LIMIT, LIMIT)
    for _ in range(3):
        ranges.take(SOME)
    ranges.trim(100.0)
    ranges.back(0)
    ranges.back(2 * SOME)
    ranges.trim(99.0 + COLD_AFTER_SECONDS)
    assert ranges.take(SOME) == (2 * SOME, True)
    ranges.trim(100.0 + COLD_AFTER_SECONDS)
    assert ranges.cooled == [(0, SOME)]
    assert ranges.take(SOME) == (0, False)


def test_too_much_makes_room_among_what_is_warm_or_is_refused() -> None:
    ranges = Ranges(4 * LIMIT, LIMIT, LIMIT)
    first = ranges.take(LIMIT // 2)
    assert first is not None
    ranges.back(first[0])
    assert ranges.take(LIMIT + 1) is None
    assert ranges.cooled == [], "in vain nothing is given up"
    assert ranges.take(LIMIT) is not None
    assert ranges.cooled == [(first[0], LIMIT // 2)]
    assert ranges.take(1) is None


@pytest.mark.parametrize("nbytes", [1, PAGE_BYTES, PAGE_BYTES + 1, 1 << 20, 3 << 20, (1 << 28) + 1])
def test_sizes_are_whole_pages(nbytes: int) -> None:
    assert round_to_pages(nbytes) % PAGE_BYTES == 0


@given(st.integers(1, 1 << 40))
@settings(max_examples=cases(100))
def test_a_range_holds_what_is_asked_for_and_little_more(nbytes: int) -> None:
    assert nbytes <= round_to_pages(nbytes) <= nbytes * 65 / 64 + PAGE_BYTES
    assert round_to_pages(round_to_pages(nbytes)) == round_to_pages(nbytes)
