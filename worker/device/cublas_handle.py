"""A handle of cuBLAS whose calls a CUDA graph can capture: CuPy makes none while a stream captures (14.2 refuses).

cuBLAS may be captured, as NVIDIA documents it, if it need not look for memory then: so there is a handle with a workspace of its
own.
The library is the one that CuPy loaded; its functions are called by their prototypes in `cublas_api.h`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int, c_longlong, c_size_t, c_void_p
from typing import Any, Final

WORKSPACE_BYTES: Final = {True: 32 << 20, False: 8 << 20}
"""Bytes that cuBLAS may use beside its operands, on Hopper and later, and before."""
OUT_OF_MEMORY: Final = 3
"""CUBLAS_STATUS_ALLOC_FAILED."""
_COMMON_ARGUMENTS: Final = (c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p)
PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "cublasCreate_v2": (POINTER(c_void_p),),
    "cublasDestroy_v2": (c_void_p,),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasGemmEx": (
        *_COMMON_ARGUMENTS, c_void_p, c_int, c_int, c_void_p, c_int, c_int, c_void_p, c_void_p, c_int, c_int, c_int, c_int,
    ),
    "cublasGemmStridedBatchedEx": (
        *_COMMON_ARGUMENTS, c_void_p, c_int, c_int, c_longlong, c_void_p, c_int, c_int, c_longlong,
        c_void_p, c_void_p, c_int, c_int, c_longlong, c_int, c_int, c_int,
    ),
}  # fmt: skip


class CublasHandle:
    """A handle of cuBLAS with a workspace of its own."""

    def __init__(self, xp: Any, library: Any) -> None:
        self.library = library
        for name, prototype in PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = prototype, c_int
        self.handle = c_void_p()
        _checked(library.cublasCreate_v2(byref(self.handle)), "cublasCreate")
        recent = int(xp.cuda.Device().compute_capability) >= 90
        self.workspace = xp.cuda.Memory(WORKSPACE_BYTES[recent])
        """None of the pool's: a limit is for tensors."""
        self.stream: int | None = None

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None and handle.value:
            self.library.cublasDestroy_v2(handle)

    def handle_on(self, stream: int) -> Any:
        """The handle, told that this is the stream; that takes its workspace away."""
        if stream != self.stream:
            self.stream = None
            _checked(self.library.cublasSetStream_v2(self.handle, stream), "cublasSetStream")
            where, nbytes = self.workspace.ptr, self.workspace.size
            _checked(self.library.cublasSetWorkspace_v2(self.handle, where, nbytes), "cublasSetWorkspace")
            self.stream = stream
        return self.handle

    def gemm(
        self, handle: Any, turn_a: int, turn_b: int, m: int, n: int, k: int, one: int, a: int, kind_a: int, apart_a: int,
        step_a: int, b: int, kind_b: int, apart_b: int, step_b: int, zero: int, c: int, kind_c: int, apart_c: int, step_c: int,
        count: int, compute: int, algorithm: int,
    ) -> None:  # fmt: skip
        """`cublasGemmStridedBatchedEx`, or `cublasGemmEx` for one product. Raises `MemoryError` and `RuntimeError`."""
        if count == 1:
            status = self.library.cublasGemmEx(
                handle, turn_a, turn_b, m, n, k, one, a, kind_a, apart_a, b, kind_b, apart_b, zero, c, kind_c, apart_c,
                compute, algorithm,
            )  # fmt: skip
        else:
            status = self.library.cublasGemmStridedBatchedEx(
                handle, turn_a, turn_b, m, n, k, one, a, kind_a, apart_a, step_a, b, kind_b, apart_b, step_b,
                zero, c, kind_c, apart_c, step_c, count, compute, algorithm,
            )  # fmt: skip
        _checked(status, f"a product of {n}×{k} and {k}×{m} in columns")


def _checked(status: int, what: str) -> None:
    if status == OUT_OF_MEMORY:
        raise MemoryError(f"cuBLAS finds no memory for {what}")
    if status:
        raise RuntimeError(f"cuBLAS says {status} of {what}")


def library(path: str) -> Any:
    """The cuBLAS that was loaded for a library that needs it."""
    return ctypes.CDLL(path)
