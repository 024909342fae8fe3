"""Rows of few elements: the same bits as NumPy's own functions, and the same errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import IndexOutOfRange
from gt.ir.dtypes import as_dtype
from gt.ir.infer import infer
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.kernels import short_rows
from gt.worker.op_table.op_table import KERNELS

Array = np.ndarray[Any, Any]
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, short_rows.MAX_ROW_ELEMENTS))


@pytest.fixture(autouse=True)
def _few_rows_are_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_rows, "MIN_ROWS", 1)
        yield


def call_of(op: str, *operands: Array, **attributes: Any) -> KernelCall:
    specs = [spec(as_dtype(each.dtype.name), each.shape) for each in operands]
    (result,) = infer(op, specs, attributes)
    return KernelCall(np, op, attributes, tuple(specs), result, result.shape, tuple((0, size) for size in result.shape))


def drawn(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Few different values, so that many are equal: zeros of both signs and NaN among them."""
    random = np.random.default_rng(seed)
    if dtype.startswith("f"):
        return random.choice(np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf], dtype), shape)
    return random.integers(0, 4, shape).astype(dtype)


@settings(max_examples=cases(100), deadline=None)
@given(
    SHAPES, st.sampled_from(["float32", "float64", "int32", "uint8"]), st.sampled_from(["argmax", "argmin"]),
    st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_the_first_of_equals_is_found(
    shape: tuple[int, int, int], dtype: str, op: str, keepdims: bool, turned: bool, seed: int
) -> None:
    """Or the first NaN, however rows lie."""
    x = drawn(shape, dtype, seed)
    x = x.transpose(2, 0, 1).copy().transpose(1, 2, 0) if turned else x
    call = call_of(op, x, axis=2, keepdims=keepdims)
    assert short_rows.is_arg(call)
    found = KERNELS[op](call)(x)
    expected = getattr(x, op)(2, keepdims=keepdims)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=cases(60), deadline=None)
@given(SHAPES, st.booleans(), st.integers(0, 99))
def test_one_element_of_each_row_is_read_and_added_to(shape: tuple[int, int, int], turned: bool, seed: int) -> None:
    """From the end too."""
    random = np.random.default_rng(seed)
    x, value = random.standard_normal(shape), random.standard_normal((*shape[:2], 1))
    x = x.transpose(2, 0, 1).copy().transpose(1, 2, 0) if turned else x
    index = random.integers(-shape[2] if seed % 2 else 0, shape[2], (*shape[:2], 1))
    places = np.where(index < 0, index + shape[2], index)
    found = KERNELS["gather"](call_of("gather", x, index, axis=2))(x, index)
    np.testing.assert_array_equal(found, np.take_along_axis(x, places, 2))
    before = x.copy()
    total = KERNELS["scatter_add"](call_of("scatter_add", x, index, value, axis=2))(x, index, value)
    expected = x.copy()
    np.put_along_axis(expected, places, found + value, 2)
    np.testing.assert_array_equal(total, expected)
    np.testing.assert_array_equal(x, before)
    assert total.flags.c_contiguous


@pytest.mark.parametrize("wrong", [3, -4])
def test_an_index_out_of_range_is_refused(wrong: int) -> None:
    x, index = np.zeros((4, 3)), np.array([[0], [2], [wrong], [1]])
    with pytest.raises(IndexOutOfRange):
        KERNELS["gather"](call_of("gather", x, index, axis=1))(x, index)
    with pytest.raises(IndexOutOfRange):
        KERNELS["scatter_add"](call_of("scatter_add", x, index, np.ones((4, 1)), axis=1))(x, index, np.ones((4, 1)))


@settings(max_examples=cases(60), deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.integers(2, 3), min_size=2, max_size=2), st.integers(0, 5))
def test_windows_become_rows(rows: int, columns: int, sizes: list[int], order: int) -> None:
    """A view where it can be one, else a copy that lies row by row: as NumPy has it."""
    whole = np.arange(600.0).reshape(20, 30)
    views = (
        np.lib.stride_tricks.sliding_window_view(whole, sizes)[: 2 * rows : 2, : 3 * columns : 3],
        np.lib.stride_tricks.sliding_window_view(whole, sizes)[: 2 * rows : 2, : 3 * columns : 3].copy(),
        np.arange(float(rows * columns * sizes[0] * sizes[1])).reshape(*sizes, rows, columns).transpose(2, 3, 0, 1),
        np.arange(float(rows * columns * sizes[0] * sizes[1])).reshape(*sizes, rows, columns).transpose(2, 3, 1, 0),
        np.broadcast_to(whole[:rows, :columns, None, None], (rows, columns, *sizes)),
        whole[: rows * 2, : columns * 3].reshape(rows, 2, columns, 3).transpose(0, 2, 1, 3),
    )
    x = views[order]
    shape = (*x.shape[:2], x.shape[2] * x.shape[3])
    call = call_of("reshape", x, shape=shape)
    assert short_rows.joined(call) == 2
    found, expected = KERNELS["reshape"](call)(x), x.reshape(shape)
    np.testing.assert_array_equal(found, expected)
    assert found.strides == expected.strides
    assert np.shares_memory(found, x) == np.shares_memory(expected, x)
