"""Bulk data that a client lends in shared memory: read where it lies, given back once, wrong loans refused."""

from __future__ import annotations

import random

import msgpack
import numpy as np
import pytest
from bulk_wire import CLIENT, ROOM, U8, WORKER, Wire, borrowed, box_of, drawn, no_memory

from gt.errors import ProtocolError
from gt.wire.bulk import (
    ALL_WORKERS,
    CHUNK_BYTES,
    DATA,
    LENT,
    MAX_EARLY_GRANTS,
    MAX_IN_FLIGHT_BYTES,
    PUT,
    Inbox,
    Key,
    Outbox,
    read_header,
)
from gt.wire.shared_memory.lending import IDLE_MAP_SECONDS, Borrower
from gt.wire.shared_memory.memfd import machine
from gt.wire.shared_memory.pool import Pool


def test_a_put_is_lent_until_the_last_view_of_it_is_gone() -> None:
    """The worker's array is the client's memory, which is the client's own again when no view of it is left."""
    wire, key, data = borrowed()
    got = wire.whole.pop(key)
    assert got is not None
    view = got.reshape(10, -1)[3]
    np.testing.assert_array_equal(view, data.reshape(10, -1)[3])
    assert wire.client.outbox.near == {0}
    del got
    wire.returned()
    assert key in wire.client.outbox.lent
    del view
    wire.returned()
    assert wire.client.outbox.lent == {}


def test_who_has_borrowed_is_lent_to_before_it_asks() -> None:
    """The loan may come before the stream is opened, is found then, and coming again changes nothing."""
    wire, _, data = borrowed()
    key = (PUT, 1, 2, 0)
    room = wire.pool.room(data.nbytes)
    assert room is not None
    room[...] = data
    for frames in wire.client.outbox.add(WORKER, key, room, box_of(data.shape), wire.pool.place(room)):
        wire.post(frames, CLIENT)
    wire.deliver(WORKER)
    assert list(wire.worker.inbox.early) == [key]
    grant = wire.worker.inbox.open(CLIENT, key, box_of(data.shape), U8, no_memory)
    whole, answers = wire.worker.opened(key)
    assert whole is not None
    assert (whole[0], list(answers), wire.worker.inbox.early) == (key, [], {})
    np.testing.assert_array_equal(whole[1], data)
    wire.post(grant, WORKER)
    wire.deliver_all(random.Random(0))
    assert key in wire.client.outbox.lent
    wire.worker.drop_client(1)
    assert wire.worker.inbox.early == {}
    wire.returned()
    wire.deliver_all(random.Random(0))
    assert key in wire.client.outbox.lent, "its array is still read, though the loan came again"
    del whole
    wire.returned()
    wire.deliver_all(random.Random(0))
    assert key not in wire.client.outbox.lent


def test_loans_that_nobody_took_are_given_back_when_their_client_goes() -> None:
    """A client that goes on under another number gets its memory back, whether or not it has broken the stream off."""
    wire, _, data = borrowed()
    for tensor in (2, 3):
        room = wire.pool.room(data.nbytes)
        assert room is not None
        place = wire.pool.place(room)
        for frames in wire.client.outbox.add(WORKER, (PUT, 1, tensor, 0), room, box_of(data.shape), place):
            wire.post(frames, CLIENT)
        wire.client.outbox.break_off(-1, renumbered=True)
        wire.client.outbox.near.add(0)
    wire.deliver(WORKER)
    wire.deliver(WORKER)
    assert {(PUT, 1, 2, 0), (PUT, 1, 3, 0)} <= set(wire.client.outbox.returning)
    wire.worker.drop_client(1)
    wire.returned()
    wire.deliver_all(random.Random(0))
    assert not {(PUT, 1, 2, 0), (PUT, 1, 3, 0)} & set(wire.client.outbox.returning)


def test_a_loan_that_came_twice_is_given_back_once_nobody_reads_it() -> None:
    """A worker that forgets the client may still hold what it was lent, as a mark does: not before that is gone."""
    wire, _, data = borrowed()
    key = (PUT, 1, 2, 0)
    wire.put(key, data)
    wire.deliver_all(random.Random(0))
    held = wire.whole[key]
    place = wire.client.outbox.lent[key].place
    assert held is not None
    assert place is not None
    wire.post(next(wire.client.outbox._lend(key, wire.client.outbox.lent[key], place)), CLIENT)
    wire.deliver_all(random.Random(0))
    wire.worker.drop_client(1)
    wire.returned()
    wire.deliver_all(random.Random(0))
    assert key in wire.client.outbox.lent
    del wire.whole[key], held
    wire.returned()
    wire.deliver_all(random.Random(0))
    assert key not in wire.client.outbox.lent


