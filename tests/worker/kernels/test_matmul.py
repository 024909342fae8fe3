"""Large products by all threads: what comes out, and that neither threads nor time have a say in its bits."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.dtypes import DType, float32, float64
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device import openblas
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.kernels import matmul as products
from gt.worker.kernels.matmul import (
    MAX_PIECES,
    MIN_PIECE_SIZE,
    MIN_SHARED_MULTIPLICATIONS,
    SharedMatmul,
    exchanged,
    exchanges,
    matmul,
    product,
)

SIZES = st.sampled_from([1, 3, MIN_PIECE_SIZE, 2 * MIN_PIECE_SIZE + 1, MAX_PIECES * MIN_PIECE_SIZE + 5])
STACKS = st.sampled_from([(), (1,), (3,), (MAX_PIECES + 1,), (2, 3), (2, 5), (5, 2)])


@given(SIZES, st.sampled_from([1, 2, 40]), SIZES, STACKS, STACKS, st.booleans(), st.booleans(), st.booleans())
def test_it_is_the_product(
    rows: int, inner: int, columns: int, first: tuple[int, ...], second: tuple[int, ...],
    turned: bool, other: bool, given_out: bool,
) -> None:  # fmt: skip
    """Of matrices and stacks that are broadcast, however they lie in memory: exactly NumPy's, for small integers."""
    try:
        stack = np.broadcast_shapes(first, second)
    except ValueError:
        second = first
        stack = first
    random = np.random.default_rng(0)

    def drawn(stack: tuple[int, ...], m: int, n: int, turn: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        made = random.integers(-4, 5, (*stack, n, m) if turn else (*stack, m, n)).astype(np.float32)
        return made.swapaxes(-1, -2) if turn else made

    a, b = drawn(first, rows, inner, turned), drawn(second, inner, columns, other)
    out = np.full((*stack, rows, columns), np.nan, np.float32) if given_out else None
    found = SharedMatmul(ThreadPool(2))(a, b, out)
    assert found is out or not given_out
    np.testing.assert_array_equal(found, np.matmul(a, b))


@pytest.mark.parametrize("shape", [(1000, 300, 64), (64, 300, 1000), (700, 33, 700)])
def test_the_bits_do_not_depend_on_how_many_lanes_there_are(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    random = np.random.default_rng(1)
    a, b = random.standard_normal((rows, inner)), random.standard_normal((inner, columns))
    stacks = random.standard_normal((2, 5, 40, 30)), random.standard_normal((5, 30, 20))
    thread_pools = [ThreadPool(threads) for threads in (1, 2, 4, 5)]
    for _ in range(5):
        for operands in ((a, b), stacks):
            assert len({SharedMatmul(thread_pool)(*operands).tobytes() for thread_pool in thread_pools}) == 1


def test_every_lane_that_comes_takes_part_and_every_piece_is_computed_once() -> None:
    """Two threads that are both there share the pieces; together they make each of them, and no other."""
    thread_pool = ThreadPool(2)
    meet = threading.Barrier(2)
    seen: list[int] = []

    run = thread_pool.run

    def both(part: Callable[[int], None]) -> None:
        def waited(thread: int) -> None:
            meet.wait(30)
            seen.append(thread)
            part(thread)

        run(waited)

    thread_pool.run = both  # type: ignore[method-assign]
    a = np.ones((MAX_PIECES * MIN_PIECE_SIZE, 4))
    np.testing.assert_array_equal(
        SharedMatmul(thread_pool)(a, np.ones((4, 2))), np.full((MAX_PIECES * MIN_PIECE_SIZE, 2), 4.0)
    )
    assert sorted(seen) == [0, 1]


def call(rows: int, inner: int, columns: int, threads: int | None, dtype: DType = float32) -> KernelCall:
    result = spec(dtype, (rows, columns))
    operands = (spec(dtype, (rows, inner)), spec(dtype, (inner, columns)))
    thread_pool = None if threads is None else ThreadPool(threads)
    return KernelCall(np, "matmul", {}, operands, result, result.shape, ((0, rows), (0, columns)), (), 0, thread_pool)


@pytest.mark.parametrize(("threads", "size", "shared"), [(2, 2, True), (2, 0.5, False), (1, 2, True), (None, 2, False)])
def test_what_is_small_or_has_no_pool_is_left_to_blas(threads: int | None, size: float, shared: bool) -> None:
    """One thread computes the same pieces: the whole has other bits with some kernels of BLAS."""
    side = math.ceil((MIN_SHARED_MULTIPLICATIONS * size) ** (1 / 3))
    found = product(call(side, side, side, threads), side**3, float32)
    assert isinstance(found, SharedMatmul) == shared
    assert shared or found is np.matmul


@pytest.mark.parametrize(
    ("shape", "dtype", "core", "found"),
    [
        ((128, 784, 256), float32, "SkylakeX", True),
        ((2, 1024, 1024), float32, "SapphireRapids", True),
        ((128, 784, 256), float32, "Haswell", False),
        ((128, 784, 256), float32, "", False),
        ((128, 784, 256), float64, "SkylakeX", False),
        ((1, 4096, 4096), float32, "SkylakeX", False),
        ((256, 784, 256), float32, "SkylakeX", False),
        ((8, 64, 64), float32, "SkylakeX", False),
    ],
)
def test_products_of_few_rows_are_exchanged_where_that_takes_less_time(
    shape: tuple[int, int, int], dtype: DType, core: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "core", lambda: core)
    assert exchanges(call(*shape, 1, dtype)) == found
    assert (matmul(call(*shape, 1, dtype)) is exchanged) == found


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("rows", [2, 7, 64])
def test_an_exchanged_product_is_the_product_however_its_operands_lie(rows: int, turned: bool) -> None:
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (rows, 96)).astype(np.float32)
    b = random.integers(-4, 5, (80, 96)).astype(np.float32).T
    b = b if turned else np.ascontiguousarray(b)
    for first in (a, np.asfortranarray(a)):
        found = exchanged(first, b)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, a @ b)


BITS = """
import numpy as np
from gt.worker.device.openblas import AVX512_CORES, core
from gt.worker.kernels.matmul import exchanged
assert core() in AVX512_CORES, core()
random = np.random.default_rng(0)
for rows, inner, columns in [(128, 784, 256), (2, 1024, 1024), (33, 257, 511), (50, 333, 777), (19, 128, 512)]:
    a = random.standard_normal((rows, inner), dtype=np.float32)
    b = random.standard_normal((columns, inner), dtype=np.float32).T
    assert exchanged(a, b).tobytes() == np.matmul(a, b).tobytes() == np.matmul(a, np.ascontiguousarray(b)).tobytes()
"""


@pytest.mark.skipif(
    "avx512bw" not in Path("/proc/cpuinfo").read_text() or not openblas.core(), reason="no AVX-512, or no OpenBLAS"
)
def test_with_kernels_for_avx512_an_exchanged_product_has_the_same_bits() -> None:
    env = {**os.environ, "OPENBLAS_CORETYPE": "SkylakeX"}
    subprocess.run([sys.executable, "-c", BITS], env=env, check=True)
