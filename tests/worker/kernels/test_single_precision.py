"""Linear algebra of large float32 matrices: in single precision, with the results and the errors of small ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.kernels.linalg import MIN_SINGLE_SIDE, linalg, solve

Array = np.ndarray[Any, Any]
SIDE = MIN_SINGLE_SIDE + 5
SIZES = {
    "cholesky": lambda m, n: m * n,
    "inverse": lambda m, n: m * n,
    "eigh": lambda m, n: n + n * n,
    "qr": lambda m, n: min(m, n) * (m + n),
    "svd": lambda m, n: min(m, n) * (m + n + 1),
}


def call_of(op: str, *shapes: tuple[int, ...], result: tuple[int, ...]) -> KernelCall:
    operands = tuple(spec(float32, shape) for shape in shapes)
    made = spec(float32, result)
    return KernelCall(np, op, {"full": False} if op in ("qr", "svd") else {}, operands, made, result, ())


def drawn(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def positive(*stack: int) -> Array:
    x = drawn(*stack, SIDE, SIDE)
    found: Array = x @ x.swapaxes(-1, -2) + SIDE * np.eye(SIDE, dtype=np.float32)
    return found


def computed(op: str, x: Array) -> Array:
    size = SIZES[op](*x.shape[-2:])
    shape = x.shape if op in ("cholesky", "inverse") else (*x.shape[:-2], size)
    found: Array = linalg(call_of(op, x.shape, result=shape))(x)
    assert found.shape == shape
    assert found.dtype == np.float32
    return found


@pytest.mark.parametrize("stack", [(), (2,), (2, 1)])
def test_factors_and_inverses_are_right(stack: tuple[int, ...]) -> None:
    x = positive(*stack)
    scale = float(abs(x).max())
    exact = x.astype(np.float64)
    np.testing.assert_allclose(computed("cholesky", x), np.linalg.cholesky(exact), atol=1e-5 * math.sqrt(scale))
    np.testing.assert_allclose(computed("inverse", x) @ exact, np.broadcast_to(np.eye(SIDE), x.shape), atol=1e-5)
    values, vectors = np.split(computed("eigh", x), [SIDE], -1)
    vectors = vectors.reshape(x.shape)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(exact), rtol=1e-5)
    np.testing.assert_allclose(exact @ vectors, vectors * values[..., None, :], atol=1e-5 * scale)


@pytest.mark.parametrize("shape", [(SIDE, SIDE), (SIDE + 20, SIDE), (2, SIDE, SIDE + 20)])
def test_decompositions_multiply_to_what_they_were_of(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    (*stack, m, n), k = shape, SIDE
    q, r = np.split(computed("qr", x), [m * k], -1)
    np.testing.assert_allclose(q.reshape(*stack, m, k) @ r.reshape(*stack, k, n), x, atol=1e-4)
    u, s, v = np.split(computed("svd", x), [m * k, m * k + k], -1)
    np.testing.assert_allclose((u.reshape(*stack, m, k) * s[..., None, :]) @ v.reshape(*stack, k, n), x, atol=1e-4)
    np.testing.assert_allclose(s, np.linalg.svd(x.astype(np.float64), compute_uv=False), rtol=1e-4)


@pytest.mark.parametrize(("a", "b"), [((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,))])
def test_it_solves_stacks_that_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    matrix, right = positive(*a), drawn(*b, SIDE, 4)
    stack = np.broadcast_shapes(a, b)
    found = solve(call_of("solve", matrix.shape, right.shape, result=(*stack, SIDE, 4)))(matrix, right)
    assert found.shape == (*stack, SIDE, 4)
    np.testing.assert_allclose(matrix.astype(np.float64) @ found, np.broadcast_to(right, found.shape), atol=1e-4)


def test_what_has_no_result_is_an_error_as_of_numpy() -> None:
    zeros = np.zeros((SIDE, SIDE), np.float32)
    for op in ("cholesky", "inverse"):
        with pytest.raises(np.linalg.LinAlgError):
            computed(op, zeros)
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        solve(call_of("solve", zeros.shape, zeros.shape, result=zeros.shape))(zeros, zeros)


def test_what_is_not_finite_is_left_to_numpy() -> None:
    x = positive()
    x[3, 3] = np.nan
    assert np.isnan(computed("inverse", x)).any()
    with pytest.raises(np.linalg.LinAlgError):
        computed("svd", x)