def test_a_loan_that_was_forgotten_comes_again() -> None:
    """What came too early and was too much is asked for by the stream's grant."""
    wire, _, data = borrowed()
    key = (PUT, 1, 2, 0)
    wire.put(key, data)
    wire.queues[WORKER].popleft()
    wire.deliver_all(random.Random(0))
    got = wire.whole[key]
    assert got is not None
    np.testing.assert_array_equal(got, data)


def test_a_loan_of_another_box_is_not_taken() -> None:
    """Whoever guesses wrongly how a tensor is cut lends in vain: the right part comes when it knows."""
    wire, _, data = borrowed()
    key = (PUT, 1, 2, 0)
    room = wire.pool.room(data.nbytes)
    assert room is not None
    place = wire.pool.place(room)
    room[...] = 1
    outbox = wire.client.outbox
    half = data.size // 2
    for frames in outbox.add(WORKER, key, room[:half], [(half, 2 * half)], place):
        wire.post(frames, CLIENT)
    wire.post(wire.worker.inbox.open(CLIENT, key, [(0, half)], U8, no_memory), WORKER)
    wire.deliver_all(random.Random(0))
    assert key not in wire.whole
    outbox.retract(key)
    room[...] = 2
    for frames in outbox.add(WORKER, key, room[:half], [(0, half)], place):
        wire.post(frames, CLIENT)
    wire.deliver_all(random.Random(0))
    got = wire.whole[key]
    assert got is not None
    assert (got == 2).all()


def test_loans_before_their_streams_are_bounded() -> None:
    """Who lends what nobody asked for fills a table of bounded size, and nothing is mapped."""
    inbox = Inbox(Borrower())
    for tensor in range(2 * MAX_EARLY_GRANTS):
        assert inbox.lent(CLIENT, (PUT, 1, tensor, 0), 0, b"x") == (False, [])
    assert list(inbox.early) == [(PUT, 1, tensor, 0) for tensor in range(MAX_EARLY_GRANTS, 2 * MAX_EARLY_GRANTS)]
    assert inbox.lent(CLIENT, (PUT, 1, 0, 0), 0, bytes(5000)) == (False, [])
    assert inbox.borrower is not None
    assert inbox.borrower.maps == {}


def test_a_worker_that_cannot_open_the_memory_gets_the_bytes() -> None:
    """What was lent in vain goes in frames, and the next is not taken for granted."""
    wire, key, data = Wire(near=True, blind=True), (PUT, 1, 1, 0), drawn(4, 3 * CHUNK_BYTES)
    made = wire.put(key, data)
    wire.deliver_all(random.Random(1))
    np.testing.assert_array_equal(made, data)
    assert wire.kinds.count(LENT) == 1
    assert wire.client.outbox.near == set()
    assert wire.idle()


def test_another_machine_gets_the_bytes() -> None:
    """Memory is lent only to who says that it is on this very machine."""
    outbox, key = Outbox(machine()), (PUT, 1, 1, 0)
    outbox.add(CLIENT, key, drawn(1, 10), [(0, 10)], ("here", 0))
    ((_, header, payload),) = outbox.granted(CLIENT, key, MAX_IN_FLIGHT_BYTES, b"elsewhere")
    assert read_header(header)[0] == DATA
    assert len(payload) == 10


def test_only_who_borrowed_gives_back_or_refuses() -> None:
    """A stranger's word about a loan changes nothing."""
    wire, key, _ = borrowed()
    outbox = wire.client.outbox
    outbox.back(b"stranger", key)
    outbox.back(WORKER, (PUT, 1, 99, 0))
    assert list(outbox.granted(b"stranger", key, MAX_IN_FLIGHT_BYTES)) == []
    assert list(outbox.lent) == [key]
    outbox.back(WORKER, key)
    assert outbox.lent == {}


@pytest.mark.parametrize(
    ("peer", "where", "offset"),
    [
        (b"other", "{where}", 0),
        (CLIENT, "{where}", ROOM * 100),
        (CLIENT, "{where}", 8),
        (CLIENT, "x" * 5000, 0),
    ],
    ids=["from a stranger", "outside of the memory", "crooked", "endless"],
)
def test_wrong_loans_are_refused(peer: bytes, where: str, offset: int) -> None:
    """What another lends, or lies nowhere, or begins where no array can, is refused and changes nothing."""
    pool, inbox, key = Pool(ROOM), Inbox(Borrower()), (PUT, 1, 1, 0)
    room = pool.room(100_000)
    assert room is not None
    found = pool.place(room)
    assert found is not None
    inbox.open(CLIENT, key, [(0, 100_000)], U8, no_memory)
    with pytest.raises(ProtocolError):
        inbox.lent(peer, key, offset, msgpack.packb([where.format(where=found[0]), [[0, 100_000]]]))
    for nonsense in (
        b"",
        b"\xc1",
        msgpack.packb([found[0]]),
        msgpack.packb([found[0], [[1]]]),
        msgpack.packb([7, [[0, 1]]]),
    ):
        with pytest.raises(ProtocolError):
            inbox.lent(CLIENT, key, found[1], nonsense)
    assert inbox.lent(CLIENT, key, found[1], msgpack.packb([found[0], [[0, 100_000]]])) == (True, [])


