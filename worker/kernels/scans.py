"""Factories of kernels that go along one axis from its start: each result depends on all elements before it.

The axis is whole on a worker, and elements are joined one after the other, so the bits do not depend on any sharding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir.dtypes import bfloat16
from gt.worker.base.kernel_call import Kernel, KernelCall

from .elementwise import same, wide


def cumulate(call: KernelCall) -> Kernel:
    """cumsum and cumprod, in the operand's dtype; halves are joined in float32."""
    if call.result.size == 0:
        return same(call)
    axis, dtype = call.attributes["axis"], call.result.dtype
    function, work = getattr(call.xp, call.op), wide(dtype)
    if work is dtype:
        return lambda x: function(x, axis=axis, dtype=dtype.numpy)
    return lambda x: function(x.astype(work.numpy), axis=axis).astype(dtype.numpy)


def cumulated(call: KernelCall) -> Kernel:
    """argcummax and argcummin: where the extreme so far was last met; a NaN is one from there on."""
    xp, axis, shape = call.xp, call.attributes["axis"], call.result.shape
    if call.result.size == 0:
        return lambda _x: xp.zeros(shape, np.int64)
    extreme = accumulator(xp, "maximum" if call.op == "argcummax" else "minimum", axis)
    latest = accumulator(xp, "maximum", axis)
    floating = call.tensor(0).dtype.kind == "f"
    own = xp.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - 1 - axis))

    narrow = call.tensor(0).dtype is bfloat16

    def kernel(x: Any) -> Any:
        if narrow:
            x = x.astype(np.float32)
        met = x == extreme(x)
        if floating:
            met |= xp.isnan(x)
        return latest(xp.where(met, own, 0))

    return kernel


def accumulator(xp: Any, name: str, axis: int) -> Kernel:
    """`ufunc.accumulate`; CuPy's cannot all do so, and double the reach at each step (Hillis, Steele, 1986)."""
    function = getattr(xp, name)
    if xp is np:
        return lambda x: function.accumulate(x, axis=axis)

    def doubling(x: Any) -> Any:
        out = xp.moveaxis(x, axis, 0)
        step = 1
        while step < out.shape[0]:
            out = xp.concatenate([out[:step], function(out[step:], out[:-step])])
            step *= 2
        return xp.moveaxis(out, 0, axis)

    return doubling
