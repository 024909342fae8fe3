"""Matrix products by cuBLAS itself: of half precision in stacks, of float32 rounded to TF32, and such as can be captured.

CuPy has neither: it knows no stacks of bfloat16, and of stacks of float32 no other precision; and it copies a stack whose
matrices are transposed. So matrices are passed to cuBLAS here as they lie in memory. Where there is a `CublasHandle`, all
products use it, so no bit depends on whether they are captured. An array module is given; nothing here imports one.

cuBLAS thinks in columns: what lies row by row is to it the transpose. So it is asked for (a b)ᵀ = bᵀ aᵀ, which it writes by
columns, and a b has been written by rows.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.dtypes import DType, bfloat16, complex64, complex128, float16, float32, float64

from .cublas_handle import CublasHandle

TENSOR_CORE_TYPES: Final = {float32: 0, float16: 2, bfloat16: 14}
"""CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF: what tensor cores take."""
CUDA_TYPES: Final = {**TENSOR_CORE_TYPES, float64: 1, complex64: 4, complex128: 5}
"""CUDA_R_64F, CUDA_C_32F, CUDA_C_64F."""
ADDED_IN_FLOAT32: Final = 68
ROUNDED_TO_TF32: Final = 77
ADDED_IN_FLOAT64: Final = 70
"""CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 and CUBLAS_COMPUTE_64F."""
DEFAULT_ALGORITHM: Final = -1
"""CUBLAS_GEMM_DEFAULT: whichever of its algorithms is thought to be the fastest."""
TENSOR_CORE_CAPABILITY: Final = {bfloat16: 80, float16: 70, float32: 80}
"""The compute capability from which on there are tensor cores for a dtype."""
MAX_CALLS_PER_PRODUCT: Final = 32
"""The most calls for one product: a stack that would take more is copied, so that it takes one."""


class MatrixLayout(NamedTuple):
    """How cuBLAS reads a stack of matrices: whether they are transposed, and the leading dimension."""

    array: Any
    turned: bool
    apart: int


class Gemm:
    """`matmul` of two matrices or stacks of one dtype; of float32 TF32's digits are enough unless it is to be `exact`. Of half
    precision it gives float32, the dtype of its sums, if `summed`."""

    def __init__(
        self, xp: Any, dtype: DType, direct: CublasHandle | None = None, *, exact: bool = False, summed: bool = False
    ) -> None:
        self.xp, self.kind, self.width = xp, CUDA_TYPES[dtype], dtype.numpy.itemsize
        made = float32 if summed and dtype in TENSOR_CORE_TYPES else dtype
        self.dtype, self.made_kind = made.numpy, CUDA_TYPES[made]
        self.compute = ROUNDED_TO_TF32 if dtype is float32 and not exact else ADDED_IN_FLOAT32
        if dtype in (float64, complex128):
            self.compute = ADDED_IN_FLOAT64
        number = np.float32 if dtype in TENSOR_CORE_TYPES else self.dtype
        self.one, self.zero = np.ones(1, number), np.zeros(1, number)
        self.direct = direct

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        (m, k), n = a.shape[-2:], b.shape[-1]
        shape = (*stack, m, n)
        if out is not None and not out.flags.c_contiguous:
            out[...] = self(a, b)
            return out
        made = self.xp.empty(shape, self.dtype) if out is None else out
        if 0 in (*shape, k):
            made[...] = 0
            return made
        left, right = _placed(self.xp, a), _placed(self.xp, b)
        sizes, (steps, more) = merged(stack, [_steps(x.array, stack) for x in (left, right)])
        many = max(range(len(sizes)), key=sizes.__getitem__, default=0)
        if math.prod(sizes) > MAX_CALLS_PER_PRODUCT * (sizes[many] if sizes else 1):
            whole = [self.xp.ascontiguousarray(self.xp.broadcast_to(x, (*stack, *x.shape[-2:]))) for x in (a, b)]
            return self(whole[0], whole[1], made)
        own = _contiguous(sizes, m * n)
        rest = [size for at, size in enumerate(sizes) if at != many]
        for at in np.ndindex(*rest):
            place = list(at)
            if sizes:
                place.insert(many, 0)
            first, second, third = (
                sum(index * step for index, step in zip(place, each, strict=True)) for each in (steps, more, own)
            )
            self._call(
                (m, n, k), (left, first, steps[many] if sizes else 0), (right, second, more[many] if sizes else 0),
                (made, third, own[many] if sizes else 0), sizes[many] if sizes else 1,
            )  # fmt: skip
        return made

    def _call(
        self,
        sizes: tuple[int, int, int],
        left: tuple[MatrixLayout, int, int],
        right: tuple[MatrixLayout, int, int],
        made: tuple[Any, int, int],
        count: int,
    ) -> None:
        """One call of cuBLAS: of each operand where it begins, in elements, and how far apart its matrices are."""
        (m, n, k), cuda, width = sizes, self.xp.cuda, self.width
        (a, start_a, step_a), (b, start_b, step_b), (c, start_c, step_c) = left, right, made
        if self.direct is not None:
            gemm, handle = self.direct.gemm, self.direct.handle_on(cuda.get_current_stream().ptr)
        else:
            gemm, handle = cuda.cublas.gemmStridedBatchedEx, cuda.device.get_cublas_handle()
        gemm(
            handle, int(b.turned), int(a.turned), n, m, k, self.one.ctypes.data,
            b.array.data.ptr + start_b * width, self.kind, b.apart, step_b,
            a.array.data.ptr + start_a * width, self.kind, a.apart, step_a,
            self.zero.ctypes.data, c.data.ptr + start_c * self.dtype.itemsize, self.made_kind, n, step_c,
            count, self.compute, DEFAULT_ALGORITHM,
        )  # fmt: skip


def sound(xp: Any, direct: CublasHandle) -> bool:
    """Whether products of small whole numbers that go this way are what NumPy makes of them, however matrices lie."""
    a: Any = (np.arange(24) % 7).reshape(2, 3, 4)
    b: Any = (np.arange(40) % 7).reshape(2, 4, 5)
    for dtype in (float32, float64, float16):
        if dtype is float16 and not has_tensor_cores(xp, dtype):
            continue
        multiply = Gemm(xp, dtype, direct, exact=True)
        x, y = (xp.asarray(each.astype(dtype.numpy)) for each in (a, b))
        turned = xp.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2)
        for mine, theirs in (
            (multiply(x, y), a @ b),
            (multiply(x[1], y[0]), a[1] @ b[0]),
            (multiply(x, turned), a @ b),
            (multiply(turned[1].swapaxes(0, 1), x[0].swapaxes(0, 1)), b[1].T @ a[0].T),
        ):
            if not np.array_equal(xp.asnumpy(mine), theirs):
                return False
    return True


def has_tensor_cores(xp: Any, dtype: DType) -> bool:
    """Whether the current device has tensor cores for products of this dtype."""
    return int(xp.cuda.Device().compute_capability) >= TENSOR_CORE_CAPABILITY[dtype]


def _placed(xp: Any, x: Any) -> MatrixLayout:
    """As it lies, if rows or columns are without gaps; else a copy."""
    rows, columns = x.shape[-2:]
    down, across = (step // x.dtype.itemsize for step in x.strides[-2:])
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return MatrixLayout(x, False, down if rows > 1 else columns)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return MatrixLayout(x, True, across if columns > 1 else rows)
    return MatrixLayout(xp.ascontiguousarray(x), False, columns)


def _steps(x: Any, stack: tuple[int, ...]) -> tuple[int, ...]:
    """How far apart matrices are along each dimension of the stack, in elements: 0 where one is for all."""
    own = x.shape[:-2]
    found = [step // x.dtype.itemsize if size > 1 else 0 for size, step in zip(own, x.strides, strict=False)]
    return (*(0,) * (len(stack) - len(own)), *found)


def _contiguous(sizes: tuple[int, ...], inner: int) -> tuple[int, ...]:
    return tuple(inner * math.prod(sizes[at + 1 :]) for at in range(len(sizes)))


def merged(stack: tuple[int, ...], steps: list[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The dimensions of a stack, those joined that are for all operands as one, and the steps of each operand along them."""
    sizes: list[int] = []
    found: list[list[int]] = [[] for _ in steps]
    for at, size in enumerate(stack):
        if size == 1:
            continue
        inner = [each[at] for each in steps]
        if sizes and all(mine[-1] == size * step for mine, step in zip(found, inner, strict=True)):
            sizes[-1] *= size
            for mine, step in zip(found, inner, strict=True):
                mine[-1] = step
        else:
            sizes.append(size)
            for mine, step in zip(found, inner, strict=True):
                mine.append(step)
    return tuple(sizes), tuple(map(tuple, found))
