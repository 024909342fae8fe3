"""Puts on their way out: copied once, cut as the dispatcher says, waited for no longer than the program's array is needed."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.client.session.bulk_puts import BulkPut, BulkPuts
from gt.sharding.partition import Box
from gt.wire.bulk import LENT, MAX_IN_FLIGHT_BYTES, PUT, Outbox, read_header
from gt.wire.shared_memory.memfd import machine, map_memory
from gt.wire.shared_memory.pool import Pool

SIZE = 512
WHOLE: Box = ((0, SIZE), (0, SIZE))
HALVES: tuple[Box, ...] = (((0, 200), (0, SIZE)), ((200, SIZE), (0, SIZE)))
COLUMNS: tuple[Box, ...] = (((0, SIZE), (0, 300)), ((0, SIZE), (300, SIZE)))
HERE = machine().encode()


def started(limit: int = 256 << 20, *, keeps: bool = False) -> BulkPuts:
    return BulkPuts(Pool(limit), Outbox(machine()), keeps=keeps)


def numbers(start: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + SIZE * SIZE, dtype=np.float64).reshape(SIZE, SIZE)


def places(boxes: tuple[Box, ...]) -> tuple[tuple[int, bytes, Box], ...]:
    return tuple((number, b"w%d" % number, box) for number, box in enumerate(boxes))


def begin(puts: BulkPuts, tensor: int, array: np.ndarray[Any, Any]) -> list[Any]:
    """The dispatcher is told of a put; what left for workers at once."""
    return list(puts.begin(tensor, puts.prepare(array, "kind"), 1))


def put(puts: BulkPuts, tensor: int, array: np.ndarray[Any, Any], boxes: tuple[Box, ...]) -> None:
    """One put up to where the dispatcher has said how it is cut."""
    begin(puts, tensor, array)
    list(puts.cut(tensor, places(boxes), 1))


def borrow(puts: BulkPuts, tensor: int, worker: int, client: int = 1) -> np.ndarray[Any, Any]:
    """A worker on this machine grants, and sees what lies where it is told."""
    key = (PUT, client, tensor, worker)
    stream = puts.outbox.streams.get(key) or puts.outbox.lent[key]
    ((_, header, payload),) = puts.outbox.granted(b"w%d" % worker, key, MAX_IN_FLIGHT_BYTES, HERE)
    kind, _, offset = read_header(header)
    where, box = msgpack.unpackb(payload)
    assert (kind, box) == (LENT, [list(pair) for pair in stream.box])
    return np.ndarray(stream.array.shape, stream.array.dtype, map_memory(where), offset)


def test_the_first_put_waits_until_it_is_known_to_be_near() -> None:
    """The program's array is needed until the dispatcher has cut it, and until each worker is known to read it here."""
    puts, array = started(), numbers()
    begin(puts, 1, array)
    assert puts.sending(1)
    list(puts.cut(1, places(HALVES), 1))
    for worker, box in enumerate(HALVES):
        assert puts.sending(1)
        np.testing.assert_array_equal(borrow(puts, 1, worker), array[tuple(slice(*pair) for pair in box)])
    assert not puts.sending(1)


def test_the_next_put_leaves_at_once_and_waits_for_nobody() -> None:
    """Such another tensor goes where the last one went, before anybody has said so; the program may write to its array."""
    puts = started()
    put(puts, 1, numbers(), HALVES)
    for worker in (0, 1):
        borrow(puts, 1, worker)
    array = numbers(7)
    assert [(peer, read_header(header)[0]) for peer, header, _ in begin(puts, 2, array)] == [
        (b"w0", LENT),
        (b"w1", LENT),
    ]
    assert not puts.sending(2)
    array[...] = -1
    assert list(puts.cut(2, places(HALVES), 1)) == [], "it was right"
    assert not puts.sending(2)
    np.testing.assert_array_equal(borrow(puts, 2, 1), numbers(7)[200:])


def test_what_was_lent_to_the_wrong_worker_is_taken_back() -> None:
    """When the dispatcher says otherwise only right parts stay lent."""
    puts = started()
    put(puts, 1, numbers(), HALVES)
    for worker in (0, 1):
        borrow(puts, 1, worker)
    assert len(begin(puts, 2, numbers(7))) == 2
    list(puts.cut(2, ((5, b"w5", HALVES[0]), (1, b"w1", HALVES[1])), 1))
    assert {key[3] for key in puts.outbox.lent if key[2] == 2} == {1}
    assert {key[3] for key in puts.outbox.streams} == {5}
    np.testing.assert_array_equal(borrow(puts, 2, 5), numbers(7)[:200])


