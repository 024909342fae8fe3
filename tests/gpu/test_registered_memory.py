"""Blocks that clients use again are registered with CUDA, and the GPU copies between them and its own memory.

`tests/worker/device/test_registered_memory.py` runs the same on a stand-in for CuPy, where there is no GPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pytest

from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.page_stamp import stamped_range
from gt.wire.shared_memory.pool import Pool
from gt.wire.shared_memory.ranges import COLD_AFTER_SECONDS, PAGE_BYTES
from gt.worker.base.backend import Backend, backend
from gt.worker.device import registered_memory
from gt.worker.device.async_copies import Staging
from gt.worker.device.registered_memory import UNUSED_SECONDS, RegisteredMemory

F32 = np.dtype(np.float32)
PIECE = 8 * PAGE_BYTES
COUNT = 20_000
"""Elements of an array: of two pieces and some more."""
PATIENCE = 60.0
"""Seconds after which what should have come has not."""
CLIENT = 7

pytestmark = pytest.mark.usefixtures("_small_pieces")


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered_memory, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(registered_memory, "MIN_REGISTERED_BYTES", PIECE)


class Sides(NamedTuple):
    """A client's memory and a worker that maps it."""

    computed: Backend
    staging: Staging
    memory: RegisteredMemory
    pool: Pool
    borrower: Borrower

    def room(self, count: int = COUNT) -> Any:
        """A block of the client's."""
        room = self.pool.room(4 * count)
        assert room is not None
        return room.view(F32)

    def lent(self, values: Any) -> Any:
        """A block with these values, as its client lends it."""
        room = self.room(values.size)
        room[:] = values
        return self.read(room)

    def read(self, room: Any) -> Any:
        """A block of the client's as the worker reads it."""
        place = self.pool.place(room)
        assert place is not None
        return self.borrower.read(CLIENT, *place, room.shape, F32, place)

    def offered(self, block: Any) -> Any:
        """A block of the client's as the worker writes to it."""
        place = self.pool.place(block)
        assert place is not None
        return self.borrower.write(CLIENT, *place, block.shape, F32)

    def begin(self, array: Any) -> tuple[Any, Any]:
        """A value on its way to the device, all of whose copies were started, and the event behind them."""
        value, incoming = self.staging.puts.bring(array)
        assert incoming is not None
        wait(lambda: incoming.event is not None, self.staging.puts.turn)
        assert self.computed.streams is not None
        self.computed.streams.compute.wait_event(incoming.event)
        return value, incoming.event

    def put(self, array: Any) -> Any:
        """The values that come to the device. At the end nothing is under way."""
        found = self.computed.to_host(self.begin(array)[0])
        self.settle()
        return found

    def fetch(self, value: Any, block: Any) -> None:
        """Have a value of the device come to a place of the client's."""
        outgoing = self.staging.fetches.send(value, block)
        wait(lambda: not outgoing.left, self.staging.fetches.turn)

    def settle(self) -> None:
        """Wait until no put is under way."""
        wait(lambda: not self.staging.puts.under_way, self.staging.puts.turn)


Make = Callable[..., Sides]


def wait(come: Callable[[], bool], turn: Callable[[], object]) -> None:
    """Take turns until something has come."""
    until = time.monotonic() + PATIENCE
    while not come():
        assert time.monotonic() < until, "it has not come"
        turn()


@pytest.fixture
def sides() -> Iterator[Make]:
    """Makes them, with a limit of registered bytes; at the end nothing is registered any more."""
    made: list[Sides] = []

    def make(limit: int = 64 << 20) -> Sides:
        computed = backend("cuda:0")
        assert computed.streams is not None
        assert computed.pinning is not None
        memory = RegisteredMemory(computed.streams, limit)
        staging = Staging(computed.streams, computed.pinning.pin, memory)
        made.append(Sides(computed, staging, memory, Pool(64 << 20), Borrower()))
        return made[-1]

    yield make
    for each in made:
        each.settle()
        each.memory.check()
        each.memory.trim(inf)
        assert each.memory.nbytes == 0


def numbers(n: int) -> Any:
    return np.arange(COUNT, dtype=np.float32) + n


