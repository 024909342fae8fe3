"""PyTorch's `linalg` functions that end in `_ex`: they return a number for each matrix that says whether they succeeded.

Where a matrix has no factors or no inverse, those of the identity stand in its place; `info` is not 0 there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.ops import arithmetic, creation, reductions, shape_ops, triangular
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, clone
from gt.errors import WorkerError
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import int32

from . import linalg, lu_factorization
from .decompositions import mh
from .linalg import matrix

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = ["LinAlgError", "cholesky_ex", "inv_ex", "lu_factor_ex", "solve_ex"]

LinAlgError = WorkerError
"""What a fetch raises of a matrix that has no factors or no inverse."""


class CholeskyEx(NamedTuple):
    """The result of `cholesky_ex`."""

    L: Tensor
    info: Tensor


class InvEx(NamedTuple):
    """The result of `inv_ex`."""

    inverse: Tensor
    info: Tensor


class SolveEx(NamedTuple):
    """The result of `solve_ex`."""

    result: Tensor
    info: Tensor


class LUFactorEx(NamedTuple):
    """The result of `lu_factor_ex`."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


def _raised(name: str, what: str, info: Tensor, check_errors: bool) -> Tensor:
    """`info`; with `check_errors` it is fetched, and an error where it is not 0."""
    if check_errors and info.numel() and bool(arithmetic.ne(info, 0).any()):
        raise LinAlgError(f"{name}: {what}")
    return info


def _safe(x: Tensor, info: Tensor) -> Tensor:
    """The matrices for which all is well, and the identity for the others."""
    well = shape_ops.reshape(arithmetic.eq(info, 0), (*info.shape, 1, 1))
    return arithmetic.where(well, x, creation.eye(x.shape[-1], dtype=x.dtype))


def _first(wrong: Tensor) -> Tensor:
    """The number, from 1 on, of the first that is wrong along the last dimension; 0 if none is."""
    if not wrong.shape[-1]:
        return creation.zeros(wrong.shape[:-1], dtype=int32)
    place = arithmetic.add(reductions.argmax(cast(wrong, int32), -1), 1)
    return cast(arithmetic.where(reductions.any(wrong, -1), place, 0), int32)


@also_named(A="input")
def cholesky_ex(input: Any, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx:
    """`cholesky`, and 0 where the matrix is positive definite, else 1: it is asked of the eigenvalues."""
    x = matrix("cholesky_ex", input, square=True)
    if not x.shape[-1]:
        return CholeskyEx(clone(x), creation.zeros(x.shape[:-2], dtype=int32))
    known = x.detach()
    values = linalg.eigvalsh(mh(known) if upper else known)
    least = arithmetic.mul(reductions.amax(arithmetic.abs(values), -1), finfo(values.dtype).eps * x.shape[-1])
    well = arithmetic.gt(reductions.amin(values, -1), least)
    info = _raised("cholesky_ex", "a matrix is not positive definite", cast(~well, int32), check_errors)
    return CholeskyEx(linalg.cholesky(_safe(mh(x) if upper else x, info), upper=upper), info)


def lu_factor_ex(A: Any, *, pivot: bool = True, check_errors: bool = False) -> LUFactorEx:
    """`lu_factor`, and the first place, from 1 on, at which U has a zero on its diagonal; 0 if there is none."""
    packed, pivots = lu_factorization.lu_factor(A, pivot=pivot)
    diagonal = triangular.diagonal(packed.detach(), dim1=-2, dim2=-1)
    info = _first(arithmetic.eq(diagonal, 0))
    return LUFactorEx(packed, pivots, _raised("lu_factor_ex", "a matrix is singular", info, check_errors))


def inv_ex(A: Any, *, check_errors: bool = False) -> InvEx:
    """`inv`, and 0 where the matrix has an inverse."""
    x = matrix("inv_ex", A, square=True)
    info = _raised("inv_ex", "a matrix is singular", lu_factor_ex(x.detach()).info, check_errors)
    return InvEx(linalg.inv(_safe(x, info)), info)


def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> SolveEx:
    """`solve`, and 0 where the matrix has an inverse."""
    x = matrix("solve_ex", A, square=True)
    info = _raised("solve_ex", "a matrix is singular", lu_factor_ex(x.detach()).info, check_errors)
    return SolveEx(linalg.solve(_safe(x, info), B, left=left), info)
