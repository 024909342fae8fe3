"""Kernels of linear algebra that are not LAPACK's own, against LAPACK and SciPy."""

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
