"""Every kernel that moves elements, makes them or multiplies matrices; and what a worker does that holds a part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_kernel import (
    ANY,
    FLOATS,
    NUMBERS,
    OTHER,
    Array,
    check,
    compute,
    few,
    filled,
    frozen,
    over,
    run,
    same,
    scalar,
    shapes,
    wide,
)

from gt.errors import IndexOutOfRange
from gt.ir import dtypes
from gt.ir.spec import spec
from gt.sharding.partition import Box, extent
from gt.worker.base.kernel_call import KernelCall, OperandPart
from gt.worker.kernels.indexing import segment_add
from gt.worker.op_table.op_table import KERNELS


def part(name: str, box: Box, whole: tuple[int, ...], *operands: Any, dtype: dtypes.DType, **attributes: Any) -> Array:
    """One instruction where this worker holds only `box` of a result of shape `whole`."""
    specs = tuple(
        spec(dtypes.as_dtype(o.dtype), o.shape) if isinstance(o, np.ndarray) else dtypes.scalar_kind(o)
        for o in operands
    )
    result = spec(dtype, extent(box))
    attributes["dtype"] = dtype
    out = KERNELS[name](KernelCall(np, name, attributes, specs, result, whole, box))(*map(frozen, operands))
    assert (out.dtype, out.shape) == (dtype.numpy, extent(box))
    return np.asarray(out)


# creation


@few
@given(data=st.data())
def test_full(data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(ANY)), data.draw(shapes)
    value = data.draw(scalar(dtype))
    out = run("full", value, shape=shape, dtype=dtypes.as_dtype(dtype))
    same(out, np.full(shape, value, dtype))


@few
@given(data=st.data())
def test_arange(data: st.DataObject) -> None:
    """Whole, and any part of it by itself."""
    dtype = dtypes.as_dtype(data.draw(st.sampled_from(NUMBERS[:3] + NUMBERS[4:])))
    numbers = st.integers(-3, 3) | (st.floats(-3, 3, width=16) if dtype.kind == "f" else st.nothing())
    start, step, size = data.draw(numbers), data.draw(numbers), data.draw(st.integers(0, 9))
    out = run("arange", start, step, shape=(size,), dtype=dtype)
    check(out, np.array([start + step * at for at in range(size)], float))
    cut = data.draw(st.integers(0, size))
    for low, high in ((0, cut), (cut, size)):
        mine = part("arange", ((low, high),), (size,), start, step, dtype=dtype, shape=(size,))
        same(mine, out[low:high])


def test_arange_counts_exactly_beyond_2_to_the_53() -> None:
    assert run("arange", 2**60 + 1, 1, shape=(2,), dtype=dtypes.int64).tolist() == [2**60 + 1, 2**60 + 2]


def test_a_worker_makes_its_own_part_only() -> None:
    whole = {"shape": (8, 3), "dtype": dtypes.float32}
    box = ((2, 7), (0, 3))
    assert part("full", box, (8, 3), 2.5, **whole).tolist() == [[2.5] * 3] * 5
    x = np.arange(3, dtype=np.float32)
    row = part("expand", box, (8, 3), x, dtype=dtypes.float32, shape=(8, 3))
    same(row, np.broadcast_to(x, (5, 3)))
    for name in ("uniform", "normal"):
        every = part(name, ((0, 8), (0, 3)), (8, 3), 7, 1, **whole)
        assert len(np.unique(every)) == 24
        same(part(name, box, (8, 3), 7, 1, **whole), every[2:7])


# shape


@few
@given(data=st.data())
def test_reshape_permute_and_expand(data: st.DataObject) -> None:
    x = data.draw(filled(data.draw(st.sampled_from(ANY)), shapes))
    order = tuple(data.draw(st.permutations(range(x.ndim))))
    same(run("permute", x, axes=order), np.transpose(x, order))
    shape = (1, *x.shape[::-1], 1)
    same(run("reshape", x, shape=shape), np.reshape(x, shape))
    wider = (*data.draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0)), *(3 if n == 1 else n for n in x.shape))
    same(run("expand", x, shape=wider), np.broadcast_to(x, wider))


@few
@given(data=st.data())
def test_cat(data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(ANY)), data.draw(hnp.array_shapes(max_dims=3, min_side=0, max_side=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    parts = [data.draw(filled(dtype, (*shape[:axis], size, *shape[axis + 1 :]))) for size in sizes]
    same(run("cat", *parts, axis=axis), np.concatenate(parts, axis))


def test_identities_return_their_operand() -> None:
    x = np.ones((2, 3), np.float32)
    assert np.shares_memory(run("tag", x, param=True), x)
    assert np.shares_memory(run("follow", x, np.zeros((2, 3), np.float64)), x)
    assert np.shares_memory(run("cast", x, dtype=dtypes.float32), x)


# slices


@st.composite
def windows(draw: st.DrawFn, x: Array) -> tuple[list[int], dict[str, Any], tuple[slice, ...]]:
    """Starts, attributes, and the same window as NumPy's subscript."""
    axes = sorted(draw(st.sets(st.sampled_from(range(x.ndim))))) if x.ndim else []
    starts, sizes, steps, index = [], [], [], [slice(None)] * x.ndim
    for axis in axes:
        cut = slice(*draw(st.slices(x.shape[axis])).indices(x.shape[axis]))
        places = range(cut.start, cut.stop, cut.step)
        starts.append(max(cut.start, 0))
        sizes.append(len(places))
        steps.append(cut.step)
        index[axis] = slice(cut.start, cut.stop if cut.stop >= 0 else None, cut.step) if places else slice(0, 0)
    return starts, {"axes": tuple(axes), "sizes": tuple(sizes), "steps": tuple(steps)}, tuple(index)


