"""Linear algebra: PyTorch's `linalg` in names, arguments and results. Norms are in `norms.py`, the
pseudoinverse and what is solved by it in `least_squares.py`.

Factorisations are one instruction each, whose results lie flattened one after the other; everything else is composed.
Matrices are the last two dimensions, all dimensions before them a stack. Where results are determined only up to signs or
phases, they are LAPACK's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.ops import (
    arithmetic,
    complex_numbers,
    contractions,
    creation,
    matrix_products,
    reductions,
    shape_ops,
    triangular,
)
from gt.client.tensor import emission
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import int64

from .decompositions import mh, mt, parts

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_exp",
    "matrix_power", "multi_dot", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals",
    "tensorinv", "tensorsolve", "vander", "vecdot",
]  # fmt: skip


class QR(NamedTuple):
    """The result of `qr`."""

    Q: Tensor
    R: Tensor


class Eigh(NamedTuple):
    """The result of `eigh`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class Eig(NamedTuple):
    """The result of `eig`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVD(NamedTuple):
    """The result of `svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class SignedLogDet(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    logabsdet: Tensor


def matrix(name: str, input: Any, *, square: bool = False) -> Tensor:
    """The operand, of matrices. Raises `DTypeError` for what has no fractions and `ShapeError` for other shapes."""
    x = tensor_of(name, input)
    if x.dtype.kind not in "fc":
        raise DTypeError(f"{name} takes floating-point or complex numbers, not {x.dtype}")
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        what = "square matrices" if square else "matrices"
        raise ShapeError(f"{name} takes {what} in the last two dimensions, not shape {x.shape}")
    return x


def _factored(op: str, x: Tensor, *attributes: Any) -> tuple[Tensor, ...]:
    names = {"full": attributes[0]} if attributes else {}
    return parts(op, emission.emit(op, (x,), *attributes), x.shape, names)


# factorisations


def cholesky(input: Any, *, upper: bool = False) -> Tensor:
    """L with L Lᴴ = input, Hermitian and positive definite; with `upper` its conjugate transpose."""
    lower = emission.emit("cholesky", (matrix("cholesky", input, square=True),))
    return mh(lower) if upper else lower


def qr(A: Any, mode: str = "reduced") -> QR:
    """Q, with orthonormal columns, and R, an upper triangle, with Q R = A. `mode`: 'reduced', 'complete' or 'r'."""
    x = matrix("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"qr: mode is 'reduced', 'complete' or 'r', not {mode!r}")
    q, r = _factored("qr", x, mode == "complete")
    return QR(creation.zeros(0, dtype=x.dtype) if mode == "r" else q, r)


def svd(A: Any, full_matrices: bool = True, *, driver: Any = None) -> SVD:
    """The singular value decomposition: U, S and Vᴴ with U diag(S) Vᴴ = A, S descending.

    The vectors that `full_matrices` adds are not unique, so no gradient flows from them.
    """
    return SVD(*_factored("svd", matrix("svd", A), bool(full_matrices)))


def svdvals(A: Any, *, driver: Any = None) -> Tensor:
    """The singular values, descending."""
    return svd(A, full_matrices=False).S


@also_named(input="A")
def eigh(A: Any, UPLO: str = "L") -> Eigh:
    """Eigenvalues, ascending, and orthonormal eigenvectors (as columns) of Hermitian matrices; only one triangle is
    read.
    """
    x = matrix("eigh", A, square=True)
    if str(UPLO).upper() not in ("L", "U"):
        raise ValueError(f"eigh: UPLO is 'L' or 'U', not {UPLO!r}")
    return Eigh(*_factored("eigh", mh(x) if UPLO.upper() == "U" else x))


@also_named(input="A")
def eigvalsh(A: Any, UPLO: str = "L") -> Tensor:
    """The eigenvalues of Hermitian matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


@also_named(input="A")
def eig(A: Any) -> Eig:
    """Eigenvalues and eigenvectors (as columns, of norm 1) of square matrices: complex, in no particular order."""
    return Eig(*_factored("eig", matrix("eig", A, square=True)))


@also_named(input="A")
def eigvals(A: Any) -> Tensor:
    """The eigenvalues of square matrices: complex, in no particular order."""
    return eig(A).eigenvalues


# determinants, inverses, systems


@also_named(input="A")
def det(A: Any) -> Tensor:
    """The determinant."""
    return emission.emit("det", (matrix("det", A, square=True),))


@also_named(input="A")
def slogdet(A: Any) -> SignedLogDet:
    """The sign of the determinant and the logarithm of its absolute value."""
    return SignedLogDet(*_factored("slogdet", matrix("slogdet", A, square=True)))


def logdet(input: Any) -> Tensor:
    """The logarithm of the determinant: of real numbers NaN where that is negative."""
    sign, logarithm = slogdet(input)
    if sign.dtype.kind == "c":
        return arithmetic.add(logarithm, arithmetic.log(sign))
    return arithmetic.where(arithmetic.lt(sign, 0), math.nan, logarithm)


@also_named(input="A")
def inv(A: Any) -> Tensor:
    """The inverse. A singular matrix is an error at the fetch."""
    return emission.emit("inverse", (matrix("inv", A, square=True),))


def solve(A: Any, B: Any, *, left: bool = True) -> Tensor:
    """Solve A X = B (with `left=False`: X A = B); B may contain vectors, (..., n)."""
    a, b = matrix("solve", A, square=True), tensor_of("solve", B)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    if vector:
        b = shape_ops.unsqueeze(b, -1)
    elif not left:
        return mt(emission.emit("solve", (mt(a), mt(b))))
    out = emission.emit("solve", (a, b))
    return shape_ops.squeeze(out, -1) if vector else out


@also_named(input="A")
def solve_triangular(A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Solve A X = B, reading only one triangle of A; `unitriangular` takes its diagonal as ones."""
    a, b = matrix("solve_triangular", A, square=True), matrix("solve_triangular", B)
    a = triangular.triu(a) if upper else triangular.tril(a)
    if unitriangular:
        one = creation.eye(a.shape[-1], dtype=a.dtype)
        a = arithmetic.add(arithmetic.mul(a, arithmetic.sub(1.0, one)), one)
    return solve(a, b) if left else mt(solve(mt(a), mt(b)))


@also_named(input="A")
def tensorinv(A: Any, ind: int = 2) -> Tensor:
    """The inverse of the map that takes the dimensions from `ind` on to those before."""
    x = tensor_of("tensorinv", A)
    rows, columns = x.shape[:ind], x.shape[ind:]
    if ind < 1 or math.prod(rows) != math.prod(columns):
        raise ShapeError(f"tensorinv: shape {x.shape} is not square at ind={ind}")
    return shape_ops.reshape(inv(shape_ops.reshape(x, (math.prod(rows), math.prod(columns)))), (*columns, *rows))


@also_named(input="A", other="B")
def tensorsolve(A: Any, B: Any, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B; `dims` of A are moved to the end first."""
    a, b = tensor_of("tensorsolve", A), tensor_of("tensorsolve", B)
    if dims is not None:
        a = shape_ops.movedim(a, tuple(dims), tuple(range(a.ndim - len(dims), a.ndim)))
    rest = a.shape[b.ndim :]
    if math.prod(rest) != math.prod(b.shape):
        raise ShapeError(f"tensorsolve: A {a.shape} and B {b.shape} make no square system")
    flat = solve(
        shape_ops.reshape(a, (math.prod(b.shape), math.prod(rest))), shape_ops.reshape(b, (math.prod(b.shape),))
    )
    return shape_ops.reshape(flat, rest)


# products


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product."""
    return matrix_products.matmul(input, other)


@also_named(input="A")
def matrix_exp(A: Any) -> Tensor:
    """The matrix exponential of square matrices."""
    return emission.emit("matrix_exp", (matrix("matrix_exp", A, square=True),))


@also_named(input="A")
def matrix_power(A: Any, n: int) -> Tensor:
    """An integer power of A, by repeated squaring; negative powers use the inverse."""
    x = matrix("matrix_power", A, square=True)
    if n < 0:
        x, n = inv(x), -n
    out = None
    while n:
        if n & 1:
            out = x if out is None else matrix_products.matmul(out, x)
        n >>= 1
        x = matrix_products.matmul(x, x) if n else x
    return shape_ops.expand(creation.eye(x.shape[-1], dtype=x.dtype), x.shape) if out is None else out


def multi_dot(tensors: Sequence[Any]) -> Tensor:
    """The product of several matrices, in the order with the fewest multiplications; the first and last may be
    vectors.
    """
    given = [tensor_of("multi_dot", x) for x in tensors]
    if len(given) < 2 or any(x.ndim != 2 for x in given[1:-1]) or any(x.ndim not in (1, 2) for x in given):
        raise ShapeError("multi_dot: at least two tensors, matrices between vectors or matrices")
    first, last = given[0].ndim == 1, given[-1].ndim == 1
    if first:
        given[0] = shape_ops.unsqueeze(given[0], 0)
    if last:
        given[-1] = shape_ops.unsqueeze(given[-1], 1)
    sizes = [given[0].shape[0], *(x.shape[1] for x in given)]
    out = _chained(given, sizes, 0, len(given) - 1, {})[1]
    out = shape_ops.squeeze(out, -1) if last else out
    return shape_ops.squeeze(out, 0) if first else out


def _order(sizes: Sequence[int], i: int, j: int, memo: dict[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    """(multiplications, where to divide) of the product of matrices i to j."""
    if i == j:
        return 0, i
    if (i, j) not in memo:
        memo[i, j] = min(
            (
                _order(sizes, i, k, memo)[0]
                + _order(sizes, k + 1, j, memo)[0]
                + sizes[i] * sizes[k + 1] * sizes[j + 1],
                k,
            )
            for k in range(i, j)
        )
    return memo[i, j]


def _chained(
    given: Sequence[Tensor], sizes: Sequence[int], i: int, j: int, memo: dict[tuple[int, int], tuple[int, int]]
) -> tuple[int, Tensor]:
    cost, k = _order(sizes, i, j, memo)
    if i == j:
        return cost, given[i]
    left, right = _chained(given, sizes, i, k, memo)[1], _chained(given, sizes, k + 1, j, memo)[1]
    return cost, matrix_products.matmul(left, right)


def vecdot(x: Any, y: Any, *, dim: int = -1) -> Tensor:
    """Σ x̄ · y along a dimension."""
    return reductions.sum(arithmetic.mul(complex_numbers.conj_physical(x), tensor_of("vecdot", y)), dim)


def cross(input: Any, other: Any, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of three elements along a dimension."""
    return contractions.cross(input, other, dim)


def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices: a view."""
    return triangular.diagonal(A, offset, dim1, dim2)


def vander(x: Any, *, N: int | None = None) -> Tensor:
    """The powers 0 to N − 1 of every element, along a new last dimension."""
    base = tensor_of("vander", x)
    base = cast(base, int64) if base.dtype.kind in "bi" else base
    base = base if base.ndim else shape_ops.unsqueeze(base, 0)
    count = base.shape[-1] if N is None else N
    powers = creation.arange(count, dtype=base.dtype)
    return arithmetic.pow(shape_ops.unsqueeze(base, -1), powers)


def chain_matmul(*matrices: Any) -> Tensor:
    """The product of matrices in the cheapest order."""
    return multi_dot(matrices) if len(matrices) > 1 else tensor_of("chain_matmul", matrices[0])
