"""Bulk streams, in frames or in shared memory: whole under any interleaving, bounded, wrong ones refused."""

from __future__ import annotations

import random
from collections import deque
from math import prod
from typing import Any

import msgpack
import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.wire.bulk import (
    ALL_WORKERS,
    BACK,
    CHUNK_BYTES,
    DATA,
    GET,
    GRANT,
    LENT,
    MAX_EARLY_GRANTS,
    MAX_IN_FLIGHT_BYTES,
    OFFER,
    PUT,
    WROTE,
    Bulk,
    Frames,
    Inbox,
    Key,
    Outbox,
    read_header,
)
from gt.wire.shared_memory.lending import IDLE_MAP_SECONDS, Borrower
from gt.wire.shared_memory.memfd import BULK_KIND, SharedMemory, machine
from gt.wire.shared_memory.pool import Pool

CLIENT, WORKER = b"client", b"worker"
U8 = np.dtype(np.uint8)
ROOM = 64 << 20


def drawn(seed: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def box_of(shape: Any) -> list[tuple[int, int]]:
    return [(0, size) for size in shape]


def into(array: np.ndarray[Any, Any]) -> Any:
    return lambda: array


class Wire:
    """A client and a worker, and the frames between them: one queue each way, delivered in the order of `choose`.

    `near`: both are on one machine. `blind`: the worker says that it is, and cannot open the client's memory.
    """

    def __init__(self, near: bool = False, blind: bool = False) -> None:
        self.pool = Pool(ROOM)
        self.client = Bulk(machine() if near else "")
        self.worker = Bulk(borrower=Borrower() if near else None)
        if blind:
            assert self.worker.borrower is not None
            self.worker.borrower.maps = Closed()
        self.ends = {CLIENT: self.client, WORKER: self.worker}
        self.queues: dict[bytes, deque[Any]] = {CLIENT: deque(), WORKER: deque()}
        """What is on its way to each."""
        self.near = near
        self.granted: dict[Key, int] = {}
        self.sent: dict[Key, int] = {}
        self.whole: dict[Key, np.ndarray[Any, Any] | None] = {}
        self.kinds: list[int] = []

    def post(self, frames: Frames, source: bytes) -> None:
        """What one end sends to the other; the relay says who sent it."""
        target, header, payload = frames
        kind, key, number = read_header(header)
        if kind in (GRANT, OFFER):
            self.granted[key] = number
        elif kind == DATA:
            assert len(payload) <= CHUNK_BYTES
            self.sent[key] = number + len(payload)
            assert self.sent[key] <= self.granted[key], "no byte leaves that was not granted"
        self.kinds.append(kind)
        self.queues[target].append((source, header, bytes(payload)))

    def put(self, key: Key, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The client sends `data`, in its pool where both are near; the worker opens the stream."""
        room = self.pool.room(data.nbytes) if self.near else None
        array = np.empty(data.shape, data.dtype) if room is None else room.view(data.dtype).reshape(data.shape)
        array[...] = data
        for frames in self.client.outbox.add(
            WORKER, key, array, box_of(data.shape), self.pool.place(array) if self.near else None
        ):
            self.post(frames, CLIENT)
        made = np.zeros(data.shape, data.dtype)
        self.post(self.worker.inbox.open(CLIENT, key, box_of(data.shape), data.dtype, into(made)), WORKER)
        return made

    def get(self, key: Key, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The worker has `data` for the client, which opens the stream, with a place for it where both are near."""
        assert list(self.worker.outbox.add(CLIENT, key, data)) == []
        array = self.pool.empty(data.shape, data.dtype)
        place = self.pool.place(array) if self.near else None
        offer = None if place is None else (*place, data.shape, box_of(data.shape))
        self.post(self.client.inbox.open(WORKER, key, box_of(data.shape), data.dtype, into(array), offer), CLIENT)
        return array

    def deliver(self, target: bytes) -> None:
        whole, answers = self.ends[target].heard(list(self.queues[target].popleft()))
        if whole is not None:
            self.whole[whole[0]] = whole[1]
        for frames in answers:
            self.post(frames, target)

    def deliver_all(self, choice: random.Random) -> None:
        while any(self.queues.values()):
            self.deliver(choice.choice([end for end, queue in self.queues.items() if queue]))

    def returned(self) -> None:
        """The worker says what it reads no more."""
        for frames in self.worker.returned():
            self.post(frames, WORKER)
        self.deliver_all(random.Random(0))

    def idle(self) -> bool:
        boxes = (self.client.outbox, self.client.inbox, self.worker.outbox, self.worker.inbox)
        return not any(box.streams for box in boxes) and self.client.under_way() == self.worker.under_way() == (0, 0)


class Closed(dict[int, Any]):
    """Memory that may not be opened."""

    def get(self, *_: Any) -> Any:
        raise PermissionError("not yours")


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


# in frames


def far(size: int, seed: int = 1) -> tuple[Wire, Key, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    wire, key, data = Wire(), (PUT, 1, 1, 0), drawn(seed, size)
    return wire, key, data, wire.put(key, data)


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


def no_memory() -> Any:
    raise MemoryError


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


# shared memory


def borrowed(size: int = 100_000) -> tuple[Wire, Key, np.ndarray[Any, Any]]:
    """A put that the worker has borrowed."""
    wire, key, data = Wire(near=True), (PUT, 1, 1, 0), drawn(3, size)
    wire.put(key, data)
    wire.deliver_all(random.Random(0))
    return wire, key, data


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


@pytest.mark.parametrize(
    "where",
    ["", "nonsense", "{machine}/1/2/3", "{machine}/{pid}/{other}/{name}", "{machine}/{pid}/{fd}/bulk-0123456789abcdef", "{peers}",
     "{machine}/4194399/{fd}/{name}", "\xff\xfe"],
    ids=repr,
)  # fmt: skip
def test_memory_that_is_not_what_it_is_called_is_not_used(where: str) -> None:
    """Another file, another name, memory of another kind, a process that is gone: the bytes must come in frames."""
    mine, peers = SharedMemory(1 << 20, BULK_KIND), SharedMemory(1 << 20)
    head, pid, fd, name = mine.where.rsplit("/", 3)
    text = where.format(machine=head, pid=pid, fd=fd, name=name, other=peers.descriptor, peers=peers.where)
    inbox, key = Inbox(Borrower()), (PUT, 1, 1, 0)
    inbox.open(CLIENT, key, [(0, 100_000)], U8, no_memory)
    whole, ((_, header, payload),) = inbox.lent(CLIENT, key, 0, msgpack.packb([text, [[0, 100_000]]]))
    assert (whole, read_header(header), payload) == (False, (GRANT, key, 100_000), b"")
    outbox = Outbox("", Borrower())
    outbox.add(CLIENT, (GET, 1, 1, 0), drawn(1, 10))
    offer = msgpack.packb([text, 0, [10], [[0, 10]]])
    ((_, header, payload),) = outbox.offered(CLIENT, (GET, 1, 1, 0), MAX_IN_FLIGHT_BYTES, offer)
    assert (read_header(header)[0], len(payload)) == (DATA, 10)


@pytest.mark.parametrize(
    "offer",
    [7, [], ["x", 0, [10]], ["x", -1, [10], [[0, 10]]], [b"x", 0, [10], [[0, 10]]], ["x", 0, [10], []], ["x", 0, [10], [[10, 0]]],
     ["x", 0, [True], [[0, 10]]], ["x", 0, 10, [[0, 10]]], ["x" * 5000, 0, [10], [[0, 10]]], "no msgpack",
     ["{where}", 1 << 60, [10], [[0, 10]]], ["{where}", 8, [10], [[0, 10]]], ["{where}", 0, [1 << 62], [[0, 10]]]],
    ids=repr,
)  # fmt: skip
def test_wrong_offers_are_refused(offer: Any) -> None:
    """A place that is not there is refused, and nothing is written; the stream waits for a right one."""
    outbox, key, array, (where, offset) = offering()
    if isinstance(offer, list) and offer and offer[0] == "{where}":
        offer = [where, *offer[1:]]
    with pytest.raises(ProtocolError):
        list(
            outbox.offered(CLIENT, key, MAX_IN_FLIGHT_BYTES, b"\xc1" if offer == "no msgpack" else msgpack.packb(offer))
        )
    assert (array == 9).all()
    ((_, header, _),) = outbox.offered(
        CLIENT, key, MAX_IN_FLIGHT_BYTES, msgpack.packb([where, offset, [20], [[5, 15]]])
    )
    assert read_header(header)[:2] == (WROTE, key)
    np.testing.assert_array_equal(array[5:15], drawn(1, 10))
    assert (array[:5] == 9).all()
    assert (array[15:] == 9).all()


@pytest.mark.parametrize(
    ("shape", "box"),
    [([10], [[0, 9]]), ([9], [[0, 10]]), ([1, 10], [[0, 1], [0, 10]]), ([20], [[1, 10]]), ([2, 5], [[0, 2], [0, 5]])],
)
@pytest.mark.parametrize("early", [True, False])
def test_a_place_that_does_not_fit_is_not_taken(shape: list[int], box: list[list[int]], early: bool) -> None:
    """Whoever thought that a worker has more than it has, or less, will say so again; before the stream is there or after."""
    outbox, key, array, (where, offset) = offering(add=not early)
    assert list(outbox.offered(CLIENT, key, MAX_IN_FLIGHT_BYTES, msgpack.packb([where, offset, shape, box]))) == []
    if early:
        assert list(outbox.add(CLIENT, key, drawn(1, 10))) == []
    assert (array == 9).all()
    assert list(outbox.streams) == [key]
    ((_, header, _),) = outbox.offered(
        CLIENT, key, MAX_IN_FLIGHT_BYTES, msgpack.packb([where, offset, [10], [[0, 10]]])
    )
    assert read_header(header)[0] == WROTE


def test_a_place_that_is_offered_early_is_written_when_there_is_something() -> None:
    """By who may: what a stranger offers is not taken, nor nonsense; tables are bounded, and a client's go with it."""
    outbox, key, array, (where, offset) = offering(add=False)
    right = msgpack.packb([where, offset, [10], [[0, 10]]])
    assert list(outbox.offered(CLIENT, key, MAX_IN_FLIGHT_BYTES, right)) == []
    ((_, header, _),) = outbox.add(CLIENT, key, drawn(1, 10))
    assert read_header(header)[:2] == (WROTE, key)
    np.testing.assert_array_equal(array[:10], drawn(1, 10))
    for number, (peer, payload) in enumerate([(b"stranger", right), (CLIENT, b"\xc1"), (CLIENT, bytes(5000))]):
        key = (GET, 1, 2 + number, 0)
        assert list(outbox.offered(peer, key, MAX_IN_FLIGHT_BYTES, payload)) == []
        assert list(outbox.add(CLIENT, key, drawn(2, 10))) == []
        assert key in outbox.streams
    np.testing.assert_array_equal(array[:10], drawn(1, 10))
    for request in range(100, 100 + 2 * MAX_EARLY_GRANTS):
        list(outbox.offered(CLIENT, (GET, 1, request, 0), MAX_IN_FLIGHT_BYTES, right))
    assert len(outbox.offers) == MAX_EARLY_GRANTS
    outbox.drop_client(1)
    assert outbox.offers == outbox.streams == {}


def test_a_place_that_is_offered_early_can_be_written_part_by_part() -> None:
    """By who has no array to add: where it fits and is in one piece, by who may; then it is used up."""
    outbox, key, array, (where, offset) = offering(add=False)
    right = msgpack.packb([where, offset, [4, 10], [[1, 3], [0, 10]]])
    assert outbox.place_for(CLIENT, key, (2, 10), U8) is None, "nothing was offered yet"
    for offer in (
        b"\xc1",
        msgpack.packb([where, 1 << 60, [2, 10], [[0, 2], [0, 10]]]),
        msgpack.packb(["nowhere", 0, [2, 10], [[0, 2], [0, 10]]]),
        msgpack.packb([where, offset, [2, 20], [[0, 2], [5, 15]]]),
    ):
        list(outbox.offered(CLIENT, key, MAX_IN_FLIGHT_BYTES, offer))
        assert outbox.place_for(CLIENT, key, (2, 10), U8) is None
        assert key in outbox.offers, "it is for who adds an array"
    list(outbox.offered(CLIENT, key, MAX_IN_FLIGHT_BYTES, right))
    assert outbox.place_for(b"stranger", key, (2, 10), U8) is None
    assert outbox.place_for(CLIENT, key, (20,), U8) is None
    place = outbox.place_for(CLIENT, key, (2, 10), U8)
    assert place is not None
    place[...] = drawn(1, 20).reshape(2, 10)
    assert outbox.place_for(CLIENT, key, (2, 10), U8) is None
    peer, header, payload = outbox.wrote(CLIENT, key)
    assert (peer, read_header(header)[:2], payload) == (CLIENT, (WROTE, key), b"")
    np.testing.assert_array_equal(array[10:30], drawn(1, 20))
    assert (array[:10] == 9).all()
    assert (array[30:] == 9).all()


def offering(*, add: bool = True) -> tuple[Outbox, Key, np.ndarray[Any, Any], tuple[str, int]]:
    """An outbox with ten bytes for a client, the key, and an array of nines where the client has room."""
    pool, outbox, key = Pool(ROOM), Outbox("", Borrower()), (GET, 1, 1, 0)
    array = pool.empty((100_000,), U8)
    array[...] = 9
    place = pool.place(array)
    assert place is not None
    if add:
        outbox.add(CLIENT, key, drawn(1, 10))
    return outbox, key, array, place


def test_a_word_that_something_was_written_must_be_due() -> None:
    """Nobody but who was offered the place says that it was written, and not in the middle of chunks."""
    inbox, key = Inbox(), (GET, 1, 1, 0)
    inbox.open(
        WORKER,
        key,
        [(0, 2 * CHUNK_BYTES)],
        U8,
        into(np.zeros(2 * CHUNK_BYTES, U8)),
        ("here", 0, (2 * CHUNK_BYTES,), [(0, 2 * CHUNK_BYTES)]),
    )
    with pytest.raises(ProtocolError):
        inbox.wrote(b"stranger", key)
    inbox.chunk(WORKER, key, 0, bytes(CHUNK_BYTES))
    with pytest.raises(ProtocolError):
        inbox.wrote(WORKER, key)


@given(st.lists(st.binary(max_size=60), max_size=5))
@settings(max_examples=cases(100))
def test_random_frames_never_do_more_than_be_refused(frames: list[bytes]) -> None:
    """Whatever arrives on a bulk socket, nothing but `ProtocolError` is raised."""
    bulk = Bulk(machine(), Borrower())
    bulk.outbox.add(b"", (PUT, 0, 0, 0), drawn(1, 10))
    try:
        _, answers = bulk.heard([b"", *frames])
        list(answers)
    except ProtocolError:
        pass


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
