"""Memory that is used again: never by two, never more of it than was agreed, and not for ever."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.recycling import IDLE, LARGE, Recycler, rounded

F64 = np.dtype(np.float64)


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex128, np.bool_, ml_dtypes.bfloat16])
def test_an_array_is_as_asked_for(dtype: Any) -> None:
    recycler = Recycler()
    for shape in ((LARGE,), (3, 5, LARGE), (2, 3), (), (0, LARGE)):
        array = recycler.empty(shape, np.dtype(dtype))
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[...] = 1
        assert (array == 1).all()


def test_memory_is_used_again_when_the_last_view_is_gone() -> None:
    recycler = Recycler()
    first = recycler.empty((LARGE,), F64)
    place, view = address(first), first[10:20][::-1].reshape(2, 5)
    del first
    second = recycler.empty((LARGE,), F64)
    assert address(second) != place, "a view still reads it"
    del view
    assert address(recycler.empty((LARGE - 7,), F64)) == place, "nearly as large"


def test_what_is_kept_is_bounded_and_given_up_when_idle() -> None:
    recycler = Recycler(kept=4 * 8 * LARGE)
    arrays = [recycler.empty((LARGE,), F64) for _ in range(6)]
    del arrays
    recycler.trim(100.0)
    assert recycler.nbytes == 4 * 8 * LARGE
    taken = recycler.empty((LARGE,), F64)
    assert recycler.nbytes == 3 * 8 * LARGE
    recycler.trim(100.0 + IDLE)
    assert (recycler.nbytes, recycler.free) == (0, {})
    del taken
    recycler.trim(101.0 + IDLE)
    assert recycler.nbytes == 8 * LARGE


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=40))
@settings(max_examples=cases(8))
def test_no_two_arrays_share_memory(steps: list[tuple[int, int]]) -> None:
    """Whatever is taken and dropped in whatever order, each array keeps what was written to it."""
    recycler, held = Recycler(), dict[int, tuple[int, np.ndarray[Any, Any]]]()
    for count, (slot, size) in enumerate(steps):
        held.pop(slot, None)
        array = recycler.empty((size * LARGE // 8,), F64)
        array[::4096] = count
        held[slot] = count, array
        assert all((each[::4096] == number).all() for number, each in held.values())
    held.clear()
    gc.collect()
    recycler.trim(0.0)
    assert recycler.nbytes == sum(block.size for blocks in recycler.free.values() for block, _ in blocks)


@given(st.integers(LARGE, 1 << 40))
def test_a_block_holds_what_is_asked_for_and_little_more(nbytes: int) -> None:
    assert nbytes <= rounded(nbytes) <= nbytes * 9 / 8 + 1
    assert rounded(rounded(nbytes)) == rounded(nbytes)
