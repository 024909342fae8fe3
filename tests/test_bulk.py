"""Bulk streams: whole under any interleaving, never more under way than was granted, wrong chunks refused."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgpack
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.bulk import BACK, CHUNK, DATA, GET, GRANT, LENT, PUT, WINDOW, Bulk, Inbox, Key, Outbox, read_header
from gt.errors import ProtocolError
from gt.lending import SLOT, Borrower, Lender

CLIENT, WORKER = b"client", b"worker"


def drawn(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


class Wire:
    """An outbox and an inbox, and the frames between them: one queue each way, delivered in the order of `choose`.

    `near`: both are on one machine, and chunks are lent.
    """

    def __init__(self, near: bool = False) -> None:
        self.lender = Lender(2 * SLOT) if near else None
        self.outbox, self.inbox = Outbox(self.lender), Inbox(Borrower() if near else None)
        self.grants: deque[Any] = deque()
        self.chunks: deque[Any] = deque()
        self.granted: dict[Key, int] = {}
        self.sent: dict[Key, int] = {}
        self.whole: list[Key] = []

    def send(self, key: Key, data: Any) -> bytearray:
        """Offer `data` at one end and open the stream at the other."""
        self.outbox.add(CLIENT, key, data)
        buffer = bytearray(len(data))
        self.grants.append(self.inbox.open(WORKER, key, buffer))
        return buffer

    def deliver_grant(self) -> None:
        """One frame from the receiver: a grant, or a slot that comes back."""
        peer, header, machine = self.grants.popleft()
        assert peer == WORKER
        kind, key, number = read_header(header)
        if kind == BACK:
            chunks = self.outbox.back(CLIENT, key, number)
        else:
            assert kind == GRANT
            self.granted[key] = number
            chunks = self.outbox.granted(CLIENT, key, number, machine)
        for chunk in chunks:
            kind, at, offset = read_header(chunk[1])
            size = len(chunk[2]) if kind == DATA else msgpack.unpackb(chunk[2])[2]
            assert size <= (CHUNK if kind == DATA else SLOT)
            self.sent[at] = offset + size
            assert self.sent[at] <= self.granted[at], "no byte leaves that was not granted"
            self.chunks.append(chunk)

    def deliver_chunk(self) -> None:
        peer, header, payload = self.chunks.popleft()
        assert peer == CLIENT
        kind, key, offset = read_header(header)
        assert kind in (DATA, LENT)
        whole, answers = (self.inbox.chunk if kind == DATA else self.inbox.lent)(WORKER, key, offset, payload)
        if whole:
            self.whole.append(key)
        self.grants += answers

    def deliver_all(self, choice: random.Random) -> None:
        while self.grants or self.chunks:
            if self.grants and (not self.chunks or choice.random() < 0.5):
                self.deliver_grant()
            else:
                self.deliver_chunk()


@given(st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=4), st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=cases(20))
def test_streams_are_whole_under_any_interleaving(sizes: list[int], seed: int, near: bool) -> None:
    """However grants and chunks of several streams interleave, each arrives whole and nothing is left behind."""
    wire, choice = Wire(near), random.Random(seed)
    expected = {}
    for number, size in enumerate(sizes):
        key = (choice.choice([PUT, GET]), 1, number, 0)
        data = drawn(number, size)
        expected[key] = (data, wire.send(key, data))
    wire.deliver_all(choice)
    assert sorted(wire.whole) == sorted(expected)
    if wire.lender is not None:
        assert not wire.lender.users
        wire.lender.arena.check()
    assert all(bytes(buffer) == data for data, buffer in expected.values())
    assert not wire.outbox.streams
    assert not wire.inbox.streams


def test_no_more_than_a_window_is_ever_under_way() -> None:
    """A sender whose receiver stands still stops after one window, and goes on as the receiver catches up."""
    wire = Wire()
    size = WINDOW + 3 * CHUNK + 17
    data = drawn(1, size)
    buffer = wire.send((GET, 1, 1, 0), data)
    wire.deliver_grant()
    assert sum(len(chunk[2]) for chunk in wire.chunks) == WINDOW
    assert not wire.grants
    while wire.chunks:
        wire.deliver_chunk()
        while wire.grants:
            wire.deliver_grant()
        assert sum(len(chunk[2]) for chunk in wire.chunks) <= WINDOW
    assert bytes(buffer) == data


@pytest.mark.parametrize("size", [1, CHUNK, WINDOW, WINDOW + 1, 2 * WINDOW, 2 * WINDOW + CHUNK + 1])
def test_no_grant_comes_after_the_end(size: int) -> None:
    """A receiver grants no more than the stream has, so that no grant reaches a sender that is done with it."""
    wire = Wire()
    key = (PUT, 1, 1, 0)
    wire.send(key, bytes(size))
    while wire.grants or wire.chunks:
        if wire.grants:
            assert key in wire.outbox.streams
            wire.deliver_grant()
        else:
            wire.deliver_chunk()
    assert wire.whole == [key]


def test_chunks_are_memory_of_the_sender() -> None:
    """Chunks are views of the offered buffer: sending copies nothing."""
    data = bytearray(drawn(2, 100))
    outbox = Outbox()
    outbox.add(CLIENT, (GET, 1, 1, 0), data)
    ((_, _, payload),) = outbox.granted(CLIENT, (GET, 1, 1, 0), WINDOW)
    assert payload.obj is data


def test_a_buffer_is_let_go_with_its_last_chunk() -> None:
    """The outbox holds a buffer exactly until all of it was granted and sent."""
    outbox, key = Outbox(), (PUT, 1, 1, 0)
    outbox.add(WORKER, key, bytes(3 * CHUNK))
    assert len(list(outbox.granted(WORKER, key, 2 * CHUNK))) == 2
    assert key in outbox.streams
    assert len(list(outbox.granted(WORKER, key, 9 * CHUNK))) == 1
    assert not outbox.streams
    assert list(outbox.granted(WORKER, key, 9 * CHUNK)) == []


def test_a_grant_that_says_less_than_before_sends_nothing() -> None:
    """Grants that come late or again neither repeat chunks nor take anything back."""
    outbox, key = Outbox(), (PUT, 1, 1, 0)
    outbox.add(WORKER, key, bytes(4 * CHUNK))
    assert len(list(outbox.granted(WORKER, key, 2 * CHUNK))) == 2
    assert list(outbox.granted(WORKER, key, CHUNK)) == []
    assert [read_header(frames[1])[2] for frames in outbox.granted(WORKER, key, 3 * CHUNK)] == [2 * CHUNK]


def test_a_stranger_is_given_nothing() -> None:
    """A stream goes to the peer that it is meant for: what another grants, before it is there or after, changes nothing."""
    outbox, key = Outbox(), (GET, 1, 1, 0)
    assert list(outbox.granted(b"stranger", key, WINDOW)) == []
    assert list(outbox.add(CLIENT, key, bytes(10))) == []
    assert list(outbox.granted(b"stranger", key, WINDOW)) == []
    assert [len(payload) for _, _, payload in outbox.granted(CLIENT, key, WINDOW)] == [10]


def test_a_client_that_is_gone_is_forgotten() -> None:
    """What was offered to one client is dropped with it; other clients' streams stay."""
    outbox = Outbox()
    for client in (1, 2):
        outbox.add(CLIENT, (GET, client, 5, 0), b"data")
    outbox.drop_client(1)
    assert list(outbox.streams) == [(GET, 2, 5, 0)]


