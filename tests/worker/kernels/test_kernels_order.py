"""Kernels that go along an axis, sort, search and find: against loops that say what they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_kernel import ANY, INTS, KINDS, Array, check, few, filled, run, wide

from gt.ir.dtypes import as_dtype

lines = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
axes = st.integers(0, 2)


def each_line(function: Any, x: Array, axis: int) -> Array:
    """A function of lists applied along an axis."""
    out = np.zeros(x.shape, np.int64)
    for place in np.ndindex(*x.shape[:axis], *x.shape[axis + 1 :]):
        line = (*place[:axis], slice(None), *place[axis:])
        out[line] = function(x[line].tolist())
    return out


@pytest.mark.parametrize(("name", "function"), [("cumsum", np.cumsum), ("cumprod", np.cumprod)])
@few
@given(data=st.data())
def test_sums_and_products_from_the_start(name: str, function: Any, data: st.DataObject) -> None:
    x = data.draw(filled(data.draw(st.sampled_from(("float32", "float64", *INTS))), lines))
    axis = data.draw(axes) % x.ndim
    with np.errstate(all="ignore"):
        expected = function(wide(x), axis=axis)
        out = run(name, x, axis=axis)
        if x.dtype.kind == "f":  # joined in the dtype itself, step by step
            np.testing.assert_allclose(
                out.astype(float), expected.astype(x.dtype).astype(float),
                rtol=64 * float(np.finfo(x.dtype).eps), atol=64 * float(np.finfo(x.dtype).eps) * 8,
            )  # fmt: skip
        else:
            check(out, expected)


def test_halves_are_added_in_float32() -> None:
    """4,096 times 1 is 4,096, not the 2,048 or 256 at which half precision stops counting."""
    for dtype in ("float16", "bfloat16"):
        ones = np.ones(4096, as_dtype(dtype).numpy)
        assert float(run("cumsum", ones, axis=0)[-1]) == 4096
        assert float(run("cumprod", ones, axis=0)[-1]) == 1


def latest(line: list[Any], larger: Any) -> list[int]:
    best, places = 0, []
    for at, value in enumerate(line):
        if value != value or (line[best] == line[best] and larger(value, line[best])):
            best = at
        places.append(best)
    return places


@few
@given(st.sampled_from(KINDS["ordered"]), st.data())
def test_the_last_extreme_so_far(dtype: str, data: st.DataObject) -> None:
    x = data.draw(filled(dtype, lines))
    axis = data.draw(axes) % x.ndim
    largest = each_line(lambda line: latest(line, lambda a, b: a >= b), x, axis)
    smallest = each_line(lambda line: latest(line, lambda a, b: a <= b), x, axis)
    np.testing.assert_array_equal(run("argcummax", x, axis=axis), largest)
    np.testing.assert_array_equal(run("argcummin", x, axis=axis), smallest)


def order(line: list[Any], descending: bool) -> list[int]:
    def key(at: int) -> tuple[Any, ...]:
        value = line[at]
        sign = -1 if descending else 1
        return (sign * (value != value), sign * value if value == value else 0)

    return sorted(range(len(line)), key=key)


@few
@given(st.sampled_from(KINDS["ordered"]), st.booleans(), st.data())
def test_sorting_is_stable_and_nan_is_the_largest(dtype: str, descending: bool, data: st.DataObject) -> None:
    x = data.draw(filled(dtype, lines))
    axis = data.draw(axes) % x.ndim
    expected = each_line(lambda line: order(line, descending), x, axis)
    np.testing.assert_array_equal(run("argsort", x, axis=axis, descending=descending), expected)


@pytest.mark.parametrize("dtype", KINDS["float"])
@pytest.mark.parametrize("line", [[np.nan, 0], [1, np.nan, 2], [np.nan, 1, np.nan, -1], [np.inf, np.nan, -np.inf]])
def test_nan_is_the_largest_of_every_float(dtype: str, line: list[float]) -> None:
    """Also of bfloat16, whose NaN NumPy's own sort leaves wherever it is."""
    x = np.array(line, as_dtype(dtype).numpy)
    for descending in (False, True):
        np.testing.assert_array_equal(run("argsort", x, axis=0, descending=descending), order(line, descending))
    for name, extreme in (("argmax", max), ("argmin", min)):
        assert run(name, x, axis=0, keepdims=False) == line.index(next((v for v in line if v != v), extreme(line)))
    ranked = x[order(line, False)]
    nans, count = sum(v != v for v in line), len(line)
    values = np.array([np.nan, 1, -np.inf], x.dtype)
    for rows in (ranked, np.stack([ranked, ranked])):  # found by NumPy, and by halves
        asked = values if rows.ndim == 1 else np.stack([values, values])
        for right, expected in ((False, count - nans), (True, count)):
            found = run("searchsorted", rows, asked, right=right)
            np.testing.assert_array_equal(found[..., 0], expected)
            reached = [sum(v <= w if right else v < w for v in line) for w in (1, -np.inf)]
            np.testing.assert_array_equal(found[..., 1:] - reached, 0)