def test_when_workers_are_gone_nothing_goes_where_it_went() -> None:
    """What the dispatcher has still to cut goes where it says then; nothing is shown any more."""
    puts = started()
    put(puts, 1, numbers(), (WHOLE,))
    borrow(puts, 1, 0)
    assert len(begin(puts, 2, numbers(7))) == 1
    puts.break_off(-1, renumbered=True)
    assert (puts.outbox.lent, puts.known, dict(puts.shown), puts.outbox.near) == ({}, {}, {}, set())
    list(puts.cut(2, places((WHOLE,)), 1))
    np.testing.assert_array_equal(borrow(puts, 2, 0), numbers(7))


@given(st.permutations([(WHOLE,), HALVES, COLUMNS, (WHOLE, WHOLE), (HALVES[1], HALVES[0])]))
@settings(max_examples=cases(10))
def test_a_put_that_is_cut_otherwise_than_before_is_made_right(cuts: list[tuple[Box, ...]]) -> None:
    """Whatever was thought before, each worker gets its part of what the program's array was."""
    puts = started()
    for tensor, boxes in enumerate(cuts):
        array = numbers(tensor)
        begin(puts, tensor, array)
        if not puts.sending(tensor):
            array[...] = -1
        list(puts.cut(tensor, places(boxes), 1))
        for worker, box in enumerate(boxes):
            window = tuple(slice(*pair) for pair in box)
            np.testing.assert_array_equal(borrow(puts, tensor, worker), numbers(tensor)[window])


def test_a_replicated_put_is_copied_once() -> None:
    """Workers that hold the same read the same memory, which is free when the last of them has given it back."""
    puts = started()
    put(puts, 1, numbers(), (WHOLE, WHOLE, WHOLE))
    seen = [borrow(puts, 1, worker) for worker in range(3)]
    assert puts.pool.arena is not None
    assert len(puts.pool.arena.ranges.used) == 1
    assert puts.shown[1].shape == (SIZE, SIZE)
    for worker in range(3):
        assert (seen[worker] == numbers()).all()
        assert 1 in puts.shown
        puts.outbox.back(b"w%d" % worker, (PUT, 1, 1, worker))
    assert 1 not in puts.shown
    puts.pool.trim(0.0)
    assert puts.pool.arena.ranges.used == {}


def test_what_is_shown_cannot_be_written_to() -> None:
    """Nobody can make the worker's memory writable again, and a view of it keeps it from being used for another."""
    puts = started()
    put(puts, 1, numbers(), (WHOLE,))
    borrow(puts, 1, 0)
    view = puts.shown[1].view()
    for array in (view, view.base):
        assert array is not None
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    puts.outbox.back(b"w0", (PUT, 1, 1, 0))
    put(puts, 2, numbers(9), (WHOLE,))
    assert (view == numbers()).all()
    place = int(view.__array_interface__["data"][0])
    del view, array
    put(puts, 3, numbers(3), (WHOLE,))
    assert int(puts.shown[3].__array_interface__["data"][0]) == place


def test_without_memory_to_share_the_array_itself_is_sent() -> None:
    """Then the program waits until all of it has left."""
    puts, array = started(0), numbers()
    put(puts, 1, array, HALVES)
    assert puts.sending(1)
    assert np.shares_memory(puts.outbox.streams[PUT, 1, 1, 0].array, array)
    for worker in (0, 1):
        assert puts.sending(1)
        list(puts.outbox.granted(b"w%d" % worker, (PUT, 1, 1, worker), MAX_IN_FLIGHT_BYTES, HERE))
    assert not puts.sending(1)


def test_a_put_that_was_called_off_leaves_nothing() -> None:
    """Interrupted before or after it was cut, or refused by the dispatcher: its memory is free again."""
    puts = started()
    put(puts, 1, numbers(), (WHOLE,))
    puts.cancel(1)
    begin(puts, 2, numbers())
    puts.cancel(2)
    assert list(puts.cut(2, places((WHOLE,)), 1)) == []
    begin(puts, 3, numbers())
    assert list(puts.cut(3, [], 1)) == []
    assert (puts.waiting, puts.outbox.streams, puts.outbox.lent, dict(puts.shown)) == ({}, {}, {}, {})
    puts.pool.trim(0.0)
    assert puts.pool.arena is not None
    assert puts.pool.arena.ranges.used == {}


