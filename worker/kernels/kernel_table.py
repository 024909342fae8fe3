"""The worker's facet of the op table: for each op, the factory of the kernel that computes it over NumPy or CuPy.

A factory is called once, when a plan is compiled, and looks at everything that is known then; the kernel that it
returns is all that is left on the hot path. Kernels never change their operands. They return arrays of exactly the
local result's shape and dtype (or, without dimensions, NumPy's scalars), perhaps views of an operand. Scalars of Python
are weakly typed, as in NumPy 2. Anything that is more than a few lines has a room of its own: `convolution.py`,
`elementwise.py`, `reductions.py`, `indexing.py`, `philox.py`.
"""

from __future__ import annotations

import itertools
from functools import partial
from operator import methodcaller
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import HALVES, bfloat16
from gt.worker.base.kernel_call import Call, Kernel, KernelFactory
from gt.worker.device.cublas import Gemm

from . import short_rows
from .attention import attention, attention_grad
from .conv_cpu import conv
from .convolution import overlap_add, windows
from .elementwise import (  # fmt: skip
    bessel,
    cast,
    complex_,
    divide_integers,
    expm1,
    incomplete_gamma,
    log2,
    nextafter,
    part,
    power,
    relu,
    rsqrt,
    same,
    scaled_bessel,
    shift,
    sigmoid,
    sign,
    special_function,
    ufunc,
    where,
    wide,
)
from .fft import fourier
from .indexing import gather, scatter, scatter_add, segment_sum, slice_, take, update_slice
from .linalg import linalg, permutation, solve
from .matmul import has_parts, in_parts, on_tensor_cores, product
from .philox import normal, uniform
from .reductions import arg, reduction, softmax
from .scans import cumulate, cumulated
from .sorting import argsort, flatnonzero, lexsort, searchsorted

__all__ = ["IN_PLACE", "KERNELS", "Call", "Kernel", "KernelFactory"]


def _full(call: Call) -> Kernel:
    full, shape, dtype = call.xp.full, call.result.shape, call.result.dtype.numpy
    return lambda value: full(shape, value, dtype)


def _arange(call: Call) -> Kernel:
    xp, dtype = call.xp, call.result.dtype
    ((first, last),) = call.box
    work = np.float64 if dtype.kind in "fc" or "f" in call.operands else np.int64
    return lambda start, step: (start + step * xp.arange(first, last, dtype=work)).astype(dtype.numpy, copy=False)


def _reshape(call: Call) -> Kernel:
    if call.xp is np and short_rows.joined(call):
        return short_rows.reshape(call)
    return methodcaller("reshape", call.result.shape)


def _permute(call: Call) -> Kernel:
    return methodcaller("transpose", call.attributes["axes"])


def _expand(call: Call) -> Kernel:
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


def _cat(call: Call) -> Kernel:
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


def _matmul(call: Call) -> Kernel:
    xp, result = call.xp, call.result
    if result.size == 0 or call.tensor(0).size == 0:
        return lambda _a, _b: xp.zeros(result.shape, result.dtype.numpy)
    matmul = product(call, result.size * call.tensor(0).shape[-1], result.dtype)
    folds = call.tensor(0).ndim > 2 and call.tensor(1).ndim == 2
    flat = folds or call.tensor(0).ndim == call.tensor(1).ndim == 2
    if result.dtype in HALVES and not flat and on_tensor_cores(xp, result.dtype):
        matmul = Gemm(xp, result.dtype, call.direct)
    elif result.dtype in HALVES and (xp is np or (result.dtype is bfloat16 and not flat)):
        # cuBLAS accumulates in float32 by itself; NumPy has no BLAS for half precision, CuPy no stacks of bfloat16
        widen, narrow = methodcaller("astype", wide(result.dtype).numpy), methodcaller("astype", result.dtype.numpy)
        return lambda a, b: narrow(matmul(widen(a), widen(b)))
    if has_parts(call):
        return in_parts
    if folds:
        return _folded(call, matmul)
    return matmul


def _folded(call: Call, matmul: Kernel) -> Kernel:
    """A stack of matrices by one matrix as one product: BLAS packs that matrix once."""
    shape = call.result.shape
    rows = (-1, call.tensor(0).shape[-1])

    def kernel(a: Any, b: Any) -> Any:
        return matmul(a.reshape(rows), b).reshape(shape)

    return kernel


