"""What passes over a worker's bulk socket."""

from __future__ import annotations

import weakref
from typing import Any

import msgpack
import numpy as np

from gt.bounds import MAX_INLINE_BYTES
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.wire import messages as m
from gt.wire.bulk import BACK, GET, LENT, PUT, read_header
from gt.wire.shared_memory.pool import Pool
from gt.worker.base.backend import backend
from gt.worker.base.events import BulkIn, BulkOut
from gt.worker.bulk_data import BulkData
from gt.worker.core import WorkerCore


def data_of_a_worker() -> tuple[BulkData, list[Any], list[Any]]:
    """With what it has sent on the bulk socket, and said to the dispatcher."""
    sent: list[Any] = []
    said: list[Any] = []
    core = WorkerCore(backend("cpu"))
    return BulkData(core, sent.append, said.append, lambda _: None, lambda _: None, borrows=True), sent, said


def test_who_begins_anew_keeps_nothing_of_former_clients() -> None:
    """Their memory would stay mapped: nobody looks after what was used by an earlier connection."""
    data, _, _ = data_of_a_worker()
    before = [weakref.ref(each) for each in (data.streams.borrower, data.streams.outbox, data.streams.inbox)]
    data.incoming[(0, 1, 2, 3)] = 1, 2
    data.begin()
    assert [each() for each in before] == [None] * 3
    assert data.incoming == {}


def test_a_part_goes_with_its_message_or_by_itself() -> None:
    """A small one with it, a large one as a stream, and of one that is placed only that it is."""
    data, sent, said = data_of_a_worker()
    message, key = m.Part(7, [], False, b""), (GET, 1, 7, 0)
    data.part(BulkOut(message, key, b"client", np.arange(3)))
    assert said.pop() == m.Part(7, [], False, np.arange(3).tobytes())
    large = np.zeros(MAX_INLINE_BYTES + 1, np.uint8)
    data.part(BulkOut(message, key, b"client", large))
    assert said.pop() == m.Part(7, [], True, b"")
    assert (list(data.streams.outbox.streams), sent) == ([key], [])
    data.part(BulkOut(message, (GET, 1, 8, 0), b"client", large, placed=True))
    assert said.pop() == m.Part(7, [], True, b"")
    assert sent == [data.streams.outbox.wrote(b"client", (GET, 1, 8, 0))]
    assert list(data.streams.outbox.streams) == [key]


def test_a_put_that_is_called_off_while_another_one_lands_is_given_back() -> None:
    """What was lent for two puts is there when both are announced; what the core does for the first ends the second."""
    data, sent, _ = data_of_a_worker()
    stored, pool, data.core.number = data.core.stored, Pool(64 << 20), 0
    part = ((0, 100_000),)
    for client in (1, 2):
        room = pool.room(400_000)
        assert room is not None
        where, offset = pool.place(room) or ("", 0)
        header = msgpack.packb((LENT, PUT, client, 7, 0, offset))
        data.heard((b"client", header, msgpack.packb((where, part))))
        stored.expecting[client, 7] = (b"client", spec(float32, (100_000,)), part)
    landed: list[BulkIn] = []

    def act(event: BulkIn) -> None:
        landed.append(event)
        del stored.expecting[event.client, event.tensor]
        stored.forget(2)
        data.open_puts()

    data.act = act
    data.open_puts()
    assert [(event.client, event.tensor) for event in landed] == [(1, 7)]
    assert data.incoming == {}
    landed.clear()
    data.give_back()
    assert {read_header(header)[:2] for _, header, _ in sent} == {(BACK, (PUT, client, 7, 0)) for client in (1, 2)}