@few
@given(data=st.data())
def test_slice_and_update_slice(data: st.DataObject) -> None:
    """Forwards and backwards, along any axes, none of them and all."""
    x = data.draw(filled(data.draw(st.sampled_from(ANY)), shapes))
    starts, attributes, index = data.draw(windows(x))
    out = run("slice", x, *starts, **attributes)
    same(out, x[index])
    value = data.draw(filled(x.dtype.name, out.shape))
    expected = np.array(x)
    expected[index] = value
    same(run("update_slice", x, value, *starts, **attributes), expected)


def test_a_cut_slice_begins_where_its_part_does() -> None:
    """Of rows 9, 7, 5, 3 this worker holds the last two."""
    x = np.arange(20).reshape(10, 2)
    out = part("slice", ((2, 4), (0, 2)), (4, 2), x, 9, dtype=dtypes.int64, axes=(0,), sizes=(4,), steps=(-2,))
    same(out, x[[5, 3]])


@pytest.mark.parametrize(("start", "step"), [(-1, 1), (4, 1), (10, 1), (1, -1)])
def test_a_slice_that_does_not_fit_is_refused(start: int, step: int) -> None:
    x, value = np.zeros((6, 2)), np.zeros((3, 2))
    with pytest.raises(
        IndexOutOfRange, match=f"slice: 3 elements {step} apart from index {start} on .* axis 0 of size 6"
    ):
        run("slice", x, start, axes=(0,), sizes=(3,), steps=(step,))
    with pytest.raises(IndexOutOfRange, match="update_slice"):
        run("update_slice", x, value, start, axes=(0,), sizes=(3,), steps=(step,))


# indices


@st.composite
def indexed(draw: st.DrawFn) -> tuple[Array, Array, int]:
    """A tensor, an index into it that may be smaller along other axes, and the axis."""
    dtype = draw(st.sampled_from(NUMBERS))
    x = draw(filled(dtype, hnp.array_shapes(max_dims=3, max_side=4)))
    axis = draw(st.integers(0, x.ndim - 1))
    shape = [draw(st.integers(0, size)) if at != axis else draw(st.integers(0, 5)) for at, size in enumerate(x.shape)]
    size = x.shape[axis]
    index = draw(
        hnp.arrays(draw(st.sampled_from(["int8", "int32", "int64"])), shape, elements=st.integers(-size, size - 1))
    )
    return x, index, axis


@few
@given(case=indexed())
def test_gather(case: tuple[Array, Array, int]) -> None:
    x, index, axis = case
    expected = np.empty(index.shape, x.dtype)
    for at in np.ndindex(index.shape):
        expected[at] = x[(*at[:axis], index[at], *at[axis + 1 :])]
    same(run("gather", x, index, axis=axis), expected)


