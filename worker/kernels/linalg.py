"""Factories of kernels for dense linear algebra, over stacks of matrices in the last two dimensions.

What has several results is one array: each result flattened, one after the other (`gt/ir/infer.py` says how long, and
`client/ops/linalg/linalg.py` takes them apart). Most of it is LAPACK's, through the array module.

NumPy computes matrices of float32 in float64 and rounds the results. That takes two to nine times as long as in float32, which
is what products, and other libraries, compute them in. So on a CPU large ones are computed in single precision, by SciPy's
LAPACK. BLAS has one thread there, so bits follow from each matrix alone.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from gt.errors import IndexOutOfRange
from gt.worker.base.backend import refusing
from gt.worker.base.kernel_call import Kernel, KernelCall

from .elementwise import wide


def _svd(call: KernelCall) -> Callable[[Any], tuple[Any, ...]]:
    svd, full = call.xp.linalg.svd, call.attributes["full"]
    return lambda x: tuple(svd(x, full_matrices=full))


def _qr(call: KernelCall) -> Callable[[Any], tuple[Any, ...]]:
    qr, mode = call.xp.linalg.qr, "complete" if call.attributes["full"] else "reduced"
    return lambda x: tuple(qr(x, mode=mode))


def _eigh(call: KernelCall) -> Callable[[Any], tuple[Any, ...]]:
    eigh = call.xp.linalg.eigh
    return lambda x: tuple(eigh(x, "L"))


def _eig(call: KernelCall) -> Callable[[Any], tuple[Any, ...]]:
    eig = call.xp.linalg.eig
    return lambda x: tuple(eig(x))


def _slogdet(call: KernelCall) -> Callable[[Any], tuple[Any, ...]]:
    slogdet = call.xp.linalg.slogdet
    return lambda x: tuple(part[..., None, None] for part in slogdet(x))


_PANEL: Final = 32
"""Columns that are eliminated one by one before the rest is updated by one product."""


def _lu(call: KernelCall) -> Callable[[Any], tuple[Any, ...]]:
    """The LU factorisation, with the largest element of a column on the diagonal, of all matrices of a stack at once; singular
    ones too."""
    xp = call.xp
    *stack, m, n = call.tensor(0).shape
    count, matrices = min(m, n), math.prod(stack)

    def kernel(x: Any) -> tuple[Any, ...]:
        a = xp.array(x, order="C").reshape(matrices, m, n)
        pivots, each = xp.empty((matrices, count), np.int64), xp.arange(matrices)
        for start in range(0, count, _PANEL):
            stop = min(start + _PANEL, count)
            for k in range(start, stop):
                column = a[:, k:, k]
                size = abs(column.real) + abs(column.imag) if column.dtype.kind == "c" else abs(column)  # as LAPACK
                pivots[:, k] = largest = size.argmax(-1) + k
                row = a[each, largest]
                a[each, largest] = a[:, k]
                a[:, k] = row
                pivot = row[:, k, None]
                a[:, k + 1 :, k] /= xp.where(pivot == 0, 1, pivot)
                a[:, k + 1 :, k + 1 : stop] -= a[:, k + 1 :, k, None] * row[:, None, k + 1 : stop]
            for k in range(start, stop):
                a[:, k + 1 : stop, stop:] -= a[:, k + 1 : stop, k, None] * a[:, k, None, stop:]
            a[:, stop:, stop:] -= a[:, stop:, start:stop] @ a[:, start:stop, stop:]
        return a, pivots + 1

    return kernel


MIN_SINGLE_SIDE: Final = 128
"""Rows and columns of a matrix of float32, at least, from which it is computed in single precision on a CPU: for small ones
calls take longer than that saves."""
SINGLE_PARTS: Final = frozenset(("eigh", "qr", "svd"))
"""Ops with several results that are."""
_PARTS: Final = {"svd": _svd, "qr": _qr, "eigh": _eigh, "eig": _eig, "slogdet": _slogdet, "lu": _lu}
"""What gives several results, each of which is flattened behind the dimensions of the stack."""
_FUNCTIONS: Final = {"cholesky": "cholesky", "inverse": "inv", "det": "det"}


_PADE: Final = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0,
    670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
"""The coefficients of the approximant of order 13."""


def _exponential(xp: Any, x: Any) -> Any:
    """The exponential by a Padé approximant of each matrix, halved until its norm is small, and squared as often (Higham,
    2005)."""
    norm = xp.abs(x).sum(-2).max(-1)
    halvings = xp.where(xp.isfinite(norm) & (norm > 0), xp.ceil(xp.log2(xp.maximum(norm, 1e-30) / 5.37)), 0)
    halvings = xp.maximum(halvings, 0).astype(np.int64)
    a = x / xp.exp2(halvings)[..., None, None].astype(norm.dtype)
    b, one = _PADE, xp.eye(x.shape[-1], dtype=x.dtype)
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a2 @ a4
    u = a @ (a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * one)
    v = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * one
    out = xp.linalg.solve(v - u, v + u)
    for count in range(int(halvings.max())):
        out = xp.where((halvings > count)[..., None, None], out @ out, out)
    return out


def permutation(call: KernelCall) -> Kernel:
    """The order in which rows lie after one swap after the other, in all lists at once."""
    xp, shape = call.xp, call.result.shape
    count, lists = call.tensor(0).shape[-1], math.prod(shape[:-1])

    def kernel(pivots: Any) -> Any:
        places, each = pivots.reshape(lists, count).astype(np.int64), xp.arange(lists)
        order = xp.tile(xp.arange(shape[-1]), (lists, 1))
        if bool(((places < 1) | (places > shape[-1])).any()):
            raise IndexOutOfRange(f"permutation: rows are numbered from 1 to {shape[-1]}")
        for k in range(count):
            other = places[:, k] - 1
            moved = order[each, other]
            order[each, other] = order[:, k]
            order[:, k] = moved
        return order.reshape(shape)

    return kernel


def linalg(call: KernelCall) -> Kernel:
    """One or several results of one stack of matrices."""
    xp, result, op = call.xp, call.result, call.op
    stack, dtype, work = call.tensor(0).shape[:-2], result.dtype.numpy, wide(call.tensor(0).dtype).numpy
    if result.size == 0:
        return lambda _x: xp.zeros(result.shape, dtype)
    if op in _FUNCTIONS or op == "matrix_exp":
        function = partial(_exponential, xp) if op == "matrix_exp" else getattr(xp.linalg, _FUNCTIONS[op])
        if op in _SINGLE and xp is np and work == np.float32:
            function = _in_single(call, function, _SINGLE[op])
        return _refusing(xp, lambda x: function(x.astype(work, copy=False)).astype(dtype, copy=False))
    parts = _PARTS[op](call)
    if op in SINGLE_PARTS and xp is np and work == np.float32:
        parts = _in_single(call, parts, _single_parts(call))

    def kernel(x: Any) -> Any:
        made = [part.reshape(*stack, -1) for part in parts(x.astype(work, copy=False))]
        return xp.concatenate(made, -1).astype(dtype, copy=False)

    return _refusing(xp, kernel)


def _in_single(call: KernelCall, function: Kernel, single: Kernel) -> Kernel:
    """The function for matrices of float32 on a CPU: NumPy's in double precision, or in single precision if they are large."""
    return function if min(call.tensor(0).shape[-2:]) < MIN_SINGLE_SIDE else partial(_over_stacks, single, function)


