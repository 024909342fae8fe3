"""Products with int8 weights: exact beside int64, close beside float64, and the same by threads and in blocks of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from one_kernel import OTHER, compute, operand_of, run

from gt.errors import DTypeError, ShapeError
from gt.ir import dtypes
from gt.ir.infer import MAX_INT8_PRODUCTS, infer
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.kernels import matmul
from gt.worker.op_table.op_table import KERNELS

R = np.random.default_rng(5)


def int8s(*shape: int) -> Any:
    return R.integers(-128, 128, shape, np.int8)


@pytest.mark.parametrize("sizes", [(1, 7, 5), (3, 1030, 6), (2, 2049, 70), (40, 33, 3)])
def test_sums_of_int8_are_exact(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    for x, w in ((int8s(m, k), int8s(n, k)), (np.full((m, k), -128, np.int8), np.full((n, k), -128, np.int8))):
        out = run("matmul_int8", x, w)
        np.testing.assert_array_equal(out, x.astype(np.int64) @ w.astype(np.int64).T)
    limit = np.zeros((2, 2048), np.int8)
    limit[0, :1024] = limit[1, 1023:] = -128  # the second is one number beyond what float32 adds up
    w = np.full((3, 2048), -128, np.int8)
    np.testing.assert_array_equal(run("matmul_int8", limit, w)[:, 0], [1024 << 14, 1025 << 14])
    np.testing.assert_array_equal(run("matmul_int8", limit[:1], w)[:, 0], [1024 << 14])


def test_the_longest_sum_fits() -> None:
    """Of the smallest numbers, whose products are the largest."""
    least = np.full((1, MAX_INT8_PRODUCTS), -128, np.int8)
    assert run("matmul_int8", least, least).item() == MAX_INT8_PRODUCTS * 2**14 < 2**31
    with pytest.raises(ShapeError, match="may not fit int32: at most 131071"):
        infer("matmul_int8", (spec(dtypes.int8, (1, 131072)),) * 2, {})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_with_numbers_is_that_of_the_widened_weight(dtype: str) -> None:
    for shape in ((1, 300), (2, 3, 300)):
        x, w = R.standard_normal(shape).astype(dtype), int8s(20, 300)
        exact = x.astype(np.float64) @ w.astype(np.float64).T
        most = (np.abs(x).astype(np.float64) @ np.abs(w.astype(np.float64)).T) * 300 * np.finfo(dtype).eps
        for xp in (np, OTHER):  # which may add in another order
            assert (np.abs(compute(xp, "linear_int8", (x, w), {}) - exact) <= most).all()


@pytest.mark.skipif(matmul.int8_loops is None, reason="no loops of machine code: make native builds them")
@pytest.mark.parametrize("rows", [1, matmul.MAX_LOOP_ROWS, matmul.MAX_LOOP_ROWS + 1])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 15), (4, 16), (7, 1043)])
def test_loops_compute_what_the_calls_do(rows: int, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit but for few floating-point rows, whose sums differ by what rounding allows; however operands lie."""
    n, k = sizes
    whole, w = int8s(rows, k), int8s(n, k)
    numbers = R.standard_normal((rows, k)).astype(np.float32)
    forms = [w, np.asfortranarray(w), int8s(n, 2 * k)[:, ::2], int8s(n, k + 3)[:, :k]]
    found = [(compute(np, "matmul_int8", (whole, w), {}), compute(np, "linear_int8", (numbers, w), {})) for w in forms]
    monkeypatch.setattr(matmul, "int8_loops", None)
    for (sums, products), w in zip(found, forms, strict=True):
        assert sums.tobytes() == compute(np, "matmul_int8", (whole, w), {}).tobytes()
        others = compute(np, "linear_int8", (numbers, w), {})
        most = np.abs(numbers) @ np.abs(w.astype(np.float32)).T * (2 * k * np.finfo(np.float32).eps)
        assert (np.abs(products - others) <= (most if rows <= matmul.MAX_LOOP_ROWS else 0)).all()


@pytest.mark.skipif(matmul.int8_loops is None, reason="no loops of machine code: make native builds them")
def test_a_row_has_the_same_bits_among_others() -> None:
    """Of a batch that a loop computes, and of a weight that is cut by outputs; NaN and infinity stay in their rows."""
    x, w = R.standard_normal((matmul.MAX_LOOP_ROWS, 77)).astype(np.float32), int8s(11, 77)
    x[1, 70], x[2, 3] = np.nan, np.inf
    together = compute(np, "linear_int8", (x, w), {})
    assert np.isnan(together[1]).all()
    assert np.isfinite(together[3:]).all()
    for row in range(3, len(x)):
        for first in range(11):
            alone = compute(np, "linear_int8", (x[row : row + 1], w[first:]), {})
            assert alone.tobytes() == together[row, first:].tobytes()


@pytest.mark.parametrize("op", ["linear_int8", "matmul_int8"])
def test_threads_change_no_bit(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are small here, so that there are many."""
    monkeypatch.setattr(matmul, "BLOCK_ELEMENTS", 4096)
    monkeypatch.setattr(matmul, "MIN_SHARED_MULTIPLICATIONS", 1)
    for rows in (9, 19):  # which loops compute, or widen for
        x = int8s(rows, 1500) if op == "matmul_int8" else R.standard_normal((rows, 1500)).astype(np.float32)
        operands = x, int8s(50, 1500)
        specs = tuple(map(operand_of, operands))
        (result,) = infer(op, specs, {})
        alone = KernelCall(np, op, {}, specs, result, result.shape, ((0, rows), (0, 50)))
        shared = replace(alone, thread_pool=ThreadPool(3))
        assert KERNELS[op](alone)(*operands).tobytes() == KERNELS[op](shared)(*operands).tobytes()


def test_other_operands_are_refused() -> None:
    x, w = spec(dtypes.float32, (2, 3)), spec(dtypes.int8, (4, 3))
    for op, operands in (("linear_int8", (x, x)), ("linear_int8", (w, w)), ("matmul_int8", (x, w))):
        with pytest.raises(DTypeError, match=f"{op} takes"):
            infer(op, operands, {})
    with pytest.raises(ShapeError, match=r"\[\.\.\., m, k\] and \[n, k\], not \(2, 3\) and \(4, 5\)"):
        infer("linear_int8", (x, spec(dtypes.int8, (4, 5))), {})
