"""Fetches on their way in: offered beside the question to who had the last such tensor, and right whoever has this one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.client.session.bulk_fetches import BulkFetches
from gt.ir.dtypes import float64
from gt.ir.spec import Spec, pack_spec, spec
from gt.wire import messages as m
from gt.wire.bulk import GET, Bulk, Frames, Key
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.pool import Pool

SIZE = 200
SQUARE = spec(float64, (SIZE, SIZE))
WHOLE = [[0, SIZE], [0, SIZE]]
LEFT, RIGHT = [[0, SIZE], [0, 120]], [[0, SIZE], [120, SIZE]]


def numbers(start: float) -> np.ndarray[Any, Any]:
    return start + np.arange(SIZE * SIZE, dtype=np.float64).reshape(SIZE, SIZE)


class Rooms:
    """A client and three workers, of which each may have a part; bulk frames wait until they are delivered."""

    def __init__(self, *, near: bool = True) -> None:
        self.workers = {b"w%d" % n: Bulk(borrower=Borrower() if near else None) for n in range(3)}
        self.bulk = Bulk()
        self.fetches = BulkFetches(Pool(256 << 20), self.bulk.inbox)
        self.fetches.client = 1
        self.wire: list[tuple[bytes, bytes, Frames]] = []
        self.requests = 0

    def post(self, source: bytes, frames: Any) -> None:
        self.wire += [(source, target, (source, header, bytes(data))) for target, header, data in frames]

    def deliver(self) -> None:
        """Everything, in order; what is answered too."""
        while self.wire:
            _, target, frames = self.wire.pop(0)
            if target == b"client":
                whole, answers = self.bulk.heard(list(frames))
                if whole is not None:
                    self.fetches.arrived(*whole)
                self.post(b"client", answers)
            else:
                self.post(target, self.workers[target].heard(list(frames))[1])

    def ask(self, known: Spec = SQUARE) -> tuple[int, np.ndarray[Any, Any] | None]:
        self.requests += 1
        array, frames = self.fetches.offer(self.requests, known)
        self.post(b"client", frames)
        return self.requests, array

    def has(self, request: int, worker: int, array: np.ndarray[Any, Any], box: Any) -> m.Value:
        """A worker has a part, and its word about that will come."""
        part = array[tuple(slice(*pair) for pair in box)]
        key = (GET, 1, request, worker)
        self.post(b"w%d" % worker, self.workers[b"w%d" % worker].outbox.add(b"client", key, part))
        return m.Value(request, pack_spec(SQUARE), 1, box, worker, b"w%d" % worker, True, b"")

    def tell(self, value: m.Value, array: np.ndarray[Any, Any], done: list[int]) -> None:
        self.post(b"client", self.fetches.part(value, array, lambda: done.append(value.worker)))

    def idle(self) -> bool:
        boxes = (self.bulk.inbox.streams, self.fetches.arriving, self.fetches.offered)
        return not any(boxes) and not any(each.outbox.streams for each in self.workers.values())


def fetched(
    rooms: Rooms, expected: np.ndarray[Any, Any], holders: list[tuple[int, Any]], choice: random.Random
) -> bool:
    """One fetch, with frames delivered now or later; whether its place was offered before anybody had answered."""
    request, array = rooms.ask()
    ahead = array is not None
    if choice.random() < 0.5:
        rooms.deliver()
    values = [rooms.has(request, worker, expected, box) for worker, box in holders]
    if array is None:
        array = rooms.fetches.pool.empty(expected.shape, expected.dtype)
        array[...] = -1
    done: list[int] = []
    for value in values:
        if choice.random() < 0.5:
            rooms.deliver()
        rooms.tell(value, array, done)
    rooms.deliver()
    rooms.fetches.settle(request)
    assert sorted(done) == sorted(worker for worker, _ in holders)
    np.testing.assert_array_equal(array, expected)
    return ahead


PLACES = st.sampled_from([[(0, WHOLE)], [(1, WHOLE)], [(0, LEFT), (1, RIGHT)], [(2, RIGHT), (0, LEFT)]])


@given(st.lists(PLACES, min_size=1, max_size=8), st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=cases(30))
def test_a_fetch_is_right_whoever_was_thought_to_have_it(places: list[Any], seed: int, near: bool) -> None:
    """However frames and words interleave, and wherever the tensor is this time: it comes whole, and nothing is left."""
    rooms, choice = Rooms(near=near), random.Random(seed)
    for turn, holders in enumerate(places):
        fetched(rooms, numbers(turn), holders, choice)
        assert rooms.idle()


def test_who_had_the_last_is_offered_the_next_beside_the_question() -> None:
    """Then the values are there before the worker's word about them; a change of worker is noticed."""
    rooms, choice = Rooms(), random.Random(0)
    assert not fetched(rooms, numbers(0), [(0, WHOLE)], choice)
    request, array = rooms.ask()
    assert array is not None
    rooms.deliver()
    value = rooms.has(request, 0, numbers(1), WHOLE)
    rooms.deliver()
    np.testing.assert_array_equal(array, numbers(1))
    done: list[int] = []
    rooms.tell(value, array, done)
    assert (done, rooms.wire) == ([0], [])
    assert fetched(rooms, numbers(2), [(1, WHOLE)], choice)
    assert rooms.fetches.known[SQUARE] == (1, b"w1")
    assert rooms.ask(spec(float64, (3, 3)))[1] is None, "what is small comes with its message"


