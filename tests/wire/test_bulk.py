"""Bulk streams in frames: whole under any interleaving, bounded, wrong ones refused."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import msgpack
import numpy as np
import pytest
from bulk_wire import CLIENT, U8, WORKER, Wire, drawn, far, into, no_memory
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.wire.bulk import (
    BACK,
    CHUNK_BYTES,
    DATA,
    GET,
    GRANT,
    LENT,
    MAX_IN_FLIGHT_BYTES,
    OFFER,
    PUT,
    WROTE,
    Inbox,
    Outbox,
    read_header,
)
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.memfd import machine

SIZES = st.lists(st.integers(100_000, 3 * CHUNK_BYTES), min_size=1, max_size=4)


@given(SIZES, st.integers(0, 1 << 32), st.sampled_from(["far", "near", "blind"]))
@settings(max_examples=cases(20))
def test_streams_are_whole_under_any_interleaving(sizes: list[int], seed: int, how: str) -> None:
    """However the frames of several streams interleave, each arrives whole and nothing is left behind."""
    wire, choice = Wire(near=how != "far", blind=how == "blind"), random.Random(seed)
    expected = {}
    for number, size in enumerate(sizes):
        kind, data = choice.choice([PUT, GET]), drawn(number, size)
        key = (kind, 1, number, 0)
        expected[key] = (data, (wire.put if kind == PUT else wire.get)(key, data))
    wire.deliver_all(choice)
    assert sorted(wire.whole) == sorted(expected)
    for key, (data, made) in expected.items():
        got = wire.whole[key]
        np.testing.assert_array_equal(made if got is None else got, data)
        if how == "near" and got is not None:
            assert not got.flags.writeable
            assert got.base is not None, "nobody writes to it in place"
    if how == "near":
        assert DATA not in wire.kinds, "no byte travels"
        puts = {key for key in expected if key[0] == PUT}
        assert set(wire.client.outbox.lent) == puts
        wire.whole.clear()
        del got
        wire.returned()
    assert wire.client.outbox.lent == {}
    assert wire.idle()


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from(["u1", "<f8", "<c16", "?"]),
    st.integers(0, 1 << 32),
    st.booleans(),
)
@settings(max_examples=cases(30))
def test_an_array_arrives_in_its_box_however_it_lies(shape: list[int], kind: str, seed: int, near: bool) -> None:
    """A transposed array is gathered as it leaves, or written by its worker to its place in a larger one."""
    wire, choice, dtype = Wire(near), random.Random(seed), np.dtype(kind)
    axes = choice.sample(range(len(shape)), len(shape))
    data = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype).transpose(axes)
    key, starts = (GET, 1, 1, 0), [choice.randrange(3) for _ in shape]
    box = [(start, start + size) for start, size in zip(starts, data.shape, strict=True)]
    around = [stop + choice.randrange(3) for _, stop in box]
    room = wire.pool.empty((1 << 19,), U8)
    room[...] = 0
    whole = room[: prod(around) * dtype.itemsize].view(dtype).reshape(around)
    place = wire.pool.place(whole)
    assert place is not None
    part = np.empty(data.shape, dtype)
    assert list(wire.worker.outbox.add(CLIENT, key, data)) == []
    offer = (*place, around, box)
    wire.post(wire.client.inbox.open(WORKER, key, box, dtype, into(part), offer if near else None), CLIENT)
    wire.deliver_all(choice)
    window = tuple(slice(*pair) for pair in box)
    assert (wire.whole[key] is None) == near
    if not near:
        whole[window] = part
    np.testing.assert_array_equal(whole[window], data)
    whole[window] = np.zeros(1, dtype)
    assert not room.any(), "nothing beside it was touched"


def test_a_part_is_written_to_its_place_alone() -> None:
    """Workers write their parts side by side into one array of the client."""
    wire = Wire(near=True)
    data = np.arange(1 << 16, dtype=np.float32).reshape(256, 256)
    whole = wire.pool.empty(data.shape, data.dtype)
    whole[...] = -1
    place = wire.pool.place(whole)
    assert place is not None
    for worker, (first, last) in enumerate([(0, 100), (100, 250)]):
        key = (GET, 1, 1, worker)
        part = data[:, first:last].T.copy().T
        assert list(wire.worker.outbox.add(CLIENT, key, part)) == []
        box = [(0, 256), (first, last)]
        wire.post(wire.client.inbox.open(WORKER, key, box, data.dtype, into(part), (*place, data.shape, box)), CLIENT)
    wire.deliver_all(random.Random(0))
    assert list(wire.whole.values()) == [None, None]
    np.testing.assert_array_equal(whole[:, :250], data[:, :250])
    assert (whole[:, 250:] == -1).all()


def test_no_more_than_a_window_is_ever_under_way() -> None:
    """A sender whose receiver stands still stops after one window, and goes on as the receiver catches up."""
    wire, _, data, made = far(MAX_IN_FLIGHT_BYTES + 3 * CHUNK_BYTES + 17)
    wire.deliver(CLIENT)
    chunks = wire.queues[WORKER]
    assert sum(len(chunk[2]) for chunk in chunks) == MAX_IN_FLIGHT_BYTES
    assert not wire.queues[CLIENT]
    assert wire.client.under_way() == (MAX_IN_FLIGHT_BYTES, data.nbytes)
    while chunks:
        wire.deliver(WORKER)
        while wire.queues[CLIENT]:
            wire.deliver(CLIENT)
        assert sum(len(chunk[2]) for chunk in chunks) <= MAX_IN_FLIGHT_BYTES
    np.testing.assert_array_equal(made, data)


@pytest.mark.parametrize(
    "size",
    [
        1,
        CHUNK_BYTES,
        MAX_IN_FLIGHT_BYTES,
        MAX_IN_FLIGHT_BYTES + 1,
        2 * MAX_IN_FLIGHT_BYTES,
        2 * MAX_IN_FLIGHT_BYTES + CHUNK_BYTES + 1,
    ],
)
def test_no_grant_comes_after_the_end(size: int) -> None:
    """A receiver grants no more than the stream has, so that no grant reaches a sender that is done with it."""
    wire, key, _, _ = far(size)
    while any(wire.queues.values()):
        if wire.queues[CLIENT]:
            assert key in wire.client.outbox.streams
            wire.deliver(CLIENT)
        else:
            wire.deliver(WORKER)
    assert list(wire.whole) == [key]
    assert wire.client.outbox.early == {}


def test_chunks_are_memory_of_the_sender() -> None:
    """Chunks are views of the offered array: sending copies nothing."""
    data, outbox = drawn(2, 100), Outbox()
    outbox.add(CLIENT, (GET, 1, 1, 0), data)
    ((_, _, payload),) = outbox.granted(CLIENT, (GET, 1, 1, 0), MAX_IN_FLIGHT_BYTES)
    assert np.shares_memory(np.frombuffer(payload, np.uint8), data)


def test_an_array_is_let_go_with_its_last_chunk() -> None:
    """The outbox holds an array exactly until all of it was granted and sent."""
    outbox, key = Outbox(), (PUT, 1, 1, 0)
    outbox.add(WORKER, key, drawn(1, 3 * CHUNK_BYTES))
    assert len(list(outbox.granted(WORKER, key, 2 * CHUNK_BYTES))) == 2
    assert key in outbox.streams
    assert len(list(outbox.granted(WORKER, key, 9 * CHUNK_BYTES))) == 1
    assert not outbox.streams
    assert list(outbox.granted(WORKER, key, 9 * CHUNK_BYTES)) == []


def test_a_grant_that_says_less_than_before_sends_nothing() -> None:
    """Grants that come late or again neither repeat chunks nor take anything back."""
    outbox, key = Outbox(), (PUT, 1, 1, 0)
    outbox.add(WORKER, key, drawn(1, 4 * CHUNK_BYTES))
    assert len(list(outbox.granted(WORKER, key, 2 * CHUNK_BYTES))) == 2
    assert list(outbox.granted(WORKER, key, CHUNK_BYTES)) == []
    assert [read_header(frames[1])[2] for frames in outbox.granted(WORKER, key, 3 * CHUNK_BYTES)] == [2 * CHUNK_BYTES]


def test_a_stranger_is_given_nothing() -> None:
    """A stream goes to the peer that it is meant for: what another grants or offers, before or after, changes nothing."""
    outbox, key = Outbox(machine(), Borrower()), (GET, 1, 1, 0)
    assert list(outbox.granted(b"stranger", key, MAX_IN_FLIGHT_BYTES)) == []
    assert list(outbox.add(CLIENT, key, drawn(1, 10))) == []
    assert list(outbox.granted(b"stranger", key, MAX_IN_FLIGHT_BYTES)) == []
    assert list(outbox.offered(b"stranger", key, MAX_IN_FLIGHT_BYTES, b"")) == []
    assert [len(payload) for _, _, payload in outbox.granted(CLIENT, key, MAX_IN_FLIGHT_BYTES)] == [10]


def test_a_client_that_is_gone_is_forgotten() -> None:
    """What was offered to one client is dropped with it; other clients' streams stay."""
    outbox = Outbox()
    for client in (1, 2):
        outbox.add(CLIENT, (GET, client, 5, 0), drawn(1, 4))
    outbox.drop_client(1)
    assert list(outbox.streams) == [(GET, 2, 5, 0)]


