"""cuBLAS on a CPU: its functions over addresses, written after its documentation alone, to see that they are called as it says.

Matrices lie column by column. What NVIDIA's library refuses is refused with its status; while a stream of the card that is none
captures, a product is noted, and one without a workspace is refused, for the library would look for memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from capturing import CAPTURE
from card import CARD, to_tf32

from gt.ir.dtypes import bfloat16

DTYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 4: np.dtype(np.complex64),
          5: np.dtype(np.complex128), 14: bfloat16.numpy}  # fmt: skip
COMPUTED = {68: (0, 2, 4, 14), 77: (0, 4), 70: (1, 5)}
"""Which dtypes are computed how."""
INVALID, UNSUPPORTED = 7, 15


class Function:
    """A function of the library, called as C is: with what its prototype says."""

    def __init__(self, work: Callable[..., int]) -> None:
        self.work = work
        self.argtypes: tuple[Any, ...] = ()
        self.restype: Any = None
        self.calls = 0

    def __call__(self, *arguments: Any) -> int:
        assert self.restype is ctypes.c_int
        assert len(arguments) == len(self.argtypes), "as many as the prototype has"
        for kind, argument in zip(self.argtypes, arguments, strict=True):
            kind.from_param(argument)
        self.calls += 1
        return self.work(*arguments)


class Library:
    """What stands for `libcublas`."""

    def __init__(self) -> None:
        self.stream: int | None = None
        self.workspace = 0
        self.cublasCreate_v2 = Function(self._create)
        self.cublasDestroy_v2 = Function(lambda handle: 0)
        self.cublasSetStream_v2 = Function(self._set_stream)
        self.cublasSetWorkspace_v2 = Function(self._set_workspace)
        self.cublasGemmEx = Function(self._gemm)
        self.cublasGemmStridedBatchedEx = Function(self._batched)

    def _create(self, handle: Any) -> int:
        handle._obj.value = 4711
        return 0

    def _set_stream(self, handle: Any, stream: int) -> int:
        self.stream, self.workspace = stream, 0
        return 0

    def _set_workspace(self, handle: Any, address: int, size: int) -> int:
        self.workspace = size
        return 0

    def _gemm(self, handle: Any, ta: int, tb: int, m: int, n: int, k: int, one: Any, a: int, atype: int, lda: int, b: int,
              btype: int, ldb: int, zero: Any, c: int, ctype: int, ldc: int, compute: int, algorithm: int) -> int:  # fmt: skip
        return self._batched(
            handle,
            ta,
            tb,
            m,
            n,
            k,
            one,
            a,
            atype,
            lda,
            0,
            b,
            btype,
            ldb,
            0,
            zero,
            c,
            ctype,
            ldc,
            0,
            1,
            compute,
            algorithm,
        )

    def _batched(self, handle: Any, ta: int, tb: int, m: int, n: int, k: int, one: Any, a: int, atype: int, lda: int,
                 astep: int, b: int, btype: int, ldb: int, bstep: int, zero: Any, c: int, ctype: int, ldc: int, cstep: int,
                 count: int, compute: int, algorithm: int) -> int:  # fmt: skip
        assert handle.value == 4711
        current = CARD.cuda.get_current_stream()
        assert self.stream == current.ptr, "the stream was told"
        if min(m, n, k, count) < 1 or lda < (k if ta else m) or ldb < (n if tb else k) or ldc < m:
            return INVALID
        if not atype == btype == ctype or atype not in COMPUTED[compute] or algorithm != -1:
            return UNSUPPORTED
        dtype = DTYPES[atype]
        scalar = DTYPES[atype] if atype not in (2, 14) else DTYPES[0]
        assert _columns(one, scalar, (1, 1), 1, 0, 1) == 1
        assert _columns(zero, scalar, (1, 1), 1, 0, 1) == 0
        if not self.workspace:
            CAPTURE.waits("memory for cuBLAS")
        left = _columns(a, dtype, (k, m) if ta else (m, k), lda, astep, count)
        right = _columns(b, dtype, (n, k) if tb else (k, n), ldb, bstep, count)
        out = _columns(c, dtype, (m, n), ldc, cstep, count)

        def work() -> None:
            x, y = (each.astype(np.float32) if dtype.itemsize == 2 else each for each in (left, right))
            x, y = (to_tf32(each) if compute == 77 else each for each in (x, y))
            x, y = (x.swapaxes(1, 2) if ta else x), (y.swapaxes(1, 2) if tb else y)
            with np.errstate(all="ignore"):
                out[...] = np.matmul(x, y)
            CARD.timeline.writes(c)

        if CAPTURE.noted is None:
            work()
        else:
            CAPTURE.note(work)
        return 0


def _columns(address: int, dtype: Any, shape: tuple[int, int], leading: int, step: int, count: int) -> Any:
    """Matrices that lie column by column from an address on."""
    item = dtype.itemsize
    nbytes = ((count - 1) * step + leading * (shape[1] - 1) + shape[0]) * item
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    return np.ndarray((count, *shape), dtype, np.frombuffer(memory, np.uint8), 0, (step * item, item, leading * item))
