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

from gt.bulk import CHUNK, GET, PUT, WINDOW, Inbox, Key, Outbox, read_header
from gt.errors import ProtocolError

CLIENT, WORKER = b"client", b"worker"


def drawn(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


class Wire:
    """An outbox and an inbox, and the frames between them: one queue each way, delivered in the order of `choose`."""

    def __init__(self) -> None:
        self.outbox, self.inbox = Outbox(), Inbox()
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
        peer, header, _ = self.grants.popleft()
        assert peer == WORKER
        is_data, key, end = read_header(header)
        assert not is_data
        self.granted[key] = end
        for chunk in self.outbox.granted(CLIENT, key, end):
            _, at, offset = read_header(chunk[1])
            assert len(chunk[2]) <= CHUNK
            self.sent[at] = offset + len(chunk[2])
            assert self.sent[at] <= self.granted[at], "no byte leaves that was not granted"
            self.chunks.append(chunk)

    def deliver_chunk(self) -> None:
        peer, header, payload = self.chunks.popleft()
        assert peer == CLIENT
        is_data, key, offset = read_header(header)
        assert is_data
        whole, grant = self.inbox.chunk(WORKER, key, offset, payload)
        if whole:
            self.whole.append(key)
        if grant is not None:
            self.grants.append(grant)


@given(st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=4), st.integers(0, 1 << 32))
@settings(max_examples=cases(10))
def test_streams_are_whole_under_any_interleaving(sizes: list[int], seed: int) -> None:
    """However grants and chunks of several streams interleave, each arrives whole and nothing is left behind."""
    wire, choice = Wire(), random.Random(seed)
    expected = {}
    for number, size in enumerate(sizes):
        key = (choice.choice([PUT, GET]), 1, number, 0)
        data = drawn(number, size)
        expected[key] = (data, wire.send(key, data))
    while wire.grants or wire.chunks:
        if wire.grants and (not wire.chunks or choice.random() < 0.5):
            wire.deliver_grant()
        else:
            wire.deliver_chunk()
    assert sorted(wire.whole) == sorted(expected)
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
    assert inbox.chunk(CLIENT, key, 0, b"12345678") == (False, None)


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
    assert inbox.chunk(CLIENT, key, 4, b"5678") == (True, None)
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
        msgpack.packb([2, 0, 1, 1, 0, 0]),
        msgpack.packb([True, 0, 1, 1, 0, 0]),
        msgpack.packb([0, 0, 1, 1, 0, -1]),
        msgpack.packb([0, 0, 1, 1, 0, 1.0]),
        msgpack.packb([0, 0, 1, 1, 0, "1"]),
        msgpack.packb({0: 1}),
    ],
    ids=repr,
)
def test_wrong_headers_are_refused(header: bytes) -> None:
    """A header is six numbers from 0, and its first is one of two."""
    with pytest.raises(ProtocolError):
        read_header(header)


@given(st.binary(max_size=70))
@settings(max_examples=cases(100))
def test_random_headers_never_do_more_than_be_refused(header: bytes) -> None:
    """Whatever bytes arrive as a header, nothing but `ProtocolError` is raised."""
    try:
        is_data, key, number = read_header(header)
    except ProtocolError:
        return
    assert isinstance(is_data, bool)
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
            _, grant = inbox.chunk(b"sender", key, read_header(data)[2], payload)
            if grant is not None:
                pending.append(grant)
    assert inbox.streams == outbox.streams == outbox.early == {}
