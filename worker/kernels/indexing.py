"""Factories of kernels that read or write at indices: slices at run-time starts, and indices along one axis.

Indices are as NumPy's: −1 is the last. One out of range is `IndexOutOfRange` on every backend,
also where CuPy would wrap it around.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from gt.errors import IndexOutOfRange
from gt.ir.dtypes import HALF_DTYPES
from gt.worker.base.kernel_call import Kernel, KernelCall, OperandCheck

from . import short_rows
from .elementwise import chooser, nothing_of, wide

MIN_ROWS_PER_TURN: Final = 8
"""Places for each row that the fullest of them gets, below which rows are not added turn by turn."""


def slice_(call: KernelCall) -> Kernel:
    """A slice as a view. Where the result is cut along a sliced axis, its part of the slice."""
    axes, steps = call.attributes["axes"], call.attributes["steps"]
    window = _window(call, call.result.shape)
    moves = [call.box[axis][0] * step for axis, step in zip(axes, steps, strict=True)]
    if not any(moves):
        return lambda x, *starts: x[window(starts)]
    return lambda x, *starts: x[window([start + move for start, move in zip(starts, moves, strict=True)])]


def _written(call: KernelCall, *, own: bool) -> Callable[[Any], Any]:
    """From the first operand what is written to: a copy of it, or itself where it is nobody else's (`IN_PLACE_KERNELS`)."""
    xp = call.xp
    return (lambda x: x) if own else (lambda x: xp.array(x, order="C"))


def update_slice(call: KernelCall, *, own: bool = False) -> Kernel:
    if not call.attributes["axes"]:
        return lambda _x, value: value
    written, window = _written(call, own=own), _window(call, call.tensor(1).shape)

    def kernel(x: Any, value: Any, *starts: int) -> Any:
        out = written(x)
        out[window(starts)] = value
        return out

    return kernel


def _window(call: KernelCall, shape: tuple[int, ...]) -> Callable[[Any], tuple[slice, ...]]:
    """From the starts, the subscript of a window of `shape` into the first operand."""
    extents = call.tensor(0).shape
    axes, steps = call.attributes["axes"], call.attributes["steps"]
    whole = [slice(None)] * (axes[-1] + 1 if axes else 0)
    rows = [(axis, step, (shape[axis] - 1) * step, extents[axis]) for axis, step in zip(axes, steps, strict=True)]

    def window(starts: Any) -> tuple[slice, ...]:
        index = whole.copy()
        for (axis, step, reach, extent), start in zip(rows, starts, strict=True):
            if shape[axis] == 0:
                index[axis] = slice(0, 0)
                continue
            last = start + reach
            if not (0 <= start < extent and 0 <= last < extent):
                raise IndexOutOfRange(
                    f"{call.op}: {shape[axis]} elements {step} apart from index {start} on "
                    f"do not fit axis {axis} of size {extent}"
                )
            stop = last + (1 if step > 0 else -1)
            index[axis] = slice(start, stop if stop >= 0 else None, step)
        return tuple(index)

    return window


def _refuse(call: KernelCall, index: Any, size: int) -> Any:
    """The index. Raises `IndexOutOfRange` with the first place that is out of range; or, where that is found out later, has
    harmless places instead."""
    if call.later is not None and size and index.size:
        return _doubted(call, index, size)
    beyond = (index >= size) | (index < -size)
    if beyond.any():
        raise _error(call, size, int(index[beyond][0]))
    return index


def _error(call: KernelCall, size: int, index: int) -> IndexOutOfRange:
    return IndexOutOfRange(
        f"{call.op}: index {index} is out of range for axis {call.attributes['axis']} of size {size}"
    )


def look_later(call: KernelCall, size: int, found: Any) -> None:
    """Leave a check of a call: `found`, an int64 of the device, is 0, or an index that is out of range for `size`."""
    assert call.later is not None, "somebody looks at it later"
    call.later(OperandCheck(call, found, partial(_error, call, size)))


def _doubted(call: KernelCall, index: Any, size: int) -> Any:
    """The index with harmless places where it is out of range. What it repeats is looked at once, and is repeated after."""
    xp, nothing = call.xp, index.dtype.type(0)
    once = index[tuple(slice(None) if stride else slice(0, 1) for stride in index.strides)]
    beyond = (once >= size) | (once < -size)
    first = beyond.reshape(-1).argmax()
    found = xp.where(beyond, once, nothing).reshape(-1)[first]  # 0 is in range
    look_later(call, size, found.astype(np.int64))
    return xp.broadcast_to(xp.where(beyond, nothing, once), index.shape)