def test_an_offer_that_was_forgotten_comes_again() -> None:
    """A worker may have had too many offers; its word that it has the tensor brings another."""
    rooms = Rooms()
    fetched(rooms, numbers(0), [(0, WHOLE)], random.Random(0))
    request, array = rooms.ask()
    assert array is not None
    rooms.deliver()
    rooms.workers[b"w0"].outbox.offers.clear()
    done: list[int] = []
    rooms.tell(rooms.has(request, 0, numbers(1), WHOLE), array, done)
    rooms.deliver()
    assert done == [0]
    np.testing.assert_array_equal(array, numbers(1))


@pytest.mark.parametrize("writes", ["before", "after", "never"])
def test_memory_of_a_fetch_that_failed_is_not_used_again_while_somebody_may_write_to_it(writes: str) -> None:
    """The tensor is poisoned somewhere; a worker that holds a sound copy writes it all the same, to nobody's array."""
    rooms = Rooms()
    fetched(rooms, numbers(0), [(0, WHOLE)], random.Random(0))
    request, array = rooms.ask()
    assert array is not None
    rooms.deliver()
    if writes == "before":
        rooms.has(request, 0, numbers(1), WHOLE)
        rooms.deliver()
    rooms.fetches.settle(request)
    del array
    others = [rooms.fetches.pool.empty((SIZE, SIZE), np.dtype(np.float64)) for _ in range(4)]
    for other in others:
        other[...] = 5
    if writes == "after":
        value = rooms.has(request, 0, numbers(1), WHOLE)
        rooms.deliver()
        assert rooms.fetches.ignore(value) == []
        rooms.deliver()
    assert all((other == 5).all() for other in others)
    assert rooms.idle()


def test_a_part_that_nobody_waits_for_is_heard_to_its_end() -> None:
    """Its worker gets rid of it."""
    rooms = Rooms()
    value = rooms.has(1, 0, numbers(1), LEFT)
    rooms.post(b"client", rooms.fetches.ignore(value))
    rooms.deliver()
    assert rooms.idle()


def test_when_a_worker_is_gone_nothing_is_waited_for() -> None:
    rooms = Rooms()
    fetched(rooms, numbers(0), [(0, WHOLE)], random.Random(0))
    rooms.ask()
    key: Key = (GET, 1, rooms.requests, 0)
    assert key in rooms.fetches.arriving
    rooms.fetches.break_off()
    assert rooms.idle()
    assert rooms.fetches.known == {}