def test_a_borrower_keeps_one_memory_of_a_client() -> None:
    """A client that shows another memory is done with the one before, which stays as long as it is read."""
    borrower, pools = Borrower(), [Pool(ROOM), Pool(ROOM)]
    seen = []
    for number, pool in enumerate(pools):
        room = pool.room(100_000)
        assert room is not None
        room[...] = number
        place = pool.place(room)
        assert place is not None
        seen.append(borrower.read(7, *place, (100_000,), U8, number))
    assert len(borrower.maps) == 1
    del room, pool
    pools.clear()
    borrower.forget(7)
    borrower.forget(7)
    assert [array[0] for array in seen] == [0, 1]
    seen.clear()
    assert sorted(borrower.returned) == [0, 1]


def test_memory_of_a_client_that_uses_another_worker_now_is_unmapped() -> None:
    """A session that has moved to other workers says nothing here any more; who goes on is mapped once."""
    pools = [Pool(ROOM), Pool(ROOM)]
    places = []
    for pool in pools:
        place = pool.place(pool.empty((100_000,), U8))
        assert place is not None
        places.append(place)
    borrower = Borrower()
    for client, place in enumerate(places):
        borrower.read(client, *place, (100_000,), U8, client)
    borrower.trim(100.0)
    assert len(borrower.maps) == 2
    kept = borrower.maps[0]
    borrower.read(0, *places[0], (100_000,), U8, 0)
    borrower.trim(100.0 + IDLE_MAP_SECONDS / 2)
    assert len(borrower.maps) == 2
    borrower.trim(100.0 + IDLE_MAP_SECONDS)
    assert borrower.maps == {0: kept}
    borrower.trim(100.0 + 2 * IDLE_MAP_SECONDS)
    assert borrower.maps == {}


@pytest.mark.parametrize("lost", [-1, 1, ALL_WORKERS])
def test_loans_of_lost_workers_are_had_back_when_no_mark_refers_to_them(lost: int) -> None:
    """Others give theirs back themselves, also after their streams were broken off."""
    outbox = Outbox(machine())
    pool = Pool(ROOM)
    keys: list[Key] = [(PUT, 1, 7, worker) for worker in range(3)]
    for key in keys:
        room = pool.room(CHUNK_BYTES)
        assert room is not None
        outbox.near.add(key[3])
        assert len(list(outbox.add(b"worker %d" % key[3], key, room, [(0, CHUNK_BYTES)], pool.place(room)))) == 1
    outbox.add(WORKER, (PUT, 1, 8, 0), drawn(0, 100))
    assert set(outbox.lent) == set(keys)
    outbox.break_off(lost, renumbered=True)
    assert (outbox.streams, outbox.lent, outbox.near) == ({}, {}, set())
    assert set(outbox.returning) == set(keys), "until then a mark may refer to them"
    outbox.back(b"worker 2", keys[2])
    outbox.give_up_lost()
    left = {key for key in keys[:2] if lost != ALL_WORKERS and key[3] != lost}
    assert set(outbox.returning) == left
    outbox.give_up_lost()
    assert set(outbox.returning) == left
    for key in left:
        outbox.back(b"worker %d" % key[3], key)
    assert outbox.returning == {}


def test_loans_to_later_workers_are_not_given_up_with_earlier_ones() -> None:
    """All are lost at one moment: who is lent to afterwards has another number."""
    outbox = Outbox(machine())
    pool = Pool(ROOM)
    for worker in (0, 1):
        room = pool.room(CHUNK_BYTES)
        assert room is not None
        outbox.near.add(worker)
        list(outbox.add(WORKER, (PUT, 1, 7, worker), room, [(0, CHUNK_BYTES)], pool.place(room)))
        outbox.break_off(ALL_WORKERS if worker == 0 else -1, renumbered=True)
    outbox.give_up_lost()
    assert set(outbox.returning) == {(PUT, 1, 7, 1)}


def test_what_was_granted_before_a_stream_was_added_outlives_the_loss_of_another_worker() -> None:
    """A grant may be faster than the word that a worker was lost, and than that where a put made since then goes."""
    for renumbered in (False, True):
        outbox = Outbox(machine())
        for worker in (0, 1):
            list(outbox.granted(b"worker %d" % worker, (PUT, 1, 7, worker), CHUNK_BYTES))
        outbox.break_off(0, renumbered=renumbered)
        sent = [list(outbox.add(b"worker %d" % worker, (PUT, 1, 7, worker), drawn(0, 100))) for worker in (0, 1)]
        assert [len(frames) for frames in sent] == [0, 0 if renumbered else 1]