def _grid(call: KernelCall) -> Callable[[Any], tuple[Any, ...]]:
    """From an index, the subscript that names its places: along each other axis a place is its own number."""
    shape, axis = call.tensor(1).shape, call.attributes["axis"]
    ndim = len(shape)
    own = [call.xp.arange(size).reshape(-1, *(1,) * (ndim - 1 - at)) for at, size in enumerate(shape)]
    before, after = tuple(own[:axis]), tuple(own[axis + 1 :])
    return lambda index: (*before, index, *after)


def gather(call: KernelCall) -> Kernel:
    xp, axis, result = call.xp, call.attributes["axis"], call.result
    x_shape = call.tensor(0).shape
    size = x_shape[axis]
    if result.size == 0:
        return lambda _x, _index: xp.empty(result.shape, result.dtype.numpy)
    grid = _grid(call)
    others = [at for at in range(result.ndim) if at != axis and x_shape[at] != 1]
    whole = all(x_shape[at] == result.shape[at] for at in range(result.ndim) if at != axis)
    line = tuple(slice(None) if at == axis else 0 for at in range(result.ndim))

    one_each = short_rows.has_one_each(call)

    def read(x: Any, index: Any) -> Any:
        places = short_rows.places_of(x, index) if one_each else None
        if places is not None:
            return x.reshape(-1).take(places).reshape(result.shape)
        # An index that was expanded along all other axes takes whole rows: an embedding, at the speed of a copy.
        if whole and not any(index.strides[at] for at in others):
            return x.take(index[line], axis)
        return x[grid(index)]

    if xp is np:
        return _checked_by_numpy(call, size, read)

    def kernel(x: Any, index: Any) -> Any:
        index = index.astype(np.int64, copy=False)
        return read(x, _refuse(call, index, size))

    return kernel


def _checked_by_numpy(call: KernelCall, size: int, kernel: Kernel) -> Kernel:
    """NumPy checks while it reads, so looking for the wrong index can wait until there is one."""

    def checked(x: Any, index: Any, *rest: Any) -> Any:
        try:
            return kernel(x, index, *rest)
        except IndexError:
            _refuse(call, index, size)
            raise

    return checked


def scatter_add(call: KernelCall, *, own: bool = False) -> Kernel:
    """Adds values in the order of their places, so that the same call gives the same bits; half precision in float32."""
    xp, axis, dtype, x_shape = call.xp, call.attributes["axis"], call.result.dtype, call.tensor(0).shape
    index_shape, size, work = call.tensor(1).shape, x_shape[axis], wide(dtype).numpy
    if 0 in index_shape:
        return lambda x, _index, _value: x
    grid, written = _grid(call), _written(call, own=own and dtype not in HALF_DTYPES)
    if index_shape[axis] == 1:  # as the gradient of a cross-entropy: no place can come twice
        one_each = short_rows.has_one_each(call)

        def once(x: Any, index: Any, value: Any) -> Any:
            if xp is not np:
                index = _refuse(call, index, size)
            out = written(x)
            flat = short_rows.places_of(out, index) if one_each else None
            if flat is not None:
                line = out.reshape(-1)
                total = line.take(flat).astype(work, copy=False) + value.reshape(-1).astype(work, copy=False)
                line[flat] = total.astype(dtype.numpy, copy=False)
                return out
            places = grid(index)
            total = out[places].astype(work, copy=False) + value.astype(work, copy=False)
            out[places] = total.astype(dtype.numpy, copy=False)
            return out

        return _checked_by_numpy(call, size, once) if xp is np else once

    strides = [math.prod(x_shape[at + 1 :]) for at in range(len(x_shape))]
    add = np.add.at if xp is np else segment_add(xp, index_shape[axis])

    def kernel(x: Any, index: Any, value: Any) -> Any:
        index = index.astype(np.int64, copy=False)
        index = _refuse(call, index, size)
        places = sum(
            part * stride for part, stride in zip(grid(xp.where(index < 0, index + size, index)), strides, strict=True)
        )
        places, value = places.reshape(-1), value.astype(work, copy=False).reshape(-1)
        if xp is not np:
            out = with_one_more(xp, x.astype(work, copy=False).reshape(-1))
            add(out, places, value)
            return out[:-1].reshape(x_shape).astype(dtype.numpy, copy=False)
        out = written(x.astype(work, copy=False))
        add(out.reshape(-1), places, value)
        return out.astype(dtype.numpy, copy=False)

    return kernel


