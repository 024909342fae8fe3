"""Memory that is used again: never by two, never for ever, and after a fork by neither side."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.wire.shared_memory.memfd import map_memory
from gt.wire.shared_memory.pool import MAX_UNPOOLED_BYTES, Pool
from gt.wire.shared_memory.ranges import COLD_AFTER_SECONDS

F64 = np.dtype(np.float64)
LARGE = 1 << 20
ROOM = 256 << 20


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex128, np.bool_, ml_dtypes.bfloat16])
def test_an_array_is_as_asked_for(dtype: Any) -> None:
    pool = Pool(ROOM)
    for shape in ((LARGE,), (3, 5, LARGE), (2, 3), (), (0, LARGE)):
        array = pool.empty(shape, np.dtype(dtype))
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert array.flags.writeable
        array[...] = 1
        assert (array == 1).all()


def test_memory_is_used_again_when_the_last_view_is_gone() -> None:
    pool = Pool(ROOM)
    first = pool.empty((LARGE,), F64)
    place, view = address(first), first[10:20][::-1].reshape(2, 5)
    del first
    second = pool.empty((LARGE,), F64)
    assert address(second) != place, "a view still reads it"
    del view
    assert address(pool.empty((LARGE - 7,), F64)) == place, "nearly as large"


def test_it_is_known_how_much_finds_memory_that_was_used_before() -> None:
    """Of that size, and as long as it is warm. Without memory to share there is nothing to touch."""
    pool = Pool(ROOM)
    assert not pool.has_warm(8 * LARGE, 1), "none was used"
    arrays = [pool.room(8 * LARGE) for _ in range(2)]
    assert not pool.has_warm(8 * LARGE, 1), "it is in use"
    del arrays
    assert [pool.has_warm(8 * LARGE, count) for count in (1, 2, 3)] == [True, True, False]
    assert not pool.has_warm(4 * LARGE, 1)
    pool.trim(1 + COLD_AFTER_SECONDS)
    assert not pool.has_warm(8 * LARGE, 1), "its pages were given up"
    assert Pool(0).has_warm(8 * LARGE, 9)


def test_pages_of_what_is_idle_are_given_up() -> None:
    pool = Pool(ROOM)
    array = pool.empty((4 * LARGE,), F64)
    array[...] = 1
    pool.trim(100.0)
    before = resident()
    del array
    pool.trim(100.0)
    assert before - resident() < 8 * LARGE, "warm"
    pool.trim(100.0 + COLD_AFTER_SECONDS)
    assert before - resident() > 24 * LARGE, "cold"
    assert not pool.empty((4 * LARGE,), F64).any(), "other pages"


@pytest.mark.parametrize("limit", [0, LARGE])
def test_without_room_arrays_are_ordinary(limit: int) -> None:
    """Memory that is not there, or is all in use, is no error."""
    pool = Pool(limit)
    arrays = [pool.empty((LARGE // 2,), np.dtype(np.uint8)) for _ in range(5)]
    for number, array in enumerate(arrays):
        array[...] = number
    assert [int(array[7]) for array in arrays] == list(range(5))
    assert pool.room(2 * LARGE) is None
    assert pool.place(np.empty(MAX_UNPOOLED_BYTES + 1, np.uint8)) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=40))
@settings(max_examples=cases(8))
def test_no_two_arrays_share_memory(steps: list[tuple[int, int]]) -> None:
    """Whatever is taken and dropped in whatever order, each array keeps what was written to it."""
    pool, held = Pool(ROOM), dict[int, tuple[int, np.ndarray[Any, Any]]]()
    for count, (slot, size) in enumerate(steps):
        held.pop(slot, None)
        held[slot] = count, pool.empty((size * LARGE // 8,), F64)
        held[slot][1][::4096] = count
        assert all((each[::4096] == number).all() for number, each in held.values())
    held.clear()
    gc.collect()
    pool.trim(0.0)
    if pool.arena is not None:
        pool.arena.ranges.check()
        assert pool.arena.ranges.used == {}


def test_another_finds_what_lies_at_a_place() -> None:
    pool = Pool(ROOM)
    array = pool.empty((LARGE,), F64)
    array[...] = np.arange(LARGE)
    place = pool.place(array[1000:])
    assert place is not None
    where, offset = place
    other = np.ndarray((LARGE - 1000,), F64, map_memory(where, write=True), offset)
    np.testing.assert_array_equal(other, array[1000:])
    other[0] = -1
    assert array[1000] == -1


def test_after_a_renewal_nothing_of_before_is_used_again() -> None:
    """Whoever still writes to what was offered before touches nothing new; the memory goes with the last array in it."""
    pool = Pool(ROOM)
    kept, dropped = pool.empty((LARGE,), F64), pool.empty((LARGE,), F64)
    place = pool.place(dropped)
    assert place is not None
    zombie = np.ndarray((LARGE,), F64, map_memory(place[0], write=True), place[1])
    kept[...] = 1
    pool.renew()
    del dropped
    new = [pool.empty((LARGE,), F64) for _ in range(3)]
    for array in new:
        array[...] = 2
    zombie[...] = 3
    assert (kept == 1).all()
    assert all((array == 2).all() for array in new)
    assert pool.place(kept) is None
    assert len(pool.arenas) == 2
    del kept, zombie
    assert len(pool.arenas) == 1


def test_pools_leave_nothing_open() -> None:
    """A pool that is gone, and all its arrays, leaves no descriptor and no mapping."""

    def descriptors() -> list[str]:
        found = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except OSError:
                pass  # that of the listing itself
        return sorted(name for name in found if "memfd:gt-" in name)

    gc.collect()
    before = descriptors()
    for _ in range(20):
        pool = Pool(ROOM)
        array = pool.empty((LARGE,), F64)
        pool.renew()
        more = pool.empty((LARGE,), F64)
        del pool, array, more
    gc.collect()
    assert descriptors() == before


# forks


def in_child(check: Any) -> bool:
    """Whether `check()` is true in a forked child, which gets no further."""
    pid = os.fork()
    if pid == 0:
        right = False
        try:
            right = bool(check())
        finally:
            os._exit(0 if right else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_parent_and_child_write_for_themselves() -> None:
    """An array that was fetched before a fork belongs to both sides: neither sees what the other writes."""
    pool = Pool(ROOM)
    array, view = pool.empty((LARGE,), F64), None
    array[...] = 1
    view = array[::2]
    here, there = os.pipe()
    back, forth = os.pipe()

    def child() -> bool:
        os.read(here, 1)  # the parent has written
        right = bool((array == 1).all())
        array[...] = 3
        os.write(forth, b"x")
        return right and bool((view == 3).all())

    pid = os.fork()
    if pid == 0:
        os._exit(0 if child() else 1)
    array[...] = 2
    os.write(there, b"x")
    os.read(back, 1)  # the child has written
    assert (view == 2).all()
    assert (array == 2).all()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for descriptor in (here, there, back, forth):
        os.close(descriptor)
    assert in_child(lambda: (array == 2).all()), "what was written since is not lost by another fork"
    assert (array == 2).all()


def test_what_a_child_may_look_at_is_not_used_again() -> None:
    """The parent drops an array and takes others: the child's keeps its values."""
    pool = Pool(ROOM)
    array = pool.empty((LARGE,), F64)
    array[...] = 1
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(here, 1)
        os._exit(0 if (array == 1).all() else 1)
    del array
    pool.trim(0.0)
    for _ in range(3):
        pool.empty((LARGE,), F64)[...] = 5
    pool.trim(2 * COLD_AFTER_SECONDS)
    os.write(there, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(here)
    os.close(there)


def test_a_child_uses_nothing_of_its_parent() -> None:
    """What was warm in the parent is not the child's."""
    pool = Pool(ROOM)
    first = pool.empty((LARGE,), F64)
    place = pool.place(first)
    del first

    def child() -> bool:
        array = pool.empty((LARGE,), F64)
        array[...] = 9
        return pool.place(array) is None and pool.room(LARGE) is None

    assert in_child(child)
    again = pool.empty((LARGE,), F64)
    assert pool.place(again) == place
    assert not again.any()
