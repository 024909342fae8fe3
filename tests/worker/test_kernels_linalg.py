"""Kernels of linear algebra and Fourier transforms, against LAPACK, SciPy, NumPy and what they must be."""

from __future__ import annotations

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


def there(library: str) -> tuple[Any, ...]:
    """The array modules that have a library of CUDA: the device of `make pretend` has neither cuFFT nor all of cuSOLVER."""
    card = getattr(OTHER, "cuda", None)
    runtime = getattr(card, "runtime", None)
    properties = getattr(runtime, "getDeviceProperties", None)
    if properties is not None and b"Pretend" in properties(0)["name"]:
        pytest.skip(f"the pretend device has no {library}")
    return np, OTHER


def close(found: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 2e-4 if found.dtype in (np.float32, np.complex64) else 1e-9
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_orthogonal_and_singular_factors_make_the_matrix(dtype: str, shape: tuple[int, int]) -> None:
    """Which of several they are is the library's own; what they are is not."""
    x, (rows, columns) = drawn((2, *shape), dtype), shape
    inner = min(shape)
    for xp in there("QR and SVD"):
        for one, packed in zip(x, compute(xp, "qr", (x,), {"full": False}), strict=True):
            q, r = packed[: rows * inner].reshape(rows, inner), packed[rows * inner :].reshape(inner, columns)
            close(q @ r, one)
            close(q.conj().T @ q, np.eye(inner, dtype=dtype))
            close(np.tril(r, -1), np.zeros_like(r))
        for one, packed in zip(x, compute(xp, "svd", (x,), {"full": False}), strict=True):
            u, rest = packed[: rows * inner].reshape(rows, inner), packed[rows * inner :]
            s, v = rest[:inner], rest[inner:].reshape(inner, columns)
            close((u * s) @ v, one)
            close(s.real, np.linalg.svd(one, compute_uv=False))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_eigenvectors_keep_their_direction(dtype: str) -> None:
    x = drawn((2, 5, 5), dtype)
    symmetric = (x + np.conj(np.swapaxes(x, -1, -2))) / 2
    for xp in there("eigenvalues"):
        for one, packed in zip(symmetric, compute(xp, "eigh", (symmetric,), {}), strict=True):
            values, vectors = packed[:5], packed[5:].reshape(5, 5)
            close(one @ vectors, vectors * values)
            close(values.real, np.linalg.eigvalsh(one))
        for one, packed in zip(x, compute(xp, "eig", (x,), {}), strict=True):
            values, vectors = packed[:5], packed[5:].reshape(5, 5)
            close(one @ vectors, vectors * values)
            close(np.linalg.norm(vectors, axis=0), np.ones(5, vectors.real.dtype))


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
    for xp in there("cuFFT"):
        close(compute(xp, "rfft", (x,), {"axis": axis}), np.fft.rfft(x, axis=axis))
        half = np.fft.rfft(x, axis=axis)
        close(compute(xp, "irfft", (half,), {"axis": axis, "size": length}), x * length)
        close(compute(xp, "fft", (z,), {"axis": axis, "inverse": False}), np.fft.fft(z, axis=axis))
        close(compute(xp, "fft", (z,), {"axis": axis, "inverse": True}), np.fft.ifft(z, axis=axis) * length)
