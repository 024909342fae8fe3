"""The steps of a call are its own, whatever has run before it."""

from __future__ import annotations

import gc

from measured_calls import counted_steps

USUAL = gc.get_threshold()


class Cycle:
    """Garbage that only the collector finds, and whose end takes lines of Python."""

    ended = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Cycle.ended += 1


def allocates() -> None:
    """Allocate what lets the collector run many times, in three lines."""
    gc.set_threshold(*USUAL)
    kept = [[] for _ in range(20_000)]
    kept.clear()


def test_garbage_of_others_is_not_collected_within_a_counted_call() -> None:
    alone = counted_steps(allocates)
    gc.collect()
    gc.set_threshold(1_000_000)
    try:
        for _ in range(1000):
            Cycle()
        assert Cycle.ended == 0
        assert counted_steps(allocates) == alone
    finally:
        gc.set_threshold(*USUAL)
    assert gc.isenabled()
    gc.collect()
    assert Cycle.ended == 1000