def scatter(call: KernelCall, *, own: bool = False) -> Kernel:
    """Writes values in the order of their places, so of equal places the last wins, on every backend."""
    xp, axis, result = call.xp, call.attributes["axis"], call.result
    index_shape, size = call.tensor(1).shape, result.shape[axis]
    if 0 in index_shape:
        return lambda x, _index, _value: x
    grid, written = _grid(call), _written(call, own=own)
    whole = all(result.shape[at] == index_shape[at] for at in range(len(index_shape)) if at != axis)
    others = [at for at, length in enumerate(index_shape) if at != axis and length != 1]
    line = tuple(slice(None) if at == axis else 0 for at in range(len(index_shape)))
    rows = (slice(None),) * axis

    def kernel(x: Any, index: Any, value: Any) -> Any:
        out = written(x)
        # An index that was expanded along all other axes writes whole rows, as `gather` reads them.
        if whole and not any(index.strides[at] for at in others):
            out[(*rows, index[line])] = value
        else:
            out[grid(index)] = value
        return out

    if xp is np:
        return _checked_by_numpy(call, size, kernel)
    strides = [math.prod(result.shape[at + 1 :]) for at in range(len(index_shape))]

    def sorted_by_place(x: Any, index: Any, value: Any) -> Any:
        places = sum(part * stride for part, stride in zip(grid(_places(call, index, size)), strides, strict=True))
        places = places.reshape(-1)
        order = xp.argsort(places, kind="stable")
        places = places[order]
        out = with_one_more(xp, x.reshape(-1))
        out[_lasts(xp, places, result.size)] = value.reshape(-1)[order]
        return out[:-1].reshape(result.shape)

    return sorted_by_place


def take(call: KernelCall) -> Kernel:
    """Takes whole slices. Of an axis that is cut, those in this worker's range, with zeros in place of the others.

    They are negative zeros, for only these leave every number as it is when they are added to it.
    """
    xp, axis = call.xp, call.attributes["axis"]
    size, first, last = call.span(0, axis)
    if (first, last) == (0, size):
        if xp is np:
            return _checked_by_numpy(call, size, lambda x, index: x.take(index, axis))

        def whole(x: Any, index: Any) -> Any:
            return x.take(_refuse(call, index.astype(np.int64, copy=False), size), axis)

        return whole
    result, after = call.result, call.tensor(0).ndim - axis - 1
    nothing, choose = nothing_of(result.dtype), chooser(xp, result.dtype)

    def masked(x: Any, index: Any) -> Any:
        places = _places(call, index, size) - first
        if first == last:
            return xp.full(result.shape, nothing, result.dtype.numpy)
        inside = (places >= 0) & (places < last - first)
        found = x.take(xp.where(inside, places, 0), axis)
        return choose(inside.reshape((*inside.shape, *(1,) * after)), found, nothing)

    return masked


def segment_sum(call: KernelCall) -> Kernel:
    """Adds values in the order of their places, so that the same call gives the same bits; half precision in float32.

    Where the result is cut along the axis, what falls outside this worker's range is left out.
    """
    xp, axis, size, result = call.xp, call.attributes["axis"], call.attributes["size"], call.result
    first, last = call.box[axis]
    work = wide(result.dtype).numpy
    values, count = call.tensor(0).shape, call.tensor(1).size
    end = axis + call.tensor(1).ndim
    rows, rest = (*values[:axis], count, *values[end:]), (*values[:axis], *values[end:])
    width = math.prod(rest)
    if xp is not np:
        return _segment_sum_on_device(call, rows, rest)
    # in a deterministic session the order may not depend on how many columns there are here, as that of `reduceat` does
    add = _add_rows if not call.blocks else partial(_add_elements, width)

    def kernel(value: Any, index: Any) -> Any:
        places = _places(call, index, size).reshape(-1) - first
        out = xp.zeros((last - first, *rest), work)
        if out.size and value.size:
            lines = value.reshape(rows)
            lines = lines if axis == 0 else xp.moveaxis(lines, axis, 0)
            if last - first < size:
                inside = (places >= 0) & (places < last - first)
                places, lines = places[inside], lines[inside]
            if places.size:
                add(out, places, lines.astype(work, copy=False))
        out = out if axis == 0 else xp.moveaxis(out, 0, axis)
        return out.astype(result.dtype.numpy, copy=False)

    return kernel


