"""Places in shared memory that a client offers for what it fetches: written once, and only where they fit."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from bulk_wire import CLIENT, ROOM, U8, WORKER, drawn, into, no_memory
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.wire.bulk import (
    CHUNK_BYTES,
    DATA,
    GET,
    GRANT,
    MAX_EARLY_GRANTS,
    MAX_IN_FLIGHT_BYTES,
    PUT,
    WROTE,
    Bulk,
    Inbox,
    Key,
    Outbox,
    read_header,
)
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.memfd import BULK_KIND, SharedMemory, machine
from gt.wire.shared_memory.pool import Pool


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
