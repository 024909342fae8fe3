"""cuBLAS without CuPy: products of every dtype go to it, and it is told its stream and workspace as it is to be told."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gt.ir.dtypes import BY_NAME, float64
from gt.worker.base import backend as backends
from gt.worker.base.backend import backend
from gt.worker.device.cublas import CUDA_TYPES, Gemm, sound
from gt.worker.device.cublas_handle import PROTOTYPES, CublasHandle

XP: Any = backend("cuda:0").xp


class Watched:
    """The library, of which a test may replace functions; how often each was called."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.instead: dict[str, Callable[..., int]] = {}
        self.library = backends._cublas()

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            self.calls[name] += 1
            status: int = self.instead.get(name, getattr(self.library, name))(*arguments)
            return status

        return function


def watched() -> tuple[CublasHandle, Watched]:
    """A handle of its own."""
    library = Watched()
    direct = CublasHandle(XP, library.library)
    direct.library = library
    return direct, library


@pytest.mark.parametrize("name", sorted(dtype.name for dtype in CUDA_TYPES))
def test_products_of_every_dtype_go_to_cublas(name: str) -> None:
    """One matrix by one function, stacks by the other; turned ones where they lie."""
    dtype = BY_NAME[name]
    direct, library = watched()
    multiply = Gemm(XP, dtype, direct, exact=True)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(dtype.numpy) for shape in ((2, 3, 4), (2, 5, 4)))
    x, y = XP.asarray(a), XP.asarray(b)
    wide = np.float32 if dtype.itemsize == 2 else dtype.numpy
    expected = np.matmul(a.astype(wide), b.astype(wide).swapaxes(1, 2))
    np.testing.assert_array_equal(multiply(x, y.swapaxes(1, 2)).get().astype(wide), expected)
    np.testing.assert_array_equal(multiply(x[1], y[1].T).get().astype(wide), expected[1])
    assert (library.calls["cublasGemmStridedBatchedEx"], library.calls["cublasGemmEx"]) == (1, 1)


def test_a_failure_says_what_of() -> None:
    direct, library = watched()
    multiply = Gemm(XP, float64, direct)
    x = XP.ones((4, 4))
    library.instead["cublasGemmEx"] = lambda *_: 13
    with pytest.raises(RuntimeError, match="cuBLAS says 13 of a product of 4×4 and 4×4"):
        multiply(x, x)
    library.instead["cublasGemmEx"] = lambda *_: 3
    with pytest.raises(MemoryError, match="no memory"):
        multiply(x, x)


def test_the_workspace_is_told_again_with_every_stream() -> None:
    """For `cublasSetStream` takes it away."""
    direct, library = watched()
    told: list[tuple[int, ...]] = []
    library.instead["cublasSetStream_v2"] = lambda _, stream: told.append((stream,)) or 0
    library.instead["cublasSetWorkspace_v2"] = lambda _, *workspace: told.append(workspace) or 0
    workspace = (direct.workspace.ptr, direct.workspace.size)
    other = XP.cuda.Stream(non_blocking=True).ptr
    for stream in (0, 0, other, 0):
        assert direct.handle_on(stream).value
    assert told == [(0,), workspace, (other,), workspace, (0,), workspace]


def test_the_workspace_is_none_of_the_pool() -> None:
    """A worker may be limited to less than it takes; what the pool has under its limit is for tensors alone."""
    pool = XP.get_default_memory_pool()
    before = pool.used_bytes(), pool.total_bytes()
    direct, _ = watched()
    assert direct.workspace.size > 0
    assert (pool.used_bytes(), pool.total_bytes()) == before


def test_a_library_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """CuPy's own way is as good, but in no graph."""
    assert sound(XP, watched()[0])
    assert backend("cuda:0").direct is not None
    library = backends._cublas()

    class Wrong:
        """Computes nothing, and says that all is well."""

        status = 0

        def __call__(self, *_: Any) -> int:
            return self.status

    functions = {name: getattr(library, name) for name in PROTOTYPES}
    wrong = SimpleNamespace(**{**functions, "cublasGemmEx": Wrong()})
    monkeypatch.setattr(backends, "_cublas", lambda: wrong)
    with caplog.at_level(logging.WARNING, "gt.worker.base.backend"):
        assert backend("cuda:0").direct is None
    assert "products of small numbers are wrong" in caplog.text
    monkeypatch.setattr(Wrong, "status", 1)
    assert backend("cuda:0").direct is None
