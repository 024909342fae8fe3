"""Factories of kernels that join elements along axes.

A shard may be empty although the tensor is not, so a reduction over no elements gives the operation's identity.
"""

from __future__ import annotations

import math
from functools import partial
from operator import methodcaller
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import HALF_DTYPES, DType, bfloat16
from gt.worker.base.kernel_call import Kernel, KernelCall

from . import short_rows
from .elementwise import same, wide

UFUNCS: Final[dict[str, np.ufunc]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def identity(op: str, dtype: DType) -> Any:
    """The identity of a reduction, which changes nothing when it is joined to a value: 0 for sum, −∞ or the least integer for
    max, …"""
    if op in ("sum", "any"):
        return 0
    if op in ("prod", "all"):
        return 1
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind == "f":
        return -math.inf if op == "max" else math.inf
    info = np.iinfo(dtype.name)
    return info.min if op == "max" else info.max


def reducer_of(xp: Any, op: str, axes: tuple[int, ...], *, keepdims: bool, dtype: DType | None = None) -> Kernel:
    # NumPy's functions spend a microsecond on the way to the ufunc that they call; CuPy's ufuncs cannot all reduce.
    function = UFUNCS[op].reduce if xp is np else getattr(xp, op)
    wanted: dict[str, Any] = {} if dtype is None else {"dtype": dtype.numpy}
    return partial(function, axis=axes, keepdims=keepdims, **wanted)


def reduction(call: KernelCall) -> Kernel:
    """sum, prod, max, min, any, all: in the operand's dtype; half precision is summed and multiplied in float32."""
    xp, op, axes, result = call.xp, call.op, call.attributes["axes"], call.result
    dtype = result.dtype.numpy
    if not axes:
        return same(call)
    if call.tensor(0).size == 0:
        nothing = identity(op, result.dtype)
        return lambda _x: xp.full(result.shape, nothing, dtype)
    joins = op in ("sum", "prod")
    reduce = reducer_of(xp, op, axes, keepdims=call.attributes["keepdims"], dtype=wide(result.dtype) if joins else None)
    if xp is not np and call.tensor(0).dtype is bfloat16:
        widen = methodcaller("astype", wide(bfloat16).numpy)
        return lambda x: reduce(widen(x)).astype(dtype)
    return (lambda x: reduce(x).astype(dtype)) if joins and result.dtype in HALF_DTYPES else reduce


def arg(call: KernelCall) -> Kernel:
    """argmax, argmin: the first of equals; a NaN is the largest, and the smallest. Of several NaNs CuPy gives any."""
    xp, axis, keepdims, result = call.xp, call.attributes["axis"], call.attributes["keepdims"], call.result
    if call.tensor(0).size == 0:
        return lambda _x: xp.zeros(result.shape, result.dtype.numpy)
    if xp is np and short_rows.is_arg(call):
        return short_rows.arg(call)
    own: Kernel = methodcaller(call.op, axis=axis, keepdims=keepdims)
    first, some = (methodcaller(name, axis=axis, keepdims=keepdims) for name in ("argmax", "any"))

    def nan_aware(x: Any) -> Any:
        missing = xp.isnan(x)
        return xp.where(some(missing), first(missing), own(x))

    find = nan_aware if xp is not np and call.tensor(0).dtype.kind == "f" else own
    if call.tensor(0).dtype is bfloat16:
        widen = methodcaller("astype", wide(bfloat16).numpy)
        return lambda x: find(widen(x))
    return find


def softmax(call: KernelCall) -> Kernel:
    """softmax and log_softmax along one axis: the largest is taken away first, so that nothing overflows."""
    if call.result.size == 0:
        return same(call)
    xp, dtype, logarithm = call.xp, call.result.dtype, call.op == "log_softmax"
    axis = (call.attributes["axis"],)
    work = wide(dtype).numpy
    largest = reducer_of(xp, "max", axis, keepdims=True)
    total = reducer_of(xp, "sum", axis, keepdims=True)

    def kernel(x: Any) -> Any:
        if dtype in HALF_DTYPES:
            x = x.astype(work)
        out = xp.subtract(x, largest(x))
        if logarithm:
            xp.subtract(out, xp.log(total(xp.exp(out))), out)
        else:
            xp.exp(out, out)
            xp.divide(out, total(out), out)
        return out.astype(dtype.numpy) if dtype in HALF_DTYPES else out

    return kernel