def test_a_closed_stream_hears_no_more() -> None:
    """Chunks of a stream that was called off are dropped without a word, and without a further grant."""
    inbox, key = Inbox(), (PUT, 1, 1, 0)
    inbox.open(CLIENT, key, bytearray(8))
    inbox.close(key)
    inbox.close(key)
    assert inbox.chunk(CLIENT, key, 0, b"12345678") == (False, [])


def test_a_stream_that_nobody_can_keep_is_heard_to_its_end() -> None:
    """A receiver without memory for a stream grants and counts it all the same, so that the sender gets rid of it."""
    wire, key, size = Wire(), (PUT, 1, 1, 0), WINDOW + CHUNK + 1
    wire.outbox.add(CLIENT, key, bytes(size))
    wire.grants.append(wire.inbox.ignore(WORKER, key, size))
    while wire.grants or wire.chunks:
        if wire.grants:
            wire.deliver_grant()
        else:
            wire.deliver_chunk()
    assert wire.whole == [key]
    assert not wire.outbox.streams
    assert not wire.inbox.streams


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
    inbox, key, buffer = Inbox(), (PUT, 1, 1, 0), bytearray(8)
    inbox.open(CLIENT, key, buffer)
    with pytest.raises(ProtocolError):
        inbox.chunk(peer, key, offset, payload)
    assert bytes(buffer) == bytes(8)
    assert inbox.chunk(CLIENT, key, 0, b"1234")[0] is False
    assert inbox.chunk(CLIENT, key, 4, b"5678") == (True, [])
    assert bytes(buffer) == b"12345678"