@few
@given(st.sampled_from(KINDS["real"]), st.data())
def test_rows_are_sorted_by_their_elements_in_turn(dtype: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4))
    x = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(-1, 1))).astype(as_dtype(dtype).numpy)
    expected = sorted(range(shape[0]), key=lambda row: x[row].tolist())
    np.testing.assert_array_equal(run("lexsort", x), expected)


@few
@given(st.sampled_from(KINDS["ordered"][1:]), st.booleans(), st.booleans(), st.data())
def test_searching_counts_what_is_below(dtype: str, right: bool, rows: bool, data: st.DataObject) -> None:
    numbers = st.integers(0, 5)
    size, count, lead = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 4)), (3,) if rows else ()
    x = np.sort(data.draw(hnp.arrays(dtype, (*lead, size), elements=numbers)), -1)
    values = data.draw(hnp.arrays(dtype, (3, count), elements=numbers))
    row = x[:, None, :] if rows else x
    expected = (row <= values[..., None] if right else row < values[..., None]).sum(-1)
    np.testing.assert_array_equal(run("searchsorted", x, values, right=right), expected)


@few
@given(hnp.arrays(bool, st.integers(0, 20)))
def test_places_where_a_mask_is_true(mask: Array) -> None:
    np.testing.assert_array_equal(run("flatnonzero", mask, size=int(mask.sum())), np.flatnonzero(mask))
    if mask.any():
        with pytest.raises(ValueError, match="flatnonzero: true"):
            run("flatnonzero", mask, size=int(mask.sum()) - 1)


@few
@given(st.sampled_from(ANY), st.data())
def test_of_values_for_one_place_the_last_is_written(dtype: str, data: st.DataObject) -> None:
    x = data.draw(filled(dtype, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)))
    axis = data.draw(axes) % x.ndim
    shape = tuple(data.draw(st.integers(0, 5 if at == axis else size)) for at, size in enumerate(x.shape))
    index = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(-x.shape[axis], x.shape[axis] - 1)))
    if data.draw(st.booleans()):  # whole rows at a time
        index = np.broadcast_to(index[tuple(slice(0, None if at == axis else 1) for at in range(x.ndim))], shape)
    values = data.draw(filled(dtype, shape))
    expected = np.array(x)
    for place in np.ndindex(*shape):
        expected[(*place[:axis], index[place], *place[axis + 1 :])] = values[place]
    check(run("scatter", x, index, values, axis=axis), expected)


def test_a_place_out_of_range_is_refused() -> None:
    with pytest.raises(IndexError, match="scatter: index 3 is out of range for axis 0 of size 3"):
        run("scatter", np.zeros(3), np.array([3]), np.ones(1), axis=0)
