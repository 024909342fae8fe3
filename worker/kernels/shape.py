"""Factories of kernels that change shapes alone: the same elements, elsewhere."""

from __future__ import annotations

import itertools
from operator import methodcaller
from typing import Any

import numpy as np

from gt.ir.dtypes import bfloat16
from gt.worker.base.kernel_call import Kernel, KernelCall

from . import short_rows
from .elementwise import same


def reshape(call: KernelCall) -> Kernel:
    """The same elements in row-major order, in another shape."""
    if call.xp is np and short_rows.joined(call):
        return short_rows.reshape(call)
    return methodcaller("reshape", call.result.shape)


def permute(call: KernelCall) -> Kernel:
    """A view whose dimension i is `axes[i]` of the operand."""
    return methodcaller("transpose", call.attributes["axes"])


def expand(call: KernelCall) -> Kernel:
    """A view that repeats the operand to the shape."""
    if call.tensor(0).shape == call.result.shape:
        return same(call)
    xp, shape, operand = call.xp, call.result.shape, call.tensor(0)
    if xp is not np or operand.dtype is bfloat16:
        return lambda x: xp.broadcast_to(x, shape)
    # `np.broadcast_to` takes seven times as long to find out what is known here
    new, dtype, lead = np.ndarray, operand.dtype.numpy, (0,) * (len(shape) - operand.ndim)
    stays = [size == wanted for size, wanted in zip(operand.shape, shape[len(lead) :], strict=True)]

    def kernel(x: Any) -> Any:
        if not isinstance(x, new) or not x.flags.c_contiguous or not x.size:  # only then it is a buffer to look at
            return np.broadcast_to(x, shape)
        strides = [step if stay else 0 for step, stay in zip(x.strides, stays, strict=True)]
        out = new(shape, dtype, x, 0, (*lead, *strides))
        out.flags.writeable = False
        return out

    return kernel


def cat(call: KernelCall) -> Kernel:
    """The operands joined along an axis."""
    xp, axis, result = call.xp, call.attributes["axis"], call.result
    if xp is np:
        return lambda *parts: np.concatenate(parts, axis)
    ends = itertools.accumulate((call.tensor(at).shape[axis] for at in range(len(call.operands))), initial=0)
    places = [(*(slice(None),) * axis, slice(first, last)) for first, last in itertools.pairwise(ends)]

    def kernel(*parts: Any) -> Any:  # of more than a few CuPy tells the device the addresses from memory of the host
        out = xp.empty(result.shape, result.dtype.numpy)
        for place, each in zip(places, parts, strict=True):
            out[place] = each
        return out

    return kernel