KERNELS: Final[dict[str, KernelFactory]] = {
    # creation
    "full": _full,
    "arange": _arange,
    "uniform": uniform,
    "normal": normal,
    # element-wise, one operand
    "neg": ufunc("negative"),
    "abs": ufunc("absolute"),
    "sign": sign,
    "exp": ufunc("exp"),
    "exp2": ufunc("exp2"),
    "expm1": expm1,
    "log": ufunc("log"),
    "log2": log2,
    "log10": ufunc("log10"),
    "log1p": ufunc("log1p"),
    "sqrt": ufunc("sqrt"),
    "rsqrt": rsqrt,
    "square": ufunc("square"),
    "reciprocal": ufunc("reciprocal"),
    "sin": ufunc("sin"),
    "cos": ufunc("cos"),
    "tan": ufunc("tan"),
    "asin": ufunc("arcsin"),
    "acos": ufunc("arccos"),
    "atan": ufunc("arctan"),
    "sinh": ufunc("sinh"),
    "cosh": ufunc("cosh"),
    "tanh": ufunc("tanh"),
    "asinh": ufunc("arcsinh"),
    "acosh": ufunc("arccosh"),
    "atanh": ufunc("arctanh"),
    "erf": special_function("erf"),
    "erfc": special_function("erfc"),
    "erfinv": special_function("erfinv"),
    "lgamma": special_function("gammaln"),
    "digamma": special_function("digamma"),
    "erfcx": special_function("erfcx"),
    "ndtri": special_function("ndtri"),
    "i0": bessel("i0", np.inf, np.inf),
    "i0e": scaled_bessel("i0e", 0, -1),
    "i1": bessel("i1", np.inf, -np.inf),
    "i1e": scaled_bessel("i1e", 1, -1),
    "bessel_j0": bessel("j0", 0.0, 0.0),
    "bessel_j1": bessel("j1", 0.0, -0.0),
    "bessel_y0": bessel("y0", 0.0, np.nan),
    "bessel_y1": bessel("y1", 0.0, np.nan),
    "k0": special_function("k0"),
    "k0e": scaled_bessel("k0e", 0, 1),
    "k1": special_function("k1"),
    "k1e": scaled_bessel("k1e", 1, 1),
    "sigmoid": sigmoid,
    "relu": relu,
    "floor": ufunc("floor"),
    "ceil": ufunc("ceil"),
    "round": ufunc("rint"),
    "trunc": ufunc("trunc"),
    "isnan": ufunc("isnan"),
    "isfinite": ufunc("isfinite"),
    "signbit": ufunc("signbit"),
    "conj": ufunc("conjugate"),
    "real": part("real"),
    "imag": part("imag"),
    "logical_not": ufunc("logical_not"),
    "bitwise_not": ufunc("invert"),
    "cast": cast,
    # element-wise, two operands that broadcast
    "add": ufunc("add"),
    "sub": ufunc("subtract"),
    "mul": ufunc("multiply"),
    "div": ufunc("true_divide"),
    "pow": power,
    "maximum": ufunc("maximum"),
    "minimum": ufunc("minimum"),
    "floor_divide": divide_integers("floor_divide"),
    "remainder": divide_integers("remainder"),
    "fmod": divide_integers("fmod"),
    "atan2": ufunc("arctan2"),
    "hypot": ufunc("hypot"),
    "copysign": ufunc("copysign"),
    "nextafter": nextafter,
    "zeta": special_function("zeta"),
    "gammainc": incomplete_gamma("gammainc"),
    "gammaincc": incomplete_gamma("gammaincc"),
    "gcd": ufunc("gcd"),
    "eq": ufunc("equal"),
    "ne": ufunc("not_equal"),
    "lt": ufunc("less"),
    "le": ufunc("less_equal"),
    "gt": ufunc("greater"),
    "ge": ufunc("greater_equal"),
    "complex": complex_,
    "logical_and": ufunc("logical_and"),
    "logical_or": ufunc("logical_or"),
    "logical_xor": ufunc("logical_xor"),
    "bitwise_and": ufunc("bitwise_and"),
    "bitwise_or": ufunc("bitwise_or"),
    "bitwise_xor": ufunc("bitwise_xor"),
    "left_shift": shift("left_shift"),
    "right_shift": shift("right_shift"),
    # element-wise, three operands that broadcast
    "where": where,
    # reductions
    "sum": reduction,
    "prod": reduction,
    "max": reduction,
    "min": reduction,
    "any": reduction,
    "all": reduction,
    "argmax": arg,
    "argmin": arg,
    # shape
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "cat": _cat,
    "slice": slice_,
    "update_slice": update_slice,
    # indexing along one axis
    "gather": gather,
    "scatter_add": scatter_add,
    "take": take,
    "segment_sum": segment_sum,
    "scatter": scatter,
    "flatnonzero": flatnonzero,
    # along one axis
    "cumsum": cumulate,
    "cumprod": cumulate,
    "argcummax": cumulated,
    "argcummin": cumulated,
    "argsort": argsort,
    "lexsort": lexsort,
    "searchsorted": searchsorted,
    # linear algebra
    "matmul": _matmul,
    "solve": solve,
    **dict.fromkeys(("cholesky", "inverse", "det", "slogdet", "qr", "svd", "eigh", "eig", "lu", "matrix_exp"), linalg),
    "permutation": permutation,
    # Fourier transforms
    "fft": fourier,
    "rfft": fourier,
    "irfft": fourier,
    # sliding windows
    "conv": conv,
    "windows": windows,
    "overlap_add": overlap_add,
    # composite
    "softmax": softmax,
    "log_softmax": softmax,
    "attention": attention,
    "attention_grad": attention_grad,
    # identities that carry meaning for the planner
    "tag": same,
    "follow": same,
}

IN_PLACE: Final[dict[str, KernelFactory]] = {
    "update_slice": partial(update_slice, own=True),
    "scatter": partial(scatter, own=True),
    "scatter_add": partial(scatter_add, own=True),
}
"""Kernels that write to their first operand, for when that dies with them and is nobody else's."""
