"""Kernels of linear algebra and Fourier transforms, against LAPACK, SciPy, NumPy and what they must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from one_kernel import OTHER, compute, run

RANDOM = np.random.default_rng(3)


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = RANDOM.standard_normal(shape) + (1j * RANDOM.standard_normal(shape) if dtype.startswith("complex") else 0)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (3, 5), (75, 70), (40, 90)])
def test_elimination_is_that_of_lapack(dtype: str, shape: tuple[int, int]) -> None:
    """Pivots too; panels of columns, and what lies beside them, are sizes of their own."""
    x = drawn((2, *shape), dtype)
    size = shape[0] * shape[1]
    for xp in (np, OTHER):  # whose products add up in orders of their own
        for one, packed in zip(x, compute(xp, "lu", (x,), {}), strict=True):
            expected, pivots = scipy.linalg.lu_factor(one)
            tolerance = 1e-3 if dtype == "float32" else 1e-9
            np.testing.assert_allclose(packed[:size].reshape(shape), expected, rtol=tolerance, atol=tolerance)
            np.testing.assert_array_equal(packed[size:].real, pivots + 1)


def test_a_singular_matrix_leaves_a_zero_on_the_diagonal() -> None:
    np.testing.assert_array_equal(run("lu", np.zeros((2, 2))), [0, 0, 0, 0, 1, 2])
    np.testing.assert_array_equal(run("lu", np.array([[1.0, 2], [2, 4]])), [2, 4, 0.5, 0, 2, 2])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0])
def test_exponentials_of_matrices_small_and_large(dtype: str, scale: float) -> None:
    """One stack whose matrices are halved a different number of times each."""
    x = drawn((3, 4, 4), dtype) * np.array([1, 0.1, 0], "float32").reshape(3, 1, 1) * np.float32(scale)
    expected = np.stack([scipy.linalg.expm(one.astype(np.result_type(one, np.float64))) for one in x])
    tolerance = 1e-3 if dtype == "float32" else 1e-9
    for xp in (np, OTHER):  # each squaring doubles what products in another order differ by
        found = compute(xp, "matrix_exp", (x,), {})
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * abs(expected).max())


def test_swaps_make_an_order() -> None:
    """Row k is swapped with the row that is listed, one after the other."""
    np.testing.assert_array_equal(run("permutation", np.array([3, 3, 3]), size=4), [2, 0, 1, 3])
    np.testing.assert_array_equal(run("permutation", np.array([[1, 2], [2, 2]]), size=2), [[0, 1], [1, 0]])
    with pytest.raises(IndexError, match="rows are numbered from 1 to 2"):
        run("permutation", np.array([0, 2]), size=2)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("cholesky", (np.array([[1.0, 2], [2, 1]]),)),
        ("inverse", (np.zeros((2, 2)),)),
        ("solve", (np.zeros((2, 2)), np.ones((2, 1)))),
    ],
)
def test_a_matrix_that_is_no_good_is_refused_by_both(op: str, operands: tuple[Any, ...]) -> None:
    """CuPy would give numbers, which mean nothing, and say so to nobody."""
    for xp in (np, OTHER):
        with pytest.raises(np.linalg.LinAlgError):
            compute(xp, op, operands, {})


def test_stacks_of_equations_broadcast() -> None:
    a = np.eye(3) * np.array([1.0, 2, 4, 8]).reshape(4, 1, 1)
    found = run("solve", a, np.ones((2, 1, 3, 1)))
    np.testing.assert_array_equal(found[1, :, 0, 0], [1, 0.5, 0.25, 0.125])


def close(found: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 2e-4 if found.dtype in (np.float32, np.complex64) else 1e-9
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def each(xp: Any, op: str, x: np.ndarray, **attributes: object) -> np.ndarray:
    """What a kernel gives, a row for each matrix of a stack."""
    found = compute(xp, op, (x,), attributes)
    return found.reshape(-1, found.shape[-1])


def taken_apart(packed: np.ndarray, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """The results that one kernel gave, one behind the other, of one matrix."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    assert packed.size == ends[-1]
    return [part.reshape(shape) for part, shape in zip(np.split(packed, ends[:-1]), shapes, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 4), (2, 5, 3), (2, 3, 5), (2, 34, 33), (2, 33, 35)])
def test_orthogonal_and_singular_factors_make_the_matrix(dtype: str, full: bool, shape: tuple[int, ...]) -> None:
    """Which of several they are is the library's own; what they are is not. CuPy goes another way for each of these shapes."""
    x, (*_, rows, columns) = drawn(shape, dtype), shape
    inner = min(rows, columns)
    left, right = (rows, columns) if full else (inner, inner)
    for xp in (np, OTHER):
        by_both = each(xp, "qr", x, full=full), each(xp, "svd", x, full=full)
        for one, by_qr, by_svd in zip(x.reshape(-1, rows, columns), *by_both, strict=True):
            q, r = taken_apart(by_qr, (rows, left), (left, columns))
            close(q @ r, one)
            close(q.conj().T @ q, np.eye(left, dtype=dtype))
            close(np.tril(r, -1), np.zeros_like(r))
            u, s, v = taken_apart(by_svd, (rows, left), (inner,), (right, columns))
            close((u[:, :inner] * s) @ v[:inner], one)
            close(u.conj().T @ u, np.eye(left, dtype=dtype))
            close(v @ v.conj().T, np.eye(right, dtype=dtype))
            close(s.real, np.linalg.svd(one, compute_uv=False))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5), (2, 34, 34)])
def test_eigenvectors_keep_their_direction(dtype: str, shape: tuple[int, ...]) -> None:
    x, size = drawn(shape, dtype), shape[-1]
    symmetric = (x + np.conj(np.swapaxes(x, -1, -2))) / 2
    for xp in (np, OTHER):
        for one, packed in zip(symmetric.reshape(-1, size, size), each(xp, "eigh", symmetric), strict=True):
            values, vectors = taken_apart(packed, (size,), (size, size))
            close(one @ vectors, vectors * values)
            close(values.real, np.linalg.eigvalsh(one))
        for one, packed in zip(x.reshape(-1, size, size), each(xp, "eig", x), strict=True):
            values, vectors = taken_apart(packed, (size,), (size, size))
            close(one @ vectors, vectors * values)
            close(np.linalg.norm(vectors, axis=0), np.ones(size, vectors.real.dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_definite_matrices_and_inverses(dtype: str) -> None:
    x = drawn((2, 5, 5), dtype)
    definite = x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(5, dtype=dtype)
    for xp in (np, OTHER):
        close(compute(xp, "cholesky", (definite,), {}), np.linalg.cholesky(definite))
        close(compute(xp, "inverse", (definite,), {}) @ definite, np.broadcast_to(np.eye(5, dtype=dtype), x.shape))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [1, 6, 7, 64])
def test_transforms_are_those_of_numpy(axis: int, length: int) -> None:
    x = drawn((length, 3) if axis == 0 else (3, length), "float64")
    z = x + 1j * x[::-1]
    for xp in (np, OTHER):
        close(compute(xp, "rfft", (x,), {"axis": axis}), np.fft.rfft(x, axis=axis))
        half = np.fft.rfft(x, axis=axis)
        close(compute(xp, "irfft", (half,), {"axis": axis, "size": length}), x * length)
        close(compute(xp, "fft", (z,), {"axis": axis, "inverse": False}), np.fft.fft(z, axis=axis))
        close(compute(xp, "fft", (z,), {"axis": axis, "inverse": True}), np.fft.ifft(z, axis=axis) * length)