def rewind(puts: BulkPuts, kept: dict[int, BulkPut], lost: int) -> None:
    """A session goes back: its puts are sent again, as client 2."""
    puts.break_off(lost, renumbered=True)
    puts.pool.renew()
    puts.waiting.clear()
    puts.again(kept)


def test_what_was_lent_stays_after_a_rewind_until_it_is_given_back() -> None:
    """Survivors still read there, in memory that is given up range by range; what the lost worker had comes back with the next
    mark."""
    puts = started(keeps=True)
    put(puts, 1, numbers(), HALVES)
    put(puts, 2, numbers(9), (WHOLE,))
    seen, lost = borrow(puts, 1, 1), borrow(puts, 2, 0)
    borrow(puts, 1, 0)
    assert (lost == numbers(9)).all()
    rewind(puts, {}, 0)
    for tensor in range(3, 9):
        put(puts, tensor, numbers(tensor), (WHOLE,))
    np.testing.assert_array_equal(seen, numbers()[200:])
    np.testing.assert_array_equal(lost, numbers(9))
    puts.outbox.give_up_lost()
    assert not lost.any(), "its pages were given up"
    assert list(puts.outbox.granted(b"w1", (PUT, 1, 1, 1), MAX_IN_FLIGHT_BYTES, HERE)) == [], "it is of before"
    np.testing.assert_array_equal(seen, numbers()[200:])
    assert not puts.sending(1)
    puts.outbox.back(b"w1", (PUT, 1, 1, 1))
    assert not seen.any(), "nobody reads it"
    assert puts.outbox.returning == {}


@pytest.mark.parametrize("limit", [0, 256 << 20])
@pytest.mark.parametrize("boxes", [(WHOLE,), HALVES, COLUMNS])
def test_a_put_is_sent_again_as_it_was(limit: int, boxes: tuple[Box, ...]) -> None:
    """Whatever the program has done with its array since; through new memory, or in chunks."""
    puts, array = started(limit, keeps=True), numbers()
    known = puts.prepare(array, "kind")
    list(puts.begin(1, known, 1))
    list(puts.cut(1, places(boxes), 1))
    array[...] = -1
    for again, client in ((boxes, 2), (HALVES, 3)):
        rewind(puts, {1: known}, 0)
        assert list(puts.cut(1, places(again), client)) == []
        for worker, box in enumerate(again):
            expected = numbers()[tuple(slice(*pair) for pair in box)]
            if limit:
                np.testing.assert_array_equal(borrow(puts, 1, worker, client), expected)
                assert puts.pool.place(known.parts[box]) is not None, "in the new memory"
            else:
                key = (PUT, client, 1, worker)
                chunks = list(puts.outbox.granted(b"w%d" % worker, key, MAX_IN_FLIGHT_BYTES, HERE))
                assert b"".join(bytes(payload) for _, _, payload in chunks) == expected.tobytes()


def test_a_put_that_is_not_cut_yet_is_waited_for_after_a_rewind() -> None:
    """The program's array is still needed then."""
    puts, array = started(keeps=True), numbers()
    known = puts.prepare(array, "kind")
    list(puts.begin(1, known, 1))
    rewind(puts, {1: known}, -1)
    assert puts.sending(1)
    list(puts.cut(1, places((WHOLE,)), 2))
    np.testing.assert_array_equal(borrow(puts, 1, 0, 2), numbers())
    assert not puts.sending(1)


def test_a_put_that_was_refused_is_kept_as_it_was() -> None:
    """It may be accepted when it is sent again."""
    puts, array = started(keeps=True), numbers()
    known = puts.prepare(array, "kind")
    list(puts.begin(1, known, 1))
    assert list(puts.cut(1, (), 1)) == []
    array[...] = -1
    rewind(puts, {1: known}, -1)
    list(puts.cut(1, places((WHOLE,)), 2))
    np.testing.assert_array_equal(borrow(puts, 1, 0, 2), numbers())
