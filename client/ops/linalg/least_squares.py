"""The pseudoinverse of matrices, their rank, and least squares: what depends on which singular values count as zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.ops import arithmetic, creation, reductions, shape_ops
from gt.client.ops.matrix_products import matmul
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.custom_function import Function
from gt.client.tensor.operands import tensor_of
from gt.ir import dtype_limits

from . import decompositions
from .decompositions import mh
from .linalg import eigh, eigvalsh, matrix, svd, svdvals

if TYPE_CHECKING:
    from gt.client.tensor.custom_function import FunctionCtx
    from gt.client.tensor.tensor import Tensor

__all__ = ["lstsq", "matrix_rank", "pinv"]


class Lstsq(NamedTuple):
    """The result of `lstsq`."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _cutoff(s: Tensor, shape: tuple[int, ...], atol: Any, rtol: Any) -> Tensor:
    """The bound up to which singular values are taken for zero: the larger of `atol` and `rtol` times the largest."""
    if rtol is None:
        nothing = atol is None or (isinstance(atol, (int, float)) and atol <= 0)
        rtol = max(shape[-2:]) * dtype_limits.finfo(s.dtype).eps if nothing else 0.0
    bound = arithmetic.mul(reductions.amax(s, -1, True), _beside(rtol))
    return (
        bound if atol is None else arithmetic.maximum(bound, arithmetic.add(arithmetic.mul(bound, 0.0), _beside(atol)))
    )


def _beside(bound: Any) -> Any:
    """One bound for each matrix of a stack, beside its singular values."""
    return shape_ops.unsqueeze(bound, -1) if getattr(bound, "ndim", 0) else bound


def _dispersed(x: Tensor, hermitian: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and Vᴴ with U diag(S) Vᴴ = x, by the eigenvalues (S may be negative then, in any order) or the SVD."""
    if not hermitian:
        return svd(x, full_matrices=False)
    s, u = eigh(x)
    return u, s, mh(u)


@also_named(input="A")
def pinv(A: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None, atol: Any = None) -> Tensor:
    """The pseudoinverse by the singular values that are above the cut-off; of `hermitian` ones one triangle is read."""
    x = matrix("pinv", A, square=hermitian)
    if 0 in x.shape[-2:]:
        return mh(x)
    return _Pinv.apply(x, atol, rcond if rtol is None else rtol, hermitian)  # type: ignore[no-any-return]


class _Pinv(Function):
    """The pseudoinverse has a gradient of its own: that of the SVD would divide by differences of what is cut off."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, atol: Any, rtol: Any, hermitian: bool) -> Tensor:
        u, s, vh = _dispersed(x, hermitian)
        size = arithmetic.abs(s)
        kept = arithmetic.gt(size, _cutoff(size, x.shape, atol, rtol))
        inverse = arithmetic.where(kept, arithmetic.div(1.0, arithmetic.where(kept, s, 1.0)), 0.0)
        out = matmul(mh(vh), arithmetic.mul(shape_ops.unsqueeze(inverse, -1), mh(u)))
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor, None, None, None]:
        x, out = ctx.saved_tensors
        assert x is not None, "it was saved"
        assert out is not None, "it was saved"
        return decompositions.pinv(x, out, g), None, None, None


@also_named(input="A")
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The number of singular values above the cut-off; int64."""
    x = matrix("matrix_rank", A, square=hermitian)
    if 0 in x.shape[-2:]:
        return creation.zeros(x.shape[:-2], dtype="int64")
    s = arithmetic.abs(eigvalsh(x)) if hermitian else svdvals(x)
    bound = _cutoff(s, x.shape, atol if tol is None else tol, rtol if tol is None else 0.0)
    return reductions.sum(arithmetic.gt(s, bound), -1)


@also_named(input="A", b="B")
def lstsq(A: Any, B: Any, rcond: Any = None, *, driver: Any = None) -> Lstsq:
    """The X of least ‖A X − B‖, of least norm where there are several; residuals where A has full rank and is tall."""
    a, b = matrix("lstsq", A), tensor_of("lstsq", B)
    vector = b.ndim == a.ndim - 1
    b = shape_ops.unsqueeze(b, -1) if vector else b
    solution = matmul(pinv(a, rcond=rcond), b)
    tall = a.shape[-2] > a.shape[-1]
    rest = arithmetic.sub(matmul(a, solution), b) if tall else creation.zeros(0, dtype=a.dtype.to_real())
    residuals = reductions.sum(arithmetic.square(arithmetic.abs(rest)), -2) if tall else rest
    solution = shape_ops.squeeze(solution, -1) if vector else solution
    return Lstsq(solution, residuals, matrix_rank(a, rtol=rcond), svdvals(a))
