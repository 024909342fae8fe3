"""Matrix products on tensor cores: of half precision in stacks, and of float32 rounded to TF32, by cuBLAS itself.

CuPy has neither: it knows no stacks of bfloat16, and of stacks of float32 no other precision; and it copies a stack whose
matrices are transposed. So here matrices are told to cuBLAS as they lie. An array module is given; nothing here imports one.

cuBLAS thinks in columns: what lies row by row is to it the transpose. So it is asked for (a b)ᵀ = bᵀ aᵀ, which it writes by
columns, and a b has been written by rows.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from gt.dtypes import HALVES, DType, bfloat16, float16, float32

KINDS: Final = {float32: 0, float16: 2, bfloat16: 14}
"""CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF."""
ADDED_IN_FLOAT32: Final = 68
ROUNDED_TO_TF32: Final = 77
"""CUBLAS_COMPUTE_32F and CUBLAS_COMPUTE_32F_FAST_TF32."""
DEFAULT: Final = -1
"""CUBLAS_GEMM_DEFAULT: whichever of its algorithms is thought to be the fastest."""
LEAST: Final = {bfloat16: 80, float16: 70, float32: 80}
"""The compute capability from which there are such tensor cores."""
MOST: Final = 32
"""Calls for one product, at most: a stack that takes more is copied, so that it takes one."""


class Placed(NamedTuple):
    """A stack of matrices as cuBLAS is told of it: whether their rows are what it takes for columns, how far those are apart."""

    array: Any
    turned: bool
    apart: int


class TensorCores:
    """`matmul` of two matrices or stacks of one dtype: half precision, or float32 of which TF32's digits are enough."""

    def __init__(self, xp: Any, dtype: DType) -> None:
        self.xp, self.dtype, self.kind = xp, dtype.numpy, KINDS[dtype]
        self.compute = ADDED_IN_FLOAT32 if dtype in HALVES else ROUNDED_TO_TF32
        self.one, self.zero = np.ones(1, np.float32), np.zeros(1, np.float32)

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
        if math.prod(sizes) > MOST * (sizes[many] if sizes else 1):
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
        left: tuple[Placed, int, int],
        right: tuple[Placed, int, int],
        made: tuple[Any, int, int],
        count: int,
    ) -> None:
        """One call of cuBLAS: of each operand where it begins, in elements, and how far apart its matrices are."""
        (m, n, k), cuda, width = sizes, self.xp.cuda, self.dtype.itemsize
        (a, start_a, step_a), (b, start_b, step_b), (c, start_c, step_c) = left, right, made
        cuda.cublas.gemmStridedBatchedEx(
            cuda.device.get_cublas_handle(), int(b.turned), int(a.turned), n, m, k, self.one.ctypes.data,
            b.array.data.ptr + start_b * width, self.kind, b.apart, step_b,
            a.array.data.ptr + start_a * width, self.kind, a.apart, step_a,
            self.zero.ctypes.data, c.data.ptr + start_c * width, self.kind, n, step_c,
            count, self.compute, DEFAULT,
        )  # fmt: skip


def has_tensor_cores(xp: Any, dtype: DType) -> bool:
    """Whether the current device has tensor cores for products of this dtype."""
    return int(xp.cuda.Device().compute_capability) >= LEAST[dtype]


def _placed(xp: Any, x: Any) -> Placed:
    """As it lies, if rows or columns are without gaps; else a copy."""
    rows, columns = x.shape[-2:]
    down, across = (step // x.dtype.itemsize for step in x.strides[-2:])
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return Placed(x, False, down if rows > 1 else columns)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return Placed(x, True, across if columns > 1 else rows)
    return Placed(xp.ascontiguousarray(x), False, columns)


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
