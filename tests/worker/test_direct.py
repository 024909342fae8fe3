"""cuBLAS without CuPy: that it is called as its prototypes say, by a library over addresses, written after its documentation."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
from card import CARD, Allocation, installed
from cublas_on_host import Library

from gt.ir.dtypes import BY_NAME, float64
from gt.worker.base import backend as backends
from gt.worker.device.cublas import ALL_KINDS, Gemm, sound
from gt.worker.device.cublas_handle import Direct


@pytest.fixture(autouse=True)
def _on_the_card() -> Iterator[None]:
    with installed():
        yield


@pytest.mark.parametrize("name", sorted(dtype.name for dtype in ALL_KINDS))
def test_products_of_every_dtype_go_to_cublas(name: str) -> None:
    """One matrix by one function, stacks by the other; turned ones where they lie."""
    dtype = BY_NAME[name]
    library = Library()
    multiply = Gemm(CARD, dtype, Direct(CARD, library), exact=True)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(dtype.numpy) for shape in ((2, 3, 4), (2, 5, 4)))
    x, y = CARD.asarray(a), CARD.asarray(b)
    wide = np.float32 if dtype.itemsize == 2 else dtype.numpy
    expected = np.matmul(a.astype(wide), b.astype(wide).swapaxes(1, 2))
    np.testing.assert_array_equal(multiply(x, y.swapaxes(1, 2)).get().astype(wide), expected)
    np.testing.assert_array_equal(multiply(x[1], y[1].T).get().astype(wide), expected[1])
    assert (library.cublasGemmStridedBatchedEx.calls, library.cublasGemmEx.calls) == (1, 1)


def test_a_failure_says_what_of() -> None:
    library = Library()
    multiply = Gemm(CARD, float64, Direct(CARD, library))
    x = CARD.ones((4, 4))
    library.cublasGemmEx.work = lambda *_: 13
    with pytest.raises(RuntimeError, match="cuBLAS says 13 of a product of 4×4 and 4×4"):
        multiply(x, x)
    library.cublasGemmEx.work = lambda *_: 3
    with pytest.raises(MemoryError, match="no memory"):
        multiply(x, x)


def test_the_workspace_is_told_again_with_every_stream() -> None:
    """For `cublasSetStream` takes it away."""
    library = Library()
    direct = Direct(CARD, library)
    for stream in (0, 0, 1 << 20, 0):
        assert direct.handle_on(stream).value
        assert library.stream == stream
        assert library.workspace == direct.workspace.size
    assert library.cublasSetStream_v2.calls == 3


def test_the_workspace_is_none_of_the_pool() -> None:
    """A worker may be limited to less than it takes; what the pool has under its limit is for tensors alone."""
    assert Direct(CARD, Library()).workspace.ptr in Allocation.alive


def test_a_library_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """CuPy's own way is as good, but in no graph."""
    library = Library()
    monkeypatch.setattr(backends, "_cublas", lambda: library)
    assert sound(CARD, Direct(CARD, library))
    assert backends.backend("cuda:0").direct is not None
    monkeypatch.setattr(library.cublasGemmEx, "work", lambda *_: 0)
    with caplog.at_level(logging.WARNING, "gt.worker.base.backend"):
        assert backends.backend("cuda:0").direct is None
    assert "products of small numbers are wrong" in caplog.text
    monkeypatch.setattr(library.cublasGemmEx, "work", lambda *_: 1)
    assert backends.backend("cuda:0").direct is None
