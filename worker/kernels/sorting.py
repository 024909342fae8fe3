"""Factories of kernels that sort, search what is sorted, and find places.

Sorting is stable and NaN is the largest, so orders are the same on every backend. bfloat16 is compared as float32, which
holds each of its values: NumPy's sort knows no NaN of a dtype that is not its own, and leaves it anywhere.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import numpy as np

from gt.ir.dtypes import bfloat16, float32
from gt.worker.base.kernel_call import Kernel, KernelCall


def _comparable(call: KernelCall, kernel: Kernel) -> Kernel:
    """`kernel` with operands whose order the array module knows."""
    if call.tensor(0).dtype is not bfloat16:
        return kernel
    widen = methodcaller("astype", float32.numpy)
    return lambda *operands: kernel(*map(widen, operands))


def argsort(call: KernelCall) -> Kernel:
    """The order in which the axis is sorted; descending, equals come as they came, and NaN first."""
    xp, axis = call.xp, call.attributes["axis"]
    size = call.result.shape[axis]
    if call.result.size == 0:
        return lambda _x: xp.zeros(call.result.shape, np.int64)
    if not call.attributes["descending"]:
        return _comparable(call, lambda x: xp.argsort(x, axis=axis, kind="stable").astype(np.int64, copy=False))
    return _comparable(call, lambda x: size - 1 - xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis))


def lexsort(call: KernelCall) -> Kernel:
    """The order of rows by their first elements, of equal ones by their next, and so on."""
    xp, (rows, columns) = call.xp, call.tensor(0).shape
    if not rows or not columns:
        return lambda _x: xp.arange(rows)
    return _comparable(call, lambda x: xp.lexsort(x.T[::-1]).astype(np.int64, copy=False))


def searchsorted(call: KernelCall) -> Kernel:
    """One row for all values: the array module's own; a row for each row of values: by halves, all rows at once."""
    xp, right = call.xp, call.attributes["right"]
    rows, size = call.tensor(0), call.tensor(0).shape[-1]
    side = "right" if right else "left"
    if rows.ndim == 1:
        return _comparable(call, lambda x, values: xp.searchsorted(x, values, side).astype(np.int64, copy=False))
    floating = rows.dtype.kind == "f"

    def kernel(x: Any, values: Any) -> Any:
        low = xp.zeros(values.shape, np.int64)
        high = xp.full(values.shape, size, np.int64)
        for _ in range(size.bit_length()):
            middle = (low + high) // 2
            found = xp.take_along_axis(x, xp.minimum(middle, size - 1), -1)
            below = found <= values if right else found < values
            if floating:
                below |= xp.isnan(values) if right else xp.isnan(values) & ~xp.isnan(found)
            below &= middle < high
            low, high = xp.where(below, middle + 1, low), xp.where(below, high, middle)
        return low

    return _comparable(call, kernel)


def flatnonzero(call: KernelCall) -> Kernel:
    """Where the whole mask is true: this worker's part of the places."""
    xp, size = call.xp, call.attributes["size"]
    first, last = call.box[0]

    def kernel(mask: Any) -> Any:
        places = xp.flatnonzero(mask)
        if places.size != size:
            raise ValueError(f"flatnonzero: true {places.size} times, not {size}")
        return places[first:last].astype(np.int64, copy=False)

    return kernel
