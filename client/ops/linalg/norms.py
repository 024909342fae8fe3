"""Norms of vectors and of matrices, and the condition number: `gt.linalg`'s, composed of reductions and factorisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, reductions, shape_ops
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import HALF_DTYPES, DType, as_dtype, float32

from .linalg import inv, matrix, svdvals

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["cond", "matrix_norm", "norm", "vector_norm"]


@also_named(input="x")
def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """(Σ |x|^ord)^(1/ord) over one, several or all dimensions; ±inf the largest or smallest, 0 how many are not 0."""
    x = tensor_of("vector_norm", x)
    x = x if dtype is None else cast(x, as_dtype(dtype))
    if x.dtype.kind not in "fc":
        raise DTypeError(f"vector_norm takes floating-point or complex numbers, not {x.dtype}")
    if x.dtype in HALF_DTYPES:  # whose squares may be beyond what float16 holds
        return cast(vector_norm(cast(x, float32), ord, dim, keepdim), x.dtype)
    axes = tuple(range(x.ndim)) if dim is None else dim
    size = arithmetic.abs(x)
    if ord == math.inf:
        return reductions.amax(size, axes, keepdim)
    if ord == -math.inf:
        return reductions.amin(size, axes, keepdim)
    if ord == 0:
        return reductions.sum(cast(arithmetic.ne(x, 0), size.dtype), axes, keepdim)
    if ord == 1:
        return reductions.sum(size, axes, keepdim)
    if ord == 2:
        return _smooth(reductions.sum(arithmetic.square(size), axes, keepdim), 0.5)
    if ord < 0:  # one zero makes it zero
        gone = arithmetic.eq(reductions.amin(size, axes, True), 0)
        inverse = reductions.sum(arithmetic.pow(arithmetic.where(gone, 1.0, size), ord), axes, True)
        out = arithmetic.where(gone, 0.0, arithmetic.pow(inverse, 1 / ord))
        return out if keepdim else reductions.sum(out, axes)
    return _smooth(reductions.sum(_smooth(size, ord), axes, keepdim), 1 / ord)


def _smooth(x: Tensor, power: float) -> Tensor:
    """x to a power above 0, whose slope at 0 is taken for 0, as a norm's subgradient may be."""
    zero = arithmetic.eq(x, 0)
    return arithmetic.where(zero, 0.0, arithmetic.pow(arithmetic.where(zero, 1.0, x), power))


def _largest(sizes: Tensor, axis: int, keepdim: bool = False) -> Tensor:
    """The largest of what is at least 0: 0 where there is nothing."""
    return (reductions.amax if sizes.shape[axis] else reductions.sum)(sizes, axis, keepdim)


@also_named(input="A")
def matrix_norm(
    A: Any, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """'fro', 'nuc', ±inf (rows), ±1 (columns) or ±2 (singular values) of the matrices in two dimensions."""
    x = tensor_of("matrix_norm", A)
    x = x if dtype is None else cast(x, as_dtype(dtype))
    if x.ndim < 2 or len(dim) != 2:
        raise ShapeError(
            f"matrix_norm: two dimensions of a tensor of at least two, not {tuple(dim)} of shape {x.shape}"
        )
    row, column = (shape_ops.axis_of("matrix_norm", axis, x.shape) for axis in dim)
    if row == column:
        raise ShapeError(f"matrix_norm: two different dimensions, not {tuple(dim)}")
    if ord == "fro":
        return vector_norm(x, 2, (row, column), keepdim)
    if ord in ("nuc", 2, -2):
        s = svdvals(shape_ops.movedim(x, (row, column), (-2, -1)))
        out = reductions.sum(s, -1) if ord == "nuc" else _largest(s, -1) if ord == 2 else reductions.amin(s, -1)
        if keepdim:
            for axis in sorted((row, column)):
                out = shape_ops.unsqueeze(out, axis)
        return out
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"matrix_norm: ord is 'fro', 'nuc', ±inf, ±1 or ±2, not {ord!r}")
    added, other = (row, column) if abs(ord) == 1 else (column, row)
    sums = reductions.sum(arithmetic.abs(x), added, True)
    out = _largest(sums, other, True) if ord > 0 else reductions.amin(sums, other, True)
    return out if keepdim else shape_ops.squeeze(shape_ops.squeeze(out, max(row, column)), min(row, column))


@also_named(input="A")
def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """A vector norm over one dimension (or everything), a matrix norm over two."""
    x = tensor_of("norm", A)
    if ord is None:
        return vector_norm(x, 2, dim, keepdim, dtype=dtype)
    if isinstance(dim, int) or (isinstance(dim, Sequence) and len(dim) == 1):
        return vector_norm(x, ord, dim, keepdim, dtype=dtype)
    if dim is None and x.ndim not in (1, 2):
        raise ShapeError(f"norm: with ord={ord!r} and no dim a vector or a matrix, not shape {x.shape}")
    if dim is None and x.ndim == 1:
        return vector_norm(x, ord, None, keepdim, dtype=dtype)
    return matrix_norm(x, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)


@also_named(input="A")
def cond(A: Any, p: Any = None) -> Tensor:
    """The condition number in a norm, by default 2."""
    x = matrix("cond", A)
    if p in (None, 2, -2):
        s = svdvals(x)
        first, last = shape_ops.select(s, -1, 0), shape_ops.select(s, -1, s.shape[-1] - 1)
        return arithmetic.div(last, first) if p == -2 else arithmetic.div(first, last)
    return arithmetic.mul(matrix_norm(x, p), matrix_norm(inv(x), p))