def test_a_chunk_of_more_than_a_chunk_is_refused() -> None:
    """A sender cannot push more at once than the protocol allows, even into a buffer that would hold it."""
    inbox, key = Inbox(), (PUT, 1, 1, 0)
    inbox.open(CLIENT, key, bytearray(2 * CHUNK))
    with pytest.raises(ProtocolError):
        inbox.chunk(CLIENT, key, 0, bytes(CHUNK + 1))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        bytes(65),
        msgpack.packb(7),
        msgpack.packb([0, 0, 1, 1, 0]),
        msgpack.packb([0, 0, 1, 1, 0, 0, 0]),
        msgpack.packb([4, 0, 1, 1, 0, 0]),
        msgpack.packb([True, 0, 1, 1, 0, 0]),
        msgpack.packb([0, 0, 1, 1, 0, -1]),
        msgpack.packb([0, 0, 1, 1, 0, 1.0]),
        msgpack.packb([0, 0, 1, 1, 0, "1"]),
        msgpack.packb({0: 1}),
    ],
    ids=repr,
)
def test_wrong_headers_are_refused(header: bytes) -> None:
    """A header is six numbers from 0, and its first is one of four."""
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
    assert kind in (DATA, GRANT, LENT, BACK)
    assert all(part >= 0 for part in (*key, number))


def test_a_grant_that_overtakes_its_stream_is_not_lost() -> None:
    """The bulk socket may be faster than the control socket: what is granted before a stream is added leaves when it is."""
    outbox, inbox = Outbox(), Inbox()
    key = (PUT, 1, 2, 3)
    arrived = bytearray(3 * CHUNK)
    peer, header, _ = inbox.open(b"sender", key, arrived)
    _, _, end = read_header(header)
    assert list(outbox.granted(peer, key, end)) == []
    chunks = list(outbox.add(peer, key, bytes(3 * CHUNK)))
    assert len(chunks) == 3
    assert outbox.streams == outbox.early == {}


def test_nothing_is_granted_beyond_the_end_of_a_stream() -> None:
    """A sender forgets a stream when its last chunk has left, so a later grant would wait there for ever."""
    outbox, inbox = Outbox(), Inbox()
    key = (PUT, 1, 2, 3)
    size = 2 * WINDOW + 5
    pending = [inbox.open(b"sender", key, bytearray(size))]
    assert list(outbox.add(b"receiver", key, bytes(size))) == []
    while pending:
        _, header, _ = pending.pop(0)
        assert outbox.streams, "every grant finds its stream"
        for _, data, payload in list(outbox.granted(b"receiver", key, read_header(header)[2])):
            pending += inbox.chunk(b"sender", key, read_header(data)[2], payload)[1]
    assert inbox.streams == outbox.streams == outbox.early == {}


# shared memory


def test_what_is_lent_is_bounded_and_goes_on_as_it_comes_back() -> None:
    """A sender fills as many slots as it has, and the next when one was read; the buffer is kept until the last was."""
    wire, key = Wire(near=True), (GET, 1, 1, 0)
    data = drawn(3, 5 * SLOT + 11)
    buffer = wire.send(key, data)
    wire.deliver_grant()
    assert len(wire.chunks) == 2, "it has two slots"
    wire.deliver_all(random.Random(0))
    assert bytes(buffer) == data
    assert wire.outbox.streams == wire.inbox.streams == {}
    assert wire.lender is not None
    assert wire.lender.users == {}


def test_a_receiver_that_cannot_open_the_memory_gets_the_bytes() -> None:
    """The first loan fails, its slot comes back, and the stream goes on in frames from where it was."""
    wire, key = Wire(near=True), (PUT, 1, 1, 0)
    data = drawn(4, 3 * SLOT)
    buffer = wire.send(key, data)
    borrower = wire.inbox.borrower
    assert borrower is not None
    borrower.maps = Closed()
    wire.deliver_all(random.Random(1))
    assert bytes(buffer) == data
    assert wire.outbox.streams == wire.inbox.streams == {}
    assert wire.lender is not None
    assert wire.lender.users == {}


class Closed(dict[str, Any]):
    """Memory that may not be opened."""

    def pop(self, *_: Any) -> Any:
        raise PermissionError("not yours")


