"""The standard's linear algebra: `gt.array_api.linalg`, of which four functions are in the main namespace, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.ops import (
    arithmetic,
    complex_numbers,
    contractions,
    join_and_pad,
    matrix_products,
    reductions,
    shape_ops,
    triangular,
)
from gt.client.ops.linalg import linalg as core
from gt.client.ops.linalg import norms
from gt.client.ops.linalg.least_squares import matrix_rank, pinv
from gt.client.ops.linalg.linalg import (
    cholesky,
    det,
    diagonal,
    eigh,
    eigvalsh,
    inv,
    matrix_power,
    qr,
    slogdet,
    svd,
    svdvals,
)
from gt.errors import ShapeError

from .promotion import common
from .statistics import Axes, joined, over

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace",
    "vecdot", "vector_norm",
]  # fmt: skip


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product: vectors count as a row or a column, leading dimensions broadcast."""
    return matrix_products.matmul(*common("matmul", x1, x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two dimensions swapped."""
    return shape_ops.transpose(x, -2, -1)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Σ over the last `axes` dimensions of the first and the first of the second, or over two lists of dimensions."""
    a, b = common("tensordot", x1, x2)
    return contractions.tensordot(a, b, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Σ x̄ · y along an axis of both."""
    a, b = common("vecdot", x1, x2)
    sizes = [x.shape[shape_ops.axis_of("vecdot", axis, x.shape)] for x in (a, b)]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"vecdot: shapes {a.shape} and {b.shape}: sizes {sizes[0]} and {sizes[1]} differ along axis {axis}"
        )
    return reductions.sum(arithmetic.mul(complex_numbers.conj_physical(a), b), axis, dtype=a.dtype)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along an axis."""
    return core.cross(*join_and_pad.broadcast_tensors(*common("cross", x1, x2)), dim=axis)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """x_i · y_j of two vectors."""
    return contractions.outer(*common("outer", x1, x2))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """X with x1 X = x2, of which one dimension is a vector and all else are matrices."""
    a, b = common("solve", x1, x2)
    if b.ndim == 1:
        return shape_ops.squeeze(solve(a, shape_ops.unsqueeze(b, 1)), -1)
    return core.solve(a, b)


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sums along a diagonal of matrices."""
    return reductions.sum(triangular.diagonal(x, offset, -2, -1), -1, dtype=joined(x.dtype, dtype))


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """'fro', 'nuc', ±inf (rows), ±1 (columns) or ±2 (singular values) of matrices."""
    return norms.matrix_norm(x, ord, (-2, -1), keepdims)


def vector_norm(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """(Σ |x|^ord)^(1/ord) over one, several or all dimensions."""
    return over(norms.vector_norm, x, axis, keepdims, spelled=("dim", "keepdim"), ord=ord)