@few
@given(case=indexed(), data=st.data())
def test_scatter_add(case: tuple[Array, Array, int], data: st.DataObject) -> None:
    x, index, axis = case
    value = data.draw(filled(x.dtype.name, index.shape))
    assume(np.isfinite(wide(x)).all() and np.isfinite(wide(value)).all())
    expected = wide(np.array(x))
    with np.errstate(over="ignore"):  # integers wrap, and NumPy warns only where they are scalars
        for at in np.ndindex(index.shape):
            expected[(*at[:axis], index[at], *at[axis + 1 :])] += wide(value)[at]
    for xp in (np, OTHER):
        check(compute(xp, "scatter_add", (x, index, value), {"axis": axis}), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scatter_add_of_halves_where_no_place_comes_twice(dtype: str) -> None:
    """A GPU has no arithmetic of bfloat16: both are added in float32 and rounded once, on either backend."""
    x, value = np.array([[1.0, 2.0]], np.float32), np.array([[2.0**-8]], np.float32)
    kind = dtypes.as_dtype(dtype).numpy
    for xp in (np, OTHER):
        found = compute(xp, "scatter_add", (x.astype(kind), np.array([[1]]), value.astype(kind)), {"axis": 1})
        same(found, np.array([[1.0, 2.0 + 2.0**-8]], np.float32).astype(kind))


@pytest.mark.parametrize("axis", [0, 1])
def test_an_index_that_was_expanded_takes_whole_rows(axis: int) -> None:
    x = np.arange(20.0).reshape(4, 5)
    short = np.array([3, -1, 0])
    index = np.broadcast_to(short[:, None], (3, 5)) if axis == 0 else np.broadcast_to(short, (4, 3))
    same(run("gather", x, index, axis=axis), np.take(x, short, axis))


@pytest.mark.parametrize("bad", [5, -6, 2**40])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("expanded", [False, True])
def test_an_index_out_of_range_is_named(bad: int, count: int, expanded: bool) -> None:
    """On every path: one index a row or many, rows whole or single, NumPy or another array module."""
    x = np.zeros((3, 5), np.float32)
    index = np.array([[bad, 0][:count]] * 3)
    if expanded:
        index = np.broadcast_to(index[0], index.shape)
    value = np.zeros(index.shape, np.float32)
    for xp in (np, OTHER):
        with pytest.raises(IndexOutOfRange, match=f"gather: index {bad} is out of range for axis 1 of size 5"):
            compute(xp, "gather", (x, index), {"axis": 1})
        with pytest.raises(IndexOutOfRange, match=f"scatter_add: index {bad} is out of range for axis 1 of size 5"):
            compute(xp, "scatter_add", (x, index, value), {"axis": 1})


@st.composite
def listed(draw: st.DrawFn) -> tuple[Array, Array, int]:
    """A tensor, an index of any shape, and the axis of the tensor along which it counts, from either end."""
    x = draw(filled(draw(st.sampled_from(ANY)), hnp.array_shapes(max_dims=3, max_side=4)))
    axis = draw(st.integers(0, x.ndim - 1))
    size = x.shape[axis]
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4))
    kind = draw(st.sampled_from(["int8", "int32", "int64"]))
    return x, draw(hnp.arrays(kind, shape, elements=st.integers(-size, size - 1))), axis


@few
@given(case=listed())
def test_take(case: tuple[Array, Array, int]) -> None:
    x, index, axis = case
    same(run("take", x, index, axis=axis), np.take(x, index, axis))