def pages(count: int = COUNT) -> int:
    """The bytes of the pages of a block."""
    return -(-(4 * count + PAGE_BYTES // 2) // PAGE_BYTES) * PAGE_BYTES


@pytest.mark.usefixtures("in_any_order")
def test_a_block_is_registered_at_its_second_use_and_read_where_it_is(sides: Make) -> None:
    """Other values come each time, and each time the right ones."""
    at = sides()
    room = at.room()
    for n in range(5):
        room[:] = numbers(n)
        np.testing.assert_array_equal(at.put(at.read(room)), numbers(n))
        assert at.memory.nbytes == (pages() if n else 0)
        assert at.staging.puts.direct.nbytes == n * room.nbytes


@pytest.mark.usefixtures("in_any_order")
def test_a_fetch_is_written_where_its_client_wants_it(sides: Make) -> None:
    """All of a block, and a part of one that other workers fill, too."""
    at = sides()
    block = at.pool.empty((COUNT,), F32)
    for n in range(4):
        at.fetch(at.computed.from_host(numbers(n)) * 2, at.offered(block))
        np.testing.assert_array_equal(block, numbers(n) * 2)
        assert at.memory.nbytes == (pages() if n else 0)
    half = at.computed.from_host(np.full(COUNT // 2, -1.0, np.float32))
    at.fetch(half, at.offered(block)[COUNT // 2 :])
    np.testing.assert_array_equal(block, np.where(np.arange(COUNT) < COUNT // 2, numbers(3) * 2, -1))
    assert at.staging.fetches.direct.nbytes == 3 * block.nbytes + half.nbytes


@pytest.mark.usefixtures("in_any_order")
def test_a_block_is_given_back_when_the_device_has_read_it(sides: Make) -> None:
    """Before that its client would write something else there."""
    at = sides()
    for n in range(2):
        at.put(at.lent(numbers(n)))
    at.borrower.returned.clear()
    value, event = at.begin(at.lent(numbers(5)))
    if at.staging.puts.under_way:
        assert not at.borrower.returned
    at.settle()
    assert event.done
    assert len(at.borrower.returned) == 1
    np.testing.assert_array_equal(at.computed.to_host(value), numbers(5))


def test_pages_that_were_given_up_are_not_copied_from_any_more(sides: Make) -> None:
    """A block has other pages, at the same address, after it was not used for a while: what is registered is not them."""
    at = sides()
    for n in range(3):
        at.put(at.lent(numbers(n)))
    first = stamped_range(at.lent(numbers(0)))
    assert first is not None
    assert at.memory.ranges[first.address].stamp == first.stamp
    at.pool.trim(1.0)
    at.pool.trim(2.0 + COLD_AFTER_SECONDS)
    for n in range(3, 6):
        lent = at.lent(numbers(n))
        again = stamped_range(lent)
        assert again is not None
        assert again.address == first.address
        assert again.stamp != first.stamp
        np.testing.assert_array_equal(at.put(lent), numbers(n))
        del lent
        assert at.memory.nbytes == (pages() if n > 3 else 0)


def test_only_so_much_is_registered_and_what_was_used_last_stays(sides: Make) -> None:
    """Three blocks in turn, with room for two: all values are right, and no more is registered than may be."""
    at = sides(2 * pages())
    rooms = [at.room() for _ in range(3)]
    for n in range(12):
        rooms[n % 3][:] = numbers(n)
        np.testing.assert_array_equal(at.put(at.read(rooms[n % 3])), numbers(n))
        at.memory.check()
    assert at.memory.nbytes == 2 * pages()
    registered = [len(each.pieces) for each in at.memory.ranges.values()]
    assert registered == [0, 3, 3], "the last two have all their pieces"
    assert at.staging.puts.direct.nbytes == 9 * rooms[0].nbytes


def test_what_is_not_used_is_registered_no_more(sides: Make) -> None:
    """Its client may have given its pages up, and they stay as long as they are registered."""
    at = sides()
    at.memory.trim(5.0)
    for n in range(2):
        at.put(at.lent(numbers(n)))
    at.memory.trim(5.0 + UNUSED_SECONDS / 2)
    assert at.memory.nbytes == pages()
    at.memory.trim(5.0 + UNUSED_SECONDS)
    assert at.memory.nbytes == 0
    assert not at.memory.ranges


@pytest.mark.usefixtures("in_any_order")
def test_a_host_that_locks_no_memory_copies_all_the_same(sides: Make, caplog: pytest.LogCaptureFixture) -> None:
    """One line says so; what was registered before is used on."""
    at = sides()
    known, other = at.room(), at.room()
    for n in range(2):
        known[:] = numbers(n)
        at.put(at.read(known))
    place = stamped_range(at.read(other))
    assert place is not None
    at.memory.runtime.hostRegister(place.address, PAGE_BYTES, 0)  # so it cannot be registered a second time
    try:
        with caplog.at_level(logging.WARNING):
            for n in range(4):
                other[:] = numbers(n)
                np.testing.assert_array_equal(at.put(at.read(other)), numbers(n))
        assert [record.message.count("GT_REGISTERED_MEMORY=0") for record in caplog.records] == [1]
        assert at.memory.nbytes == pages()
        np.testing.assert_array_equal(at.put(at.read(known)), numbers(1))
        assert at.staging.puts.direct.nbytes == 2 * known.nbytes
    finally:
        at.memory.runtime.hostUnregister(place.address)


@pytest.mark.usefixtures("in_any_order")
def test_nothing_is_unregistered_while_it_is_copied(sides: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Neither for others nor because time is up; a device that is told to says so."""
    with caplog.at_level(logging.DEBUG, registered_memory.__name__):
        at = sides(pages())
        rooms = [at.room() for _ in range(2)]
        arrays = []
        for n in range(10):
            at.settle()
            rooms[n // 3 % 2][:] = numbers(n)
            arrays.append(at.begin(at.read(rooms[n // 3 % 2]))[0] * 1)
            at.memory.trim(20.0 * n)
        for n, each in enumerate(arrays):
            np.testing.assert_array_equal(at.computed.to_host(each), numbers(n))
    assert at.staging.puts.direct.nbytes > 0
    assert not [record.message for record in caplog.records if "are registered" not in record.message]


def test_other_memory_is_not_registered(sides: Make) -> None:
    """That is of the worker alone, too small, does not begin a block, or is not in one piece."""
    at = sides()
    room = at.room(2 * COUNT)
    room[:] = 3
    for array in (numbers(0), at.read(room[COUNT:]), at.lent(numbers(0)[:100]), at.read(room)[::2]):
        for _ in range(3):
            np.testing.assert_array_equal(at.put(array), array)
    assert at.memory.nbytes == at.staging.puts.direct.nbytes == 0
