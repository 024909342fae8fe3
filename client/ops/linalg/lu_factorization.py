"""LU factorisation: triangles L and U with P L U = A, the systems that they solve, and products of Householder reflections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.ops import arithmetic, creation, shape_ops, triangular
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import emission
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import ShapeError
from gt.ir.dtypes import int32, int64

from .decompositions import mh, mt, parts, unit
from .linalg import matrix, solve

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["householder_product", "lu", "lu_factor", "lu_solve"]


class LU(NamedTuple):
    """The result of `lu`."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactor(NamedTuple):
    """The result of `lu_factor`."""

    LU: Tensor
    pivots: Tensor


def _pivoted(name: str, pivot: bool) -> None:
    if not pivot:
        raise ValueError(f"{name}: without pivots elimination is not stable, and there is none: leave pivot=True")


def lu_factor(A: Any, *, pivot: bool = True) -> LUFactor:
    """L (without its diagonal of ones) and U in one matrix, and with which row each was swapped, from 1 on, int32.

    A singular matrix is no error: its U has a zero on the diagonal.
    """
    _pivoted("lu_factor", pivot)
    x = matrix("lu_factor", A)
    packed, pivots = parts("lu", emission.emit("lu", (x,)), x.shape, {})
    return LUFactor(packed, cast(pivots.detach(), int32))


def _permutation(pivots: Tensor, rows: int) -> Tensor:
    """P with P x = the rows of x in the order before all swaps."""
    order = emission.emit("permutation", (cast(pivots, int64),), rows)
    return arithmetic.eq(creation.arange(rows).reshape(rows, 1), shape_ops.unsqueeze(order, -2))


def lu_unpack(
    LU_data: Any,
    LU_pivots: Any,
    unpack_data: bool = True,
    unpack_pivots: bool = True,  # PyTorch's names
) -> LU:
    """P, L and U of what `lu_factor` gave; empty for what is not asked for."""
    packed = matrix("lu_unpack", LU_data)
    rows, columns = packed.shape[-2:]
    k = min(rows, columns)
    nothing = creation.zeros(0, dtype=packed.dtype)
    p, lower, upper = nothing, nothing, nothing
    if unpack_data:
        lower, upper = unit(packed[..., :k]), triangular.triu(packed[..., :k, :])
    if unpack_pivots:
        p = cast(_permutation(tensor_of("lu_unpack", LU_pivots), rows), packed.dtype)
    return LU(p, lower, upper)


def lu(A: Any, *, pivot: bool = True) -> LU:
    """P, a permutation, L, a lower triangle with ones on its diagonal, and U, an upper one, with P L U = A."""
    _pivoted("lu", pivot)
    return lu_unpack(*lu_factor(A))


def lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with A X = B, of the A that `lu_factor` took apart; with `adjoint` Aᴴ X = B, with `left=False` X A = B."""
    packed, b = matrix("lu_solve", LU, square=True), tensor_of("lu_solve", B)
    if not left:
        return mh(lu_solve(packed, pivots, mh(b), adjoint=not adjoint))
    p, lower, upper = lu_unpack(packed, pivots)
    if adjoint:
        return matmul(p, solve(mh(lower), solve(mh(upper), b)))
    return solve(upper, solve(lower, matmul(mt(p), b)))


@also_named(input2="tau", A="input")
def householder_product(input: Any, tau: Any) -> Tensor:
    """The first columns of the product of reflections 1 − τ v vᴴ, whose v are columns below a diagonal of ones."""
    v, scale = matrix("householder_product", input), tensor_of("householder_product", tau)
    rows, columns = v.shape[-2:]
    count = scale.shape[-1]
    if not rows >= columns >= count:
        raise ShapeError(f"householder_product: {count} reflections in shape {v.shape}")
    v = arithmetic.add(triangular.tril(v, -1), creation.eye(rows, columns, dtype=v.dtype))
    out = shape_ops.expand(creation.eye(rows, columns, dtype=v.dtype), v.shape)
    for k in reversed(range(count)):
        column = v[..., k : k + 1]
        along = matmul(mh(column), out)
        out = arithmetic.sub(out, arithmetic.mul(matmul(column, along), scale[..., k, None, None]))
    return out