def _segment_sum_on_device(call: KernelCall, rows: tuple[int, ...], rest: tuple[int, ...]) -> Kernel:
    """The same where shapes may not depend on data, or the device would be waited for: what falls outside is added up for
    nobody."""
    xp, axis, size, result = call.xp, call.attributes["axis"], call.attributes["size"], call.result
    first, last = call.box[axis]
    work = wide(result.dtype).numpy
    add = segment_add(xp, rows[axis])

    def kernel(value: Any, index: Any) -> Any:
        places = _places(call, index, size).reshape(-1) - first
        out = xp.zeros((last - first + 1, *rest), work)
        if out.size and value.size:
            if last - first < size:
                places = xp.where((places >= 0) & (places < last - first), places, last - first)
            add(out, places, xp.moveaxis(value.reshape(rows), axis, 0).astype(work, copy=False))
        return xp.moveaxis(out[:-1], 0, axis).astype(result.dtype.numpy, copy=False)

    return kernel


def _places(call: KernelCall, index: Any, size: int) -> Any:
    """An index in int64 with all its places counted from the front. Raises `IndexOutOfRange`."""
    index = index.astype(np.int64, copy=False)
    index = _refuse(call, index, size)
    if call.xp is np and not (index.size and index.min() < 0):
        return index
    return call.xp.where(index < 0, index + size, index)


def _add_rows(out: Any, places: Any, rows: Any) -> None:
    """`np.add.at` along the first axis, many times faster, for rows sorted by their places.

    Where few rows share a place: the first of every place, then the second of those that have one, and so on. Else each
    run of equals is summed. Places that rise, such as positions in a sequence, need no sorting.
    """
    if (places[1:] > places[:-1]).all():
        out[places] = rows
        return
    order = places.argsort(kind="stable")
    places = places[order]
    first = np.ones(places.size + 1, bool)  # also behind the last
    np.not_equal(places[1:], places[:-1], first[1:-1])
    ends = first.nonzero()[0]
    starts, counts = ends[:-1], ends[1:] - ends[:-1]
    most = int(counts.max())
    if most * MIN_ROWS_PER_TURN > starts.size:
        out[places[starts]] = np.add.reduceat(rows[order], starts, axis=0, dtype=out.dtype)
        return
    out[places[starts]] = rows[order[starts]]
    for turn in range(1, most):
        more = starts[counts > turn]
        out[places[more]] += rows[order[more + turn]]


def _add_elements(width: int, out: Any, places: Any, rows: Any) -> None:
    """The same element by element, one after the other."""
    elements = places[:, None] * width + np.arange(width)
    np.add.at(out.reshape(-1), elements.reshape(-1), rows.reshape(-1))


def with_one_more(xp: Any, x: Any) -> Any:
    """A copy with one place more at its end, for what nobody wants."""
    out = xp.empty((x.shape[0] + 1, *x.shape[1:]), x.dtype)
    out[:-1] = x
    return out


def _lasts(xp: Any, places: Any, nobody: int) -> Any:
    """Of sorted places those that are the last of their equals, `nobody` instead of all others."""
    last = xp.ones(places.shape, bool)
    last[:-1] = places[1:] != places[:-1]
    return xp.where(last, places, nobody)


def segment_add(xp: Any, most: int) -> Kernel:
    """`add.at` along the first axis, of whose places the last is for nobody, without atomics, whose order would change the bits
    from run to run; and without asking the device how many places there are.

    Sorts by place, then sums runs of equal places by doubling (Hillis, Steele: "Data parallel algorithms", 1986). No
    place comes more than `most` times.
    """

    def add(out: Any, places: Any, rows: Any) -> None:
        order = xp.argsort(places, kind="stable")
        places, rows = places[order], rows[order]
        step = 1
        while step < most:
            joined = rows.copy()
            same = (places[step:] == places[:-step]).reshape(-1, *(1,) * (rows.ndim - 1))
            joined[step:] += xp.where(same, rows[:-step], 0)
            rows, step = joined, 2 * step
        wanted = _lasts(xp, places, out.shape[0] - 1)
        out[wanted] += rows

    return add
