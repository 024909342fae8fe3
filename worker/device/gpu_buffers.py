"""Copies of GPU buffers to and from pinned memory, and flags that a GPU reports later.

Takes the module `cupy` as an argument, in `CudaStreams`, for only `worker/base/backend.py` names it. In which order things
are done is in `cuda_streams.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from gt.daemon.host import available_memory

from .async_copies import HostToDeviceCopies
from .buffers import BufferView
from .cuda_streams import CudaStreams, StreamMemory


class DeviceFlags:
    """Results of checks (int64, 0 if nothing is wrong) that the device copies to pinned host memory when it has them."""

    def __init__(self, streams: CudaStreams, flags: list[Any]) -> None:
        cupy = streams.cupy
        self._on_device = cupy.stack(flags)
        memory = cupy.cuda.alloc_pinned_memory(8 * len(flags))
        self._here = np.frombuffer(memory, np.int64, len(flags))
        self._on_device.get(out=self._here, blocking=False)
        self._event = streams.mark(streams.compute)
        streams.hold_host(
            self._event, memory
        )  # CuPy's pool gives it again as soon as nobody asks for these numbers any more

    def come(self) -> bool:
        return bool(self._event.done)

    def all(self) -> list[int]:
        self._event.synchronize()
        found: list[int] = self._here.tolist()
        return found


class DeviceBuffers:
    """`Buffers` and `Pinning` for CuPy. A buffer is one allocation of the pool, known by its address while it is in use."""

    def __init__(self, streams: CudaStreams) -> None:
        self.streams = streams
        self.cupy = streams.cupy
        self.device = self.cupy.cuda.Device()
        self.outward: Any = None
        """An event behind the last copy to pinned memory."""
        self.inward: Any = None
        """An event behind the last copy from there."""
        self.puts: HostToDeviceCopies | None = None
        """The copies of puts, which may not have been started."""

    def arriving(self, array: np.ndarray[Any, Any]) -> int:
        return array.nbytes

    def of(self, value: Any) -> tuple[Hashable, int] | None:
        memory = getattr(getattr(value, "data", None), "mem", None)
        return (memory.ptr, memory.size) if memory is not None and memory.size else None

    def view(self, value: Any) -> BufferView:
        return BufferView(value.dtype, value.shape, value.strides, value.data.ptr - value.data.mem.ptr)

    def dump(self, value: Any) -> memoryview:
        host = np.empty(value.data.mem.size, np.uint8)
        self.copy_out(value, host)
        self.settle()
        return host.data

    def restore(self, nbytes: int, fill: Callable[[memoryview], None]) -> Any:
        host = np.empty(nbytes, np.uint8)
        fill(host.data)
        with self.device:  # whoever reads ahead has a thread of its own
            root = self.copy_in(host, nbytes)
        self.settle()
        return root

    def look(self, root: StreamMemory, view: BufferView) -> Any:
        return root.look(view.shape, view.dtype, view.strides, view.offset)

    def pin(self, nbytes: int) -> np.ndarray[Any, Any]:
        if nbytes > available_memory() // 2:  # pinned memory is never swapped out, and others of the host pin theirs
            raise MemoryError(f"the host has no {nbytes:,} bytes to spare for pinned memory")
        try:
            # not CuPy's pool of pinned memory, which gives nothing back
            pointer = self.cupy.cuda.PinnedMemoryPointer(self.cupy.cuda.PinnedMemory(nbytes), 0)
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(f"the host has no {nbytes:,} bytes to pin: {error}") from None
        return np.frombuffer(pointer, np.uint8, nbytes)

    def copy_out(self, value: Any, pinned: np.ndarray[Any, Any]) -> None:
        streams, memory = self.streams, value.data.mem
        if self.puts is not None and self.puts.waiting:
            self.puts.finish(memory.ptr)  # what goes out before it was all there: none but the host has the rest
        streams.follow(streams.copies_out, streams.compute)
        streams.follow(
            streams.copies_out, streams.copies_in
        )  # the value may be a put, and others read the buffer before
        source = self.cupy.cuda.MemoryPointer(memory, 0)
        source.copy_to_host_async(pinned.ctypes.data, memory.size, streams.copies_out)
        self.outward = streams.mark(streams.copies_out)
        streams.hold(streams.copies_out, memory, self.outward)

    def copy_in(self, pinned: np.ndarray[Any, Any], nbytes: int) -> StreamMemory:
        streams = self.streams
        root = streams.room(streams.copies_in, nbytes)
        if self.outward is not None:
            streams.copies_in.wait_event(self.outward)  # which may have written to the buffer
        root.pointer.copy_from_host_async(pinned.ctypes.data, nbytes, streams.copies_in)
        self.inward = streams.mark(streams.copies_in)
        streams.compute.wait_event(self.inward)
        return root

    def settle(self) -> None:
        with self.device:  # as above
            for event in (self.outward, self.inward):
                if event is not None:
                    event.synchronize()
