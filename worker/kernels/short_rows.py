"""Kernels on a CPU for the last axes of few elements, as windows of a pooling are.

NumPy's functions take tens of nanoseconds for every row, however short it is. Here all rows are computed at once, one element
of each after the other. Results are exact, so they are the same bits.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import HALF_DTYPES
from gt.worker.base.kernel_call import Kernel, KernelCall

MAX_ROW_ELEMENTS: Final = 16
"""Elements of a row, at most."""
MIN_ROWS: Final = 4096
"""Rows, at least: for fewer, calls take longer than computing."""


def joined(call: KernelCall) -> int:
    """How many last axes a reshape of few elements joins into one; 0 where it does something else."""
    x, result = call.tensor(0).shape, call.result.shape
    ndim = len(result)
    last = len(x) - ndim + 1
    if last < 2 or not ndim or x[: ndim - 1] != result[:-1] or min(x[ndim - 1 :]) < 2:
        return 0
    return last if result[-1] <= MAX_ROW_ELEMENTS and math.prod(result[:-1]) >= MIN_ROWS else 0


def reshape(call: KernelCall) -> Kernel:
    """A reshape that joins its last axes (`joined`): a copy, where it is one, element by element of a window."""
    shape, count, (*_, last) = call.result.shape, joined(call), call.tensor(0).shape
    places = [(..., *at) for at in np.ndindex(*call.tensor(0).shape[-count:])]

    def kernel(x: Any) -> Any:
        if x.strides[-2] == last * x.strides[-1]:
            return x.reshape(shape)
        out = np.empty(shape, x.dtype)
        windows = out.reshape(x.shape)
        for place in places:
            windows[place] = x[place]
        return out

    return kernel


def is_arg(call: KernelCall) -> bool:
    """Whether a call is an argmax or argmin along short rows."""
    x = call.tensor(0)
    short = call.attributes["axis"] == x.ndim - 1 and 1 < x.shape[-1] <= MAX_ROW_ELEMENTS
    return short and call.result.size >= MIN_ROWS and x.dtype.kind in "iuf" and x.dtype not in HALF_DTYPES


def arg(call: KernelCall) -> Kernel:
    """argmax, argmin, of which `is_arg` holds: the first of equals, or the first NaN."""
    count, shape = call.tensor(0).shape[-1], call.result.shape
    largest, floats = call.op == "argmax", call.tensor(0).dtype.kind == "f"
    behind, better = (np.less_equal, np.maximum) if largest else (np.greater_equal, np.minimum)

    def kernel(x: Any) -> Any:
        best = np.ascontiguousarray(x[..., 0])
        at = np.zeros(best.shape, np.int8)
        for number in range(1, count):
            each = np.ascontiguousarray(x[..., number])
            changes = behind(each, best)
            np.logical_not(changes, changes)
            if floats:
                np.logical_and(changes, np.equal(best, best), changes)  # a NaN stays
            np.maximum(at, changes.view(np.int8) * np.int8(number), out=at)
            best = better(best, each)
        return at.astype(np.int64).reshape(shape)

    return kernel


def has_one_each(call: KernelCall) -> bool:
    """Whether a `gather` or `scatter_add` takes one element of each row."""
    x, index = call.tensor(0).shape, call.tensor(1).shape
    last = call.attributes["axis"] == len(x) - 1
    return call.xp is np and last and index == (*x[:-1], 1) and math.prod(index) >= MIN_ROWS


def places_of(x: Any, index: Any) -> Any:
    """Where the elements are in `x` row by row; None where an index is not from 0 on, or `x` does not lie so."""
    size = x.shape[-1]
    if not x.flags.c_contiguous or index.min() < 0 or index.max() >= size:
        return None
    places = np.arange(0, x.size, size)
    places += index.reshape(-1)
    return places