def test_another_machine_gets_the_bytes() -> None:
    """Memory is lent only to who says that it is on this very machine."""
    outbox, key = Outbox(Lender(2 * SLOT)), (PUT, 1, 1, 0)
    outbox.add(CLIENT, key, bytes(10))
    ((_, header, payload),) = outbox.granted(CLIENT, key, WINDOW, b"elsewhere")
    assert read_header(header)[0] == DATA
    assert bytes(payload) == bytes(10)


@pytest.mark.parametrize("limit", [0, SLOT - 1])
def test_without_shared_memory_nothing_is_lent(limit: int) -> None:
    lender = Lender(limit)
    assert lender.lend("me") is None
    assert lender.machine == ""


def test_who_is_gone_gives_its_slots_back() -> None:
    """The loans of a client that is gone, or of everybody when the session broke, are free at once; late words change nothing."""
    lender = Lender(2 * SLOT)
    outbox = Outbox(lender)
    for client in (1, 2):
        outbox.add(CLIENT, (GET, client, 5, 0), bytes(SLOT))
        assert len(list(outbox.granted(CLIENT, (GET, client, 5, 0), WINDOW, lender.machine.encode()))) == 1
    assert lender.lend("another") is None
    (loan,) = [loan for loan, key in lender.users.items() if key[1] == 1]
    outbox.drop_client(1)
    assert len(lender.users) == 1
    assert list(outbox.back(CLIENT, (GET, 1, 5, 0), loan)) == []
    outbox.clear()
    assert (lender.users, outbox.streams) == ({}, {})
    lender.arena.check()


@pytest.mark.parametrize(
    "loan",
    [b"", b"\xc1", msgpack.packb(7), msgpack.packb(["x", 0, 1]), msgpack.packb([0, 0, 1, 1]),
     msgpack.packb(["x", -1, 1, 1]), msgpack.packb(["x", 0, 0, 1]), msgpack.packb(["x", 0, SLOT + 1, 1]),
     msgpack.packb(["x" * 600, 0, 1, 1]), msgpack.packb(["x", 0, 9, 1])],
    ids=repr,
)  # fmt: skip
def test_wrong_loans_are_refused(loan: bytes) -> None:
    """What is no loan, empty, larger than a slot, or longer than the stream is refused and changes nothing."""
    inbox, key, buffer = Inbox(Borrower()), (PUT, 1, 1, 0), bytearray(8)
    inbox.open(CLIENT, key, buffer)
    with pytest.raises(ProtocolError):
        inbox.lent(CLIENT, key, 0, loan)
    assert inbox.streams[key].at == 0


def test_a_loan_beyond_the_memory_is_refused() -> None:
    """Offsets outside of what was announced are never read."""
    lender, inbox, key = Lender(SLOT), Inbox(Borrower()), (PUT, 1, 1, 0)
    lent = lender.lend(key)
    assert lent is not None
    inbox.open(CLIENT, key, bytearray(8))
    with pytest.raises(ProtocolError, match="no shared memory at"):
        inbox.lent(CLIENT, key, 0, msgpack.packb((lent[1], SLOT - 4, 8, 1)))


@given(st.lists(st.binary(max_size=70), max_size=4))
@settings(max_examples=cases(200))
def test_random_bulk_frames_never_do_more_than_be_refused(frames: list[bytes]) -> None:
    streams = Bulk(2 * SLOT)
    try:
        whole, answers = streams.heard(frames)
        list(answers)
    except ProtocolError:
        return
    assert whole is None


def test_memory_of_who_is_gone_is_unmapped() -> None:
    """A client's memory would live for as long as a worker has it mapped."""
    lenders, streams = [Lender(SLOT), Lender(SLOT)], Bulk(SLOT)
    for client, lender in enumerate(lenders):
        key = (PUT, client, 1, 0)
        lent = lender.lend(key)
        assert lent is not None
        streams.inbox.open(CLIENT, key, bytearray(8))
        loan = msgpack.packb((lent[1], 0, 8, lent[0]))
        assert streams.inbox.lent(CLIENT, key, 0, loan)[0]
    borrower = streams.inbox.borrower
    assert borrower is not None
    assert len(borrower.maps) == 2
    streams.drop_client(0)
    assert list(borrower.maps) == [lenders[1].memory.where if lenders[1].memory else ""]
    streams.break_off()
    assert borrower.maps == borrower.clients == {}
