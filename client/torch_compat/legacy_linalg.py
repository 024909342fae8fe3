"""Linear algebra under the names that PyTorch has beside `linalg`: older forms of the same, and random projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.ops import arithmetic, creation, join_and_pad, triangular
from gt.client.ops.linalg import linalg, lu_factorization
from gt.client.ops.linalg.decompositions import mh, mt
from gt.client.ops.linalg.linalg import matrix, solve_triangular
from gt.client.ops.linalg.lu_factorization import lu_unpack
from gt.client.ops.linalg.norms import matrix_norm
from gt.client.ops.matrix_products import matmul
from gt.client.ops.random import randn
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import clone, tensor_of
from gt.errors import ShapeError
from gt.ir.dtypes import get_default_dtype

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "frobenius_norm", "lu_solve", "lu_unpack", "nuclear_norm", "orgqr", "ormqr",
    "pca_lowrank", "qr", "svd", "svd_lowrank", "triangular_solve",
]  # fmt: skip

orgqr = lu_factorization.householder_product


class TriangularSolve(NamedTuple):
    """The result of `triangular_solve`."""

    solution: Tensor
    cloned_coefficient: Tensor


def cholesky(input: Any, upper: bool = False) -> Tensor:
    """As `linalg.cholesky`."""
    return linalg.cholesky(input, upper=upper)


def qr(input: Any, some: bool = True) -> Any:
    """As `linalg.qr`: with `some` reduced, else complete."""
    return linalg.qr(input, "reduced" if some else "complete")


class LegacySVD(NamedTuple):
    """The result of `gt.svd`."""

    U: Tensor
    S: Tensor
    V: Tensor


def svd(input: Any, some: bool = True, compute_uv: bool = True) -> LegacySVD:
    """As `linalg.svd`, but V in place of Vᴴ, and reduced with `some`."""
    u, s, vh = linalg.svd(input, full_matrices=not some)
    if compute_uv:
        return LegacySVD(u, s, mh(vh))
    rows, columns = vh.shape[-1], u.shape[-2]
    empty = [creation.zeros((*s.shape[:-1], size, size), dtype=u.dtype) for size in (columns, rows)]
    return LegacySVD(empty[0], s, empty[1])


@also_named(input="b")
def lu_solve(b: Any, LU_data: Any, LU_pivots: Any) -> Tensor:  # PyTorch's names
    """As `linalg.lu_solve`, the right side first."""
    return lu_factorization.lu_solve(LU_data, LU_pivots, b)


@also_named(input="B", input2="L")
def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Tensor:
    """X with A X = B, of the A whose Cholesky factor L (with `upper`: Lᴴ) is."""
    lower = mh(matrix("cholesky_solve", L)) if upper else matrix("cholesky_solve", L)
    half = solve_triangular(lower, B, upper=False)
    return solve_triangular(mh(lower), half, upper=True)


@also_named(input="L")
def cholesky_inverse(L: Any, upper: bool = False) -> Tensor:
    """The inverse of the A whose Cholesky factor L (with `upper`: Lᴴ) is."""
    lower = triangular.tril(mh(matrix("cholesky_inverse", L)) if upper else matrix("cholesky_inverse", L))
    half = linalg.inv(lower)
    return matmul(mh(half), half)


@also_named(input="b")
def triangular_solve(
    b: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolve:
    """X with A X = b (with `transpose` Aᵀ X = b), and the A that was read."""
    a = tensor_of("triangular_solve", A)
    turned, side = (mt(a), not upper) if transpose else (a, upper)
    x = solve_triangular(turned, b, upper=side, unitriangular=unitriangular)
    return TriangularSolve(x, clone(a))


@also_named(input2="tau", input3="other")
def ormqr(input: Any, tau: Any, other: Any, left: bool = True, transpose: bool = False) -> Tensor:
    """Q · other (with `left=False`: other · Q) of the square Q that Householder reflections make, or of Qᴴ."""
    x, scales, factor = (tensor_of("ormqr", each) for each in (input, tau, other))
    rows, columns = x.shape[-2:]
    whole = join_and_pad.pad(x, (0, rows - columns)) if rows > columns else x[..., :rows]
    scales = join_and_pad.pad(scales, (0, rows - scales.shape[-1]))
    q = lu_factorization.householder_product(whole, scales)
    q = mh(q) if transpose else q
    return matmul(q, factor) if left else matmul(factor, q)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of a vector's elements, N of them (its length), each row from the highest down, as NumPy's."""
    base = tensor_of("vander", x)
    if base.ndim != 1:
        raise ShapeError(f"vander takes a vector, not shape {base.shape}")
    powers = linalg.vander(base, N=N)
    return powers if increasing else join_and_pad.flip(powers, (-1,))


def range_to(
    start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    pin_memory: bool = False, layout: Any = None,
) -> Tensor:  # fmt: skip
    """The numbers from `start` up to and with `end`, `step` apart; of numbers alone in the default dtype."""
    start, end = (0, start) if end is None else (start, end)
    if step == 0:
        raise ValueError("range: the numbers are apart: step is not 0")
    count = int((end - start) / step) + 1
    line = creation.arange(count, dtype=get_default_dtype() if dtype is None else dtype)
    return creation.finished(arithmetic.add(arithmetic.mul(line, step), start), requires_grad)


def nuclear_norm(input: Any, dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """The sum of the singular values."""
    return matrix_norm(input, "nuc", dim, keepdim)


def frobenius_norm(input: Any, dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """The root of the sum of the squares."""
    return matrix_norm(input, "fro", dim, keepdim)


# low rank


def svd_lowrank(A: Any, q: int = 6, niter: int = 2, M: Any = None) -> LegacySVD:
    """About the first `q` singular values and vectors of A (less M), by random projection (Halko et al., 2011)."""
    a = matrix("svd_lowrank", A)
    a = a if M is None else arithmetic.sub(a, M)
    rows, columns = a.shape[-2:]
    if not 0 <= q <= min(rows, columns):
        raise ShapeError(f"svd_lowrank: q is at most {min(rows, columns)} for shape {a.shape}, not {q}")
    if rows < columns:
        u, s, v = svd_lowrank(mh(a), q, niter)
        return LegacySVD(v, s, u)
    basis = linalg.qr(matmul(a, randn(columns, q, dtype=a.dtype))).Q
    for _ in range(niter):
        basis = linalg.qr(matmul(a, linalg.qr(matmul(mh(a), basis)).Q)).Q
    u, s, vh = linalg.svd(matmul(mh(basis), a), full_matrices=False)
    return LegacySVD(matmul(basis, u), s, mh(vh))


def pca_lowrank(A: Any, q: int | None = None, center: bool = True, niter: int = 2) -> LegacySVD:
    """About the first `q` (6) principal directions of observations, the rows of A, as `svd_lowrank` of them centred."""
    a = matrix("pca_lowrank", A)
    q = min(6, *a.shape[-2:]) if q is None else q
    if center:
        a = arithmetic.sub(a, a.mean(-2, keepdim=True))
    return svd_lowrank(a, q, niter)
