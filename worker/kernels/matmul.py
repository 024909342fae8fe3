"""Kernels of matrix products. On a CPU, threads of the worker share large ones: BLAS itself has one thread there.

BLAS's own threads wait by spinning. Beside a client and a dispatcher that want the same cores, or anybody else's work, they
took ten times as long as one thread takes (docs/performance.md). So what is small is computed by one thread, and what is large
is cut into pieces that threads take one after the other: a thread whose core is busy takes fewer. The pieces follow from the
shapes alone, so bits depend neither on time nor on how many threads there are. On a GPU what CuPy has no product for is
`worker/device/cublas.py`'s, and all others where they can be captured that way.
"""

from __future__ import annotations

import itertools
import math
from operator import methodcaller
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import HALF_DTYPES, DType, bfloat16, float32
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.device.cublas import CUDA_TYPES, TENSOR_CORE_TYPES, Gemm, has_tensor_cores
from gt.worker.device.thread_pool import ThreadPool

from .elementwise import wide

MIN_SHARED_MULTIPLICATIONS: Final = 100_000_000
"""Multiplications from which a product is shared: milliseconds of one core, where waking another takes tens of microseconds."""
MAX_PIECES: Final = 8
MIN_STACK_PIECES: Final = 4
"""The size of a dimension of a stack, at least, along which it is cut: pieces of whole matrices take the least time."""
MIN_PIECE_SIZE: Final = 64
"""Rows or columns of a piece, at least: BLAS packs the other matrix once for each."""
ROW_PARTS: Final = 2
"""Parts of a product of many rows by one matrix below `MIN_SHARED_MULTIPLICATIONS`: row-parallel groups compute them."""
MIN_PARTED_MULTIPLICATIONS: Final = 4_000_000
"""Multiplications from which a product has parts."""


def has_parts(call: KernelCall) -> bool:
    """Whether a product is computed in parts: a stack of rows by one matrix, each as many matrices of the stack.

    Whoever computes it, and how many they are: so bits follow from shapes alone.
    """
    if call.op != "matmul" or call.thread_pool is None or call.xp is not np or call.result.dtype.kind != "f":
        return False
    a, b = call.tensor(0), call.tensor(1)
    if (
        a.ndim < 3
        or b.ndim != 2
        or a.shape[0] % ROW_PARTS
        or a.shape[0] < 2 * ROW_PARTS
        or call.result.dtype in HALF_DTYPES
    ):
        return False
    rows = math.prod(a.shape[:-1])
    return (
        rows >= ROW_PARTS * MIN_PIECE_SIZE
        and MIN_PARTED_MULTIPLICATIONS <= rows * a.shape[-1] * b.shape[-1] < MIN_SHARED_MULTIPLICATIONS
    )


def in_parts(a: Any, b: Any) -> Any:
    """Computes a product that has parts, by one thread."""
    out = np.empty((*a.shape[:-1], b.shape[-1]), np.result_type(a, b))
    size = a.shape[0] // ROW_PARTS
    for start in range(0, a.shape[0], size):
        part_of(a[start : start + size], b, out[start : start + size])
    return out


def part_of(a: Any, b: Any, out: Any) -> Any:
    """Computes one part of such a product: rows of a stack by one matrix."""
    np.matmul(a.reshape(-1, a.shape[-1]), b, out=out.reshape(-1, b.shape[-1]))
    return out


def product(call: KernelCall, multiplications: int, dtype: DType) -> Kernel:
    """A function that multiplies matrices of that dtype in `call`, which takes so many multiplications: `matmul(a, b, out=None)`.

    What was half precision before it was widened loses nothing by TF32.
    """
    thread_pool = call.thread_pool
    if dtype is float32 and (call.tf32 or call.result.dtype in HALF_DTYPES) and on_tensor_cores(call.xp, float32):
        return Gemm(call.xp, float32, call.direct)
    if (
        call.direct is not None
        and dtype in CUDA_TYPES
        and (dtype not in HALF_DTYPES or on_tensor_cores(call.xp, dtype))
    ):
        return Gemm(call.xp, dtype, call.direct, exact=True)
    if thread_pool is None or multiplications < MIN_SHARED_MULTIPLICATIONS:
        return call.xp.matmul  # type: ignore[no-any-return]  # xp is Any
    return SharedMatmul(thread_pool)