def test_a_closed_stream_hears_no_more() -> None:
    """Chunks of a stream that was called off are dropped without a word, and without a further grant."""
    inbox, key = Inbox(Borrower()), (PUT, 1, 1, 0)
    inbox.open(CLIENT, key, [(0, 8)], U8, into(np.zeros(8, U8)))
    inbox.close(key)
    inbox.close(key)
    assert inbox.chunk(CLIENT, key, 0, b"12345678") == (False, [])
    assert inbox.wrote(CLIENT, key) == (False, [])


@pytest.mark.parametrize("make", [no_memory, into(None)], ids=["no memory", "not wanted"])
def test_a_stream_that_nobody_can_keep_is_heard_to_its_end(make: Any) -> None:
    """A receiver without memory for a stream grants and counts it all the same, so that the sender gets rid of it."""
    wire, key, size = Wire(), (PUT, 1, 1, 0), MAX_IN_FLIGHT_BYTES + CHUNK_BYTES + 1
    wire.client.outbox.add(WORKER, key, drawn(1, size))
    wire.post(wire.worker.inbox.open(CLIENT, key, [(0, size)], U8, make), WORKER)
    wire.deliver_all(random.Random(0))
    assert wire.whole == {key: None}
    assert wire.idle()


@pytest.mark.parametrize(
    ("peer", "offset", "payload"),
    [
        (b"other", 0, b"1234"),
        (CLIENT, 4, b"1234"),
        (CLIENT, 0, b""),
        (CLIENT, 0, b"123456789"),
        (CLIENT, 1 << 60, b"1"),
    ],
    ids=["from a stranger", "out of order", "empty", "longer than the buffer", "far away"],
)
def test_wrong_chunks_are_refused(peer: bytes, offset: int, payload: bytes) -> None:
    """A chunk that is not the next of its own sender is refused and changes nothing: the right one still counts."""
    inbox, key, made = Inbox(), (PUT, 1, 1, 0), np.zeros(8, U8)
    inbox.open(CLIENT, key, [(0, 8)], U8, into(made))
    with pytest.raises(ProtocolError):
        inbox.chunk(peer, key, offset, payload)
    assert not made.any()
    assert inbox.chunk(CLIENT, key, 0, b"1234")[0] is False
    assert inbox.chunk(CLIENT, key, 4, b"5678") == (True, [])
    assert made.tobytes() == b"12345678"