@few
@given(case=listed(), ends=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_take_of_a_part_of_the_axis_leaves_zeros(case: tuple[Array, Array, int], ends: tuple[int, int]) -> None:
    x, index, axis = case
    first, last = sorted(min(end, x.shape[axis]) for end in ends)
    kept = [slice(None)] * x.ndim
    kept[axis] = slice(first, last)
    masked = np.zeros_like(x)
    masked[tuple(kept)] = x[tuple(kept)]
    expected = np.take(masked, index, axis)
    box = tuple((first, last) if at == axis else (0, size) for at, size in enumerate(x.shape))
    whole = tuple((0, size) for size in expected.shape)
    specs = (spec(dtypes.as_dtype(x.dtype), extent(box)), spec(dtypes.as_dtype(index.dtype), index.shape))
    held = (OperandPart(x.shape, box), OperandPart(index.shape, tuple((0, size) for size in index.shape)))
    for xp in (np, OTHER):
        call = KernelCall(
            xp, "take", {"axis": axis}, specs, spec(specs[0].dtype, expected.shape), expected.shape, whole, held
        )
        take = over(xp, KERNELS["take"](call))
        out = take(frozen(x[tuple(kept)]), index)
        assert out.dtype == x.dtype
        same(out, expected)
        if index.size and first < last:
            with pytest.raises(IndexOutOfRange, match=f"index {x.shape[axis]} is out of range for axis {axis} of size"):
                take(x[tuple(kept)], np.full(index.shape, x.shape[axis]))


@few
@given(case=listed(), data=st.data())
def test_segment_sum(case: tuple[Array, Array, int], data: st.DataObject) -> None:
    x, index, axis = case
    assume(x.dtype != bool)
    size = x.shape[axis]
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    value = data.draw(filled(x.dtype.name, shape))
    assume(np.isfinite(wide(value)).all())
    expected = wide(np.zeros_like(x))
    with np.errstate(over="ignore"):
        for at in np.ndindex(index.shape):
            here, there = (slice(None),) * axis, index[at]
            expected[(*here, there)] += wide(value)[(*here, *at)]
    check(run("segment_sum", value, index, axis=axis, size=size), expected)
    first, last = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    box = tuple((first, last) if at == axis else (0, n) for at, n in enumerate(x.shape))
    specs = tuple(spec(dtypes.as_dtype(a.dtype), a.shape) for a in (value, index))
    result = spec(specs[0].dtype, extent(box))
    call = KernelCall(np, "segment_sum", {"axis": axis, "size": size}, specs, result, x.shape, box)
    out = KERNELS["segment_sum"](call)(value, index)
    assert (out.dtype, out.shape) == (value.dtype, result.shape)
    check(out, expected[tuple(slice(*ends) for ends in box)])


@pytest.mark.parametrize("size", [3, 50, 400])
def test_segment_sum_of_many_and_of_few_rows_a_place(size: int) -> None:
    """Where few rows share a place they are added turn by turn, in their order, to the last bit; else run by run."""
    generator = np.random.default_rng(size)
    value, index = generator.standard_normal((200, 5), np.float32), generator.integers(0, size, 200)
    expected = np.zeros((size, 5), np.float32)
    np.add.at(expected, index, value)
    out = run("segment_sum", value, index, axis=0, size=size)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    if size == 400:
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("places", [[0, 1, 2, 3], [1, 4], [3], [2, 2, 3]])
def test_segment_sum_of_places_in_order(places: list[int]) -> None:
    """Rising places, or places in order of which some are equal."""
    value = np.arange(3 * len(places), dtype=np.float32).reshape(-1, 3) + 1
    expected = np.zeros((5, 3), np.float32)
    np.add.at(expected, places, value)
    np.testing.assert_array_equal(run("segment_sum", value, np.array(places), axis=0, size=5), expected)


@pytest.mark.parametrize("bad", [5, -6, 2**40])
def test_a_listed_place_out_of_range_is_named(bad: int) -> None:
    index = np.array([0, bad])
    for xp in (np, OTHER):
        with pytest.raises(IndexOutOfRange, match=f"take: index {bad} is out of range for axis 1 of size 5"):
            compute(xp, "take", (np.zeros((3, 5)), index), {"axis": 1})
        with pytest.raises(IndexOutOfRange, match=f"segment_sum: index {bad} is out of range for axis 1 of size 5"):
            compute(xp, "segment_sum", (np.zeros((3, 2)), index), {"axis": 1, "size": 5})


@few
@given(places=st.lists(st.integers(0, 5), max_size=40), data=st.data())
def test_sorted_sums_equal_additions_one_by_one(places: list[int], data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(np.int64, len(places)))
    expected, out = np.zeros(6, np.int64), np.zeros(7, np.int64)
    np.add.at(expected, places, values)
    segment_add(np, len(places))(out, np.array(places, np.int64), values)
    same(out[:6], expected)


# matrices


@few
@given(data=st.data())
def test_matmul(data: st.DataObject) -> None:
    """In any layout, with leading dimensions that broadcast, and with nothing to add up."""
    dtype = data.draw(st.sampled_from(NUMBERS))
    both = data.draw(
        hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=2, max_side=3)
    ).input_shapes
    assume(all(len(shape) >= 2 for shape in both))
    a, b = (data.draw(filled(dtype, shape)) for shape in both)
    if dtype in FLOATS:
        a, b = (np.round(np.clip(np.nan_to_num(wide(x)), -100, 100)).astype(x.dtype) for x in (a, b))
    check(run("matmul", a, b), wide(a) @ wide(b))


def test_no_inner_elements_multiply_to_zero() -> None:
    assert run("matmul", np.zeros((2, 0), np.int32), np.zeros((0, 3), np.int32)).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("length", [20, 400])
def test_windows_of_several_examples_are_one_product_or_one_each(length: int) -> None:
    """By how many there are of an example; either way what the formula says, and the same over both array modules."""
    generator = np.random.default_rng(0)
    x, w = generator.integers(-4, 5, (3, 1, 2, length)).astype(np.float32), np.ones((1, 2, 2, 3), np.float32)
    w[0, 1] = [[1, -1, 2], [0, 3, 1]]
    found = run("conv", x, w, strides=(1,), dilations=(1,), pads=(0, 0), spreads=(1,))
    expected = [[[np.correlate(each[0, 0], a) + np.correlate(each[0, 1], b) for a, b in w[0]]] for each in x]
    np.testing.assert_array_equal(found, expected)
