"""PyTorch's operators of linear algebra, as functions of GT tensors with the operators' arguments.

PyTorch composes `torch.linalg` of them, and computes the gradients from what they return. Where a matrix has no factors or
no inverse, `info` is not 0 and the result is NaN, so that nothing that leaves it unread gets numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

import gt

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["FUNCTIONS", "READING_STRIDES"]


def _sound(found: Tensor, info: Tensor) -> Tensor:
    """Results, but NaN for those matrices of a stack of which `info` is not 0."""
    more = found.ndim - info.ndim
    return gt.where(gt.reshape(info, (*info.shape, *(1,) * more)) == 0, found, math.nan)


def _is_row_major(x: Tensor) -> bool:
    """Whether PyTorch takes a tensor for contiguous: it disregards strides of dimensions of one element."""
    step = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _reading_strides() -> frozenset[str]:
    """Operators which return the LU factors of Aᵀ where A is real and contiguous, in this version of PyTorch."""
    a, b = torch.tensor([[2.0, 1.0], [3.0, 4.0]]), torch.ones(2, 1)
    lu = {
        "_linalg_det": torch.ops.aten._linalg_det(a)[1],
        "_linalg_slogdet": torch.ops.aten._linalg_slogdet(a)[2],
        "_linalg_solve_ex": torch.ops.aten._linalg_solve_ex(a, b)[1],
    }
    turned = torch.linalg.lu_factor(a.mT)[0]
    return frozenset(name for name, found in lu.items() if torch.allclose(found, turned))


READING_STRIDES: Final = _reading_strides()
"""Operators whose gradients PyTorch computes from factors of A or of Aᵀ, depending on the strides of A: to their functions a
graph says `row_major=`, because its tensors of GT have not the strides that PyTorch traced it with."""


def _factored(name: str, x: Tensor, row_major: bool | None) -> tuple[Tensor, Tensor, Tensor]:
    """The LU factors from which PyTorch computes the gradients of an operator, with pivots and `info`. `row_major` says
    whether A is contiguous, where it is known: else it follows from the strides."""
    turned = name in READING_STRIDES and not x.is_complex()
    if turned and row_major is None:
        row_major = x.numel() == 0 or _is_row_major(x)
    lu, pivots, info = gt.linalg.lu_factor_ex(x.mT if turned and row_major else x)
    return lu, pivots, info


def det(x: Tensor, row_major: bool | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The determinant, and LU factors with pivots."""
    lu, pivots, _ = _factored("_linalg_det", x, row_major)
    return gt.linalg.det(x), lu, pivots


def slogdet(x: Tensor, row_major: bool | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sign and logarithm of the determinant, and LU factors with pivots."""
    lu, pivots, _ = _factored("_linalg_slogdet", x, row_major)
    sign, logarithm = gt.linalg.slogdet(x)
    return sign, logarithm, lu, pivots


def solve_ex(
    x: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False, row_major: bool | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solutions of systems, LU factors with pivots, and `info`."""
    lu, pivots, info = _factored("_linalg_solve_ex", x, row_major)
    well = gt.reshape(info == 0, (*info.shape, 1, 1))
    found = gt.linalg.solve(gt.where(well, x, gt.eye(x.shape[-1], dtype=x.dtype)), b, left=left)
    if check_errors:
        check_of(info, "linalg.solve_ex")
    return _sound(found, info), lu, pivots, info


def inverse_ex(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Inverses, and `info`."""
    found, info = gt.linalg.inv_ex(x)
    if check_errors:
        check_of(info, "linalg.inv_ex")
    return _sound(found, info), info


def cholesky_ex(x: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Cholesky's factors, and `info`, which is 1 where a matrix is not positive definite."""
    found, info = gt.linalg.cholesky_ex(x, upper=upper)
    if check_errors:
        check_of(info, "linalg.cholesky_ex")
    return _sound(found, info), info


def lu_factor_ex(x: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """LU factors in one matrix, pivots, and `info`, the first place from 1 on at which the diagonal of U is 0."""
    lu, pivots, info = gt.linalg.lu_factor_ex(x, pivot=pivot)
    if check_errors:
        check_of(info, "linalg.lu_factor_ex")
    return lu, pivots, info


def check_of(info: Tensor, name: str, *, is_matrix: bool = False) -> None:
    """Raises `torch.linalg.LinAlgError` where `info` is not 0, for which it is fetched. Within a trace it is not looked at:
    results are NaN there."""
    if gt.compiler.is_compiling() or not info.numel():
        return
    wrong = info.numpy()
    if not wrong.any():
        return
    place = wrong.ravel().nonzero()[0][0]
    which = f" (matrix {place} of the stack)" if wrong.ndim else ""
    what = "not positive definite" if "cholesky" in name else "singular"
    raise torch.linalg.LinAlgError(f"{name}: the matrix is {what}{which}: info is {wrong.ravel()[place]}")


def eigh(x: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues of Hermitian matrices, and eigenvectors, or an empty tensor."""
    values, vectors = gt.linalg.eigh(x, uplo)
    return values, vectors if compute_v else gt.empty(0, dtype=x.dtype)


def svd(
    x: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and Vᴴ; empty tensors in place of U and Vᴴ where they are not asked for."""
    if not compute_uv:
        return gt.empty(0, dtype=x.dtype), gt.linalg.svdvals(x), gt.empty(0, dtype=x.dtype)
    u, s, vh = gt.linalg.svd(x, full_matrices)
    return u, s, vh


def pinv(x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    """The pseudoinverse, with bounds that are tensors."""
    return gt.linalg.pinv(x, rtol, hermitian, atol=atol)


def lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solutions, residuals, ranks and singular values; empty are those that PyTorch's driver of this name does not give."""
    found = gt.linalg.lstsq(a, b, rcond)
    nothing = gt.empty(0, dtype=a.dtype.to_real())
    by_values = driver in ("gelss", "gelsd")
    residuals = found.residuals if by_values or driver == "gels" else nothing
    if by_values and residuals.numel() and not gt.compiler.is_compiling():
        residuals = residuals if bool((found.rank == a.shape[-1]).all()) else nothing
    ranks = gt.empty(0, dtype=gt.int64) if driver == "gels" else found.rank
    return found.solution, residuals, ranks, found.singular_values if by_values else nothing


_linalg: Any = gt.linalg
"""The same; its decorated functions have no type yet where modules import each other."""

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_linalg_check_errors": check_of,
    "_linalg_det": det,
    "_linalg_eigh": eigh,
    "_linalg_eigvals": _linalg.eigvals,
    "_linalg_slogdet": slogdet,
    "_linalg_solve_ex": solve_ex,
    "_linalg_svd": svd,
    "linalg_cholesky_ex": cholesky_ex,
    "linalg_eig": lambda x: tuple(_linalg.eig(x)),
    "linalg_eigvals": _linalg.eigvals,
    "linalg_householder_product": _linalg.householder_product,
    "linalg_inv_ex": inverse_ex,
    "linalg_lstsq": lstsq,
    "linalg_lu": lambda x, *, pivot=True: tuple(_linalg.lu(x, pivot=pivot)),
    "linalg_lu_factor_ex": lu_factor_ex,
    "linalg_lu_solve": _linalg.lu_solve,
    "linalg_matrix_exp": _linalg.matrix_exp,
    "linalg_pinv.atol_rtol_tensor": pinv,
    "linalg_qr": lambda a, mode="reduced": tuple(_linalg.qr(a, mode)),
    "linalg_solve_triangular": _linalg.solve_triangular,
}
"""By the operator's name, or name and overload."""
