"""Where parts of fetches go that come from a GPU."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from gt.bounds import MAX_INLINE_BYTES
from gt.wire.bulk import GET, MAX_IN_FLIGHT_BYTES, Outbox
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.pool import Pool
from gt.worker.transfer.fetch_memory import FetchMemory

CLIENT = b"client"
KEY = (GET, 1, 7, 0)
LARGE = (2, MAX_INLINE_BYTES)
VALUE = np.zeros(LARGE, np.uint8)


def memory(limit: int = 8 << 20) -> tuple[FetchMemory, Outbox]:
    outbox = Outbox("", Borrower())
    return FetchMemory(outbox, Pool(limit)), outbox


def test_a_part_goes_to_the_place_that_was_offered_for_it() -> None:
    found, outbox = memory()
    pool = Pool(8 << 20)
    theirs = pool.empty(LARGE, np.dtype(np.uint8))
    place = pool.place(theirs)
    assert place is not None
    offer = msgpack.packb([*place, LARGE, [(0, size) for size in LARGE]])
    list(outbox.offered(CLIENT, KEY, MAX_IN_FLIGHT_BYTES, offer))
    array, placed = found(KEY, CLIENT, VALUE)
    assert placed
    assert array is not None
    array[...] = 3
    assert (theirs == 3).all()


def test_without_a_place_it_goes_to_memory_that_is_used_again() -> None:
    found, _ = memory()
    array, placed = found(KEY, CLIENT, VALUE)
    assert array is not None
    assert not placed
    assert (array.shape, array.dtype, array.flags.c_contiguous) == (LARGE, np.uint8, True)
    before: Any = array.__array_interface__["data"]
    del array
    array, _ = found(KEY, CLIENT, VALUE)
    assert array is not None
    assert array.__array_interface__["data"] == before


@pytest.mark.parametrize("value", [VALUE[:1, :MAX_INLINE_BYTES], VALUE[:0], np.float32(1)])
def test_what_travels_with_its_message_needs_none(value: Any) -> None:
    assert memory()[0](KEY, CLIENT, value) == (None, False)