def on_tensor_cores(xp: Any, dtype: DType) -> bool:
    """Whether a GPU has tensor cores that multiply such numbers."""
    return xp is not np and dtype in TENSOR_CORE_TYPES and has_tensor_cores(xp, dtype)


class SharedMatmul:
    """`np.matmul` of two matrices or stacks of them, by the threads of a pool."""

    def __init__(self, thread_pool: ThreadPool) -> None:
        self.thread_pool = thread_pool

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        if a.ndim < 2 or b.ndim < 2:
            return np.matmul(a, b, out=out)
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        rows, columns = a.shape[-2], b.shape[-1]
        if out is None:
            out = np.empty((*stack, rows, columns), np.result_type(a, b))
        along = next((axis for axis, size in enumerate(stack) if size >= MIN_STACK_PIECES), None)
        if along is not None:  # whole matrices to each
            axis, size, pieces = along - len(stack) - 2, stack[along], min(MAX_PIECES, stack[along])
        else:
            axis, size = (-2, rows) if rows >= columns else (-1, columns)
            pieces = min(MAX_PIECES, size // MIN_PIECE_SIZE)
        if pieces < 2:
            return np.matmul(a, b, out=out)
        bounds = [size * piece // pieces for piece in range(pieces + 1)]
        left = [a] * pieces if axis == -1 else _cut(a, axis, bounds)
        right = [b] * pieces if axis == -2 else _cut(b, axis, bounds)
        places = _cut(out, axis, bounds)
        turn = itertools.count()  # which is one step of the interpreter: no two threads take the same

        def part(_: int) -> None:
            while (piece := next(turn)) < pieces:
                np.matmul(left[piece], right[piece], out=places[piece])

        self.thread_pool.run(part)
        return out


def _cut(array: Any, axis: int, bounds: list[int]) -> list[Any]:
    """An array in pieces along an axis, counted from the last; what lacks or repeats it is the same in each."""
    if -axis > array.ndim or (array.shape[axis] == 1 and axis < -2):
        return [array] * (len(bounds) - 1)
    rest = (slice(None),) * (-1 - axis)
    return [array[(..., slice(start, stop), *rest)] for start, stop in itertools.pairwise(bounds)]


def matmul(call: KernelCall) -> Kernel:
    """A product of matrices, or of stacks of them; half precision is added up in float32."""
    xp, result = call.xp, call.result
    if result.size == 0 or call.tensor(0).size == 0:
        return lambda _a, _b: xp.zeros(result.shape, result.dtype.numpy)
    multiply = product(call, result.size * call.tensor(0).shape[-1], result.dtype)
    folds = call.tensor(0).ndim > 2 and call.tensor(1).ndim == 2
    flat = folds or call.tensor(0).ndim == call.tensor(1).ndim == 2
    if result.dtype in HALF_DTYPES and not flat and on_tensor_cores(xp, result.dtype):
        multiply = Gemm(xp, result.dtype, call.direct)
    elif result.dtype in HALF_DTYPES and (xp is np or (result.dtype is bfloat16 and not flat)):
        # cuBLAS accumulates in float32 by itself; NumPy has no BLAS for half precision, CuPy no stacks of bfloat16
        widen, narrow = methodcaller("astype", wide(result.dtype).numpy), methodcaller("astype", result.dtype.numpy)
        return lambda a, b: narrow(multiply(widen(a), widen(b)))
    if has_parts(call):
        return in_parts
    if folds:
        return _folded(call, multiply)
    return multiply


def _folded(call: KernelCall, multiply: Kernel) -> Kernel:
    """A stack of matrices by one matrix as one product: BLAS packs that matrix once."""
    shape = call.result.shape
    rows = (-1, call.tensor(0).shape[-1])

    def kernel(a: Any, b: Any) -> Any:
        return multiply(a.reshape(rows), b).reshape(shape)

    return kernel