def test_a_chunk_of_more_than_a_chunk_is_refused() -> None:
    """A sender cannot push more at once than the protocol allows, even into a buffer that would hold it."""
    inbox, key = Inbox(), (PUT, 1, 1, 0)
    inbox.open(CLIENT, key, [(0, 2 * CHUNK_BYTES)], U8, into(np.zeros(2 * CHUNK_BYTES, U8)))
    with pytest.raises(ProtocolError):
        inbox.chunk(CLIENT, key, 0, bytes(CHUNK_BYTES + 1))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        bytes(65),
        msgpack.packb(7),
        msgpack.packb([0, 0, 1, 1, 0]),
        msgpack.packb([0, 0, 1, 1, 0, 0, 0]),
        msgpack.packb([6, 0, 1, 1, 0, 0]),
        msgpack.packb([True, 0, 1, 1, 0, 0]),
        msgpack.packb([0, 0, 1, 1, 0, -1]),
        msgpack.packb([0, 0, 1, 1, 0, 1.0]),
        msgpack.packb([0, 0, 1, 1, 0, "1"]),
        msgpack.packb({0: 1}),
    ],
    ids=repr,
)
def test_wrong_headers_are_refused(header: bytes) -> None:
    """A header is six numbers from 0, and its first is one of six."""
    with pytest.raises(ProtocolError):
        read_header(header)


@given(st.binary(max_size=70))
@settings(max_examples=cases(100))
def test_random_headers_never_do_more_than_be_refused(header: bytes) -> None:
    """Whatever bytes arrive as a header, nothing but `ProtocolError` is raised."""
    try:
        kind, key, number = read_header(header)
    except ProtocolError:
        return
    assert kind in (DATA, GRANT, LENT, BACK, OFFER, WROTE)
    assert all(part >= 0 for part in (*key, number))


def test_a_grant_that_overtakes_its_stream_is_not_lost() -> None:
    """The bulk socket may be faster than the control socket: what is granted before a stream is added leaves when it is."""
    outbox, inbox = Outbox(), Inbox()
    key, size = (PUT, 1, 2, 3), 3 * CHUNK_BYTES
    peer, header, _ = inbox.open(b"sender", key, [(0, size)], U8, into(np.zeros(size, U8)))
    _, _, end = read_header(header)
    assert list(outbox.granted(peer, key, end)) == []
    assert len(list(outbox.add(peer, key, drawn(1, size)))) == 3
    assert outbox.streams == outbox.early == {}