def _over_stacks(function: Kernel, otherwise: Kernel, *operands: Any) -> Any:
    """`function` of each matrix of stacks that broadcast. What is not finite is left to NumPy's: LAPACK may never end with it."""
    if not all(np.isfinite(each).all() for each in operands):
        return otherwise(*operands)
    stack = np.broadcast_shapes(*(each.shape[:-2] for each in operands))
    if not stack:
        return function(*operands)
    whole = [np.broadcast_to(each, (*stack, *each.shape[-2:])) for each in operands]
    made = [function(*(each[index] for each in whole)) for index in np.ndindex(*stack)]
    if isinstance(made[0], tuple):
        return tuple(_stacked(part, stack) for part in zip(*made, strict=True))
    return _stacked(made, stack)


def _stacked(made: Any, stack: tuple[int, ...]) -> Any:
    return np.stack(made).reshape(*stack, *made[0].shape)


def _scipy() -> Any:
    return importlib.import_module("scipy.linalg")  # which takes a while, and is seldom needed


def _single_cholesky(x: Any) -> Any:
    factor, info = _scipy().lapack.spotrf(x.T, lower=0, clean=1)
    if info > 0:
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return factor.T


def _single_solve(a: Any, b: Any) -> Any:
    _, _, x, info = _scipy().lapack.sgesv(a, b)
    if info > 0:
        raise np.linalg.LinAlgError("Singular matrix")
    return x


def _single_inverse(x: Any) -> Any:
    lapack = _scipy().lapack
    found, pivots, info = lapack.sgetrf(x)
    if info == 0:
        found, info = lapack.sgetri(found, pivots, lwork=x.shape[0] * _BLOCK, overwrite_lu=1)
    if info > 0:
        raise np.linalg.LinAlgError("Singular matrix")
    return found


def _single_parts(call: KernelCall) -> Kernel:
    """The function of one matrix that gives several results."""
    full, op = bool(call.attributes.get("full")), call.op
    options: dict[str, Any] = {"mode": "full" if full else "economic"} if op == "qr" else {"full_matrices": full}
    options = {"driver": "evd"} if op == "eigh" else options
    return lambda x: getattr(_scipy(), op)(x, check_finite=False, **options)


_BLOCK: Final = 64
"""Columns that LAPACK takes at once, if it has the memory."""
_SINGLE: Final = {"cholesky": _single_cholesky, "inverse": _single_inverse}


def _refusing(xp: Any, kernel: Kernel) -> Kernel:
    """The same function, but it raises `LinAlgError` whatever the array module."""
    if xp is np:
        return kernel
    raising = refusing(xp)

    def refuses(*operands: Any) -> Any:
        with raising():
            return kernel(*operands)

    return refuses


def solve(call: KernelCall) -> Kernel:
    """x with a x = b, for stacks that broadcast."""
    xp, result = call.xp, call.result
    dtype, work = result.dtype.numpy, wide(result.dtype).numpy
    if result.size == 0:
        return lambda _a, _b: xp.zeros(result.shape, dtype)
    function: Any = xp.linalg.solve
    if xp is np and work == np.float32:
        function = _in_single(call, function, _single_solve)
    stacks = [call.tensor(at).shape[:-2] for at in range(2)]
    stack = np.broadcast_shapes(*stacks)

    def kernel(a: Any, b: Any) -> Any:
        a, b = a.astype(work, copy=False), b.astype(work, copy=False)
        if xp is not np and stacks[0] != stacks[1]:  # CuPy broadcasts none
            a, b = (xp.broadcast_to(x, (*stack, *x.shape[-2:])) for x in (a, b))
        return function(a, b).astype(dtype, copy=False)

    return _refusing(xp, kernel)
