"""Arrays as views of buffers: which memory an array looks at, and how to make the same array over that memory again.

This is for NumPy. `gpu_buffers.py` has the same functions for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol

import numpy as np


class BufferView(NamedTuple):
    """How an array looks at its buffer: dtype, shape, and in bytes its strides and offset."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class AllocatorUsage(NamedTuple):
    """Statistics of an allocator. `used`: bytes in use, None where only the tensors are known; `most`: at one time since
    the start; `unused`: the share of what it has from the system or device and nobody uses, None where it cannot tell."""

    used: int | None
    most: int
    unused: float | None


class Buffers(Protocol):
    """The operations by which buffers of arrays are found, saved and restored."""

    def of(self, value: Any) -> tuple[Hashable, int] | None:
        """Who a value's buffer is, as long as it lives, and its bytes; None where there is none, or it is not this worker's."""

    def arriving(self, array: np.ndarray[Any, Any]) -> int:
        """Bytes of this worker's that an array of the host takes when it comes to the device."""

    def view(self, value: Any) -> BufferView:
        """How a value looks at its buffer."""

    def dump(self, value: Any) -> memoryview:
        """The bytes of a value's whole buffer, in memory of the host."""

    def restore(self, nbytes: int, fill: Callable[[memoryview], None]) -> Any:
        """An array of bytes in memory of its own, which `fill` has filled. Raises what that raises, and `MemoryError`."""

    def look(self, root: Any, view: BufferView) -> Any:
        """The value that looks so at a restored buffer."""


class Pinning(Protocol):
    """What moves memory of a device to pinned memory of the host and back. Whatever is told later is done as if they had been
    done at once, and nobody waits for them but `settle`."""

    def pin(self, nbytes: int) -> np.ndarray[Any, Any]:
        """So many bytes of pinned memory. Raises `MemoryError`."""

    def copy_out(self, value: Any, pinned: np.ndarray[Any, Any]) -> None:
        """Copy the bytes of a value's whole buffer to the beginning of a pinned buffer."""

    def copy_in(self, pinned: np.ndarray[Any, Any], nbytes: int) -> Any:
        """New memory of the device with the first `nbytes` bytes of a pinned buffer, as `Buffers.restore` gives it.

        Raises `MemoryError`.
        """

    def settle(self) -> None:
        """Wait until all copies are done. Any thread may."""


class HostBuffers:
    """`Buffers` for NumPy. An array without a base owns its memory; one over anything else was lent it."""

    def of(self, value: Any) -> tuple[Hashable, int] | None:
        root = _root(value)
        return None if root is None else (id(root), root.nbytes)

    def arriving(self, array: np.ndarray[Any, Any]) -> int:
        known = self.of(array)
        return 0 if known is None else known[1]

    def view(self, value: Any) -> BufferView:
        root = _root(value)
        assert root is not None, "only what has a buffer is looked at"
        return BufferView(value.dtype, value.shape, value.strides, value.ctypes.data - root.ctypes.data)

    def dump(self, value: Any) -> memoryview:
        root = _root(value)
        assert root is not None, "only what has a buffer is written"
        inwards = sorted(range(root.ndim), key=lambda axis: -root.strides[axis])  # as it lies, row by row
        return root.transpose(inwards).reshape(-1).view(np.uint8).data

    def restore(self, nbytes: int, fill: Callable[[memoryview], None]) -> Any:
        root = np.empty(nbytes, np.uint8)
        fill(root.data)
        return root

    def look(self, root: Any, view: BufferView) -> Any:
        return np.ndarray(view.shape, view.dtype, root, view.offset, view.strides)


def _root(value: Any) -> np.ndarray[Any, Any] | None:
    """The array that owns the memory at which `value` looks."""
    while isinstance(value, np.ndarray):
        if value.base is None:
            return value
        value = value.base
    return None
