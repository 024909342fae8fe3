"""Capture and launch of CUDA graphs over CuPy: the `Device` of `worker/cuda_graphs/graphs.py`.

A stream of its own captures, for the default one cannot; while it does, nothing is computed. Kernels then get the memory that was
dealt out for them beforehand, one allocation after the other, because a graph goes on using it at every launch. Neither a
decision nor a product may be in here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from .buffers import BufferView

MAX_SCALARS_PER_WRITE: Final = 16
"""The most run-time scalars that one launch writes."""
KERNEL_SOURCE: Final = f"""
typedef unsigned long long u64;
extern "C" __global__ void place_numbers(
    u64* to, unsigned int count, {", ".join(f"u64 v{at}" for at in range(MAX_SCALARS_PER_WRITE))})
{{
    const u64 v[{MAX_SCALARS_PER_WRITE}] = {{{", ".join(f"v{at}" for at in range(MAX_SCALARS_PER_WRITE))}}};
    for (unsigned int at = 0; at < count; ++at) to[at] = v[at];
}}
"""


class AllocationMismatch(Exception):
    """Raised when a capture allocates otherwise than the rehearsal did."""


class ArrayAddress(NamedTuple):
    """Where an array lies: from which address, in the memory that begins at `memory`, and how."""

    address: int
    memory: int
    strides: tuple[int, ...]
    nbytes: int


class AllocationEvent(NamedTuple):
    """An allocation of so many bytes; with `nbytes` -1 the end of the one that had this number."""

    number: int
    nbytes: int


class AllocationPart(NamedTuple):
    """A part of an allocation: `nbytes` bytes from `offset` on."""

    allocation: Any
    offset: int
    nbytes: int


class _AllocationLifetime:
    """Logs when the memory that it holds is freed."""

    __slots__ = ("log", "number", "pointer")

    def __init__(self, pointer: Any, log: list[AllocationEvent], number: int) -> None:
        self.pointer, self.log, self.number = pointer, log, number

    def __del__(self) -> None:
        self.log.append(AllocationEvent(self.number, -1))


class GraphCapture:
    """Captures and launches graphs on the GPU of this number."""

    def __init__(self, xp: Any, device: int) -> None:
        self.xp = xp
        self.device = device
        self.stream: Any = None

    def seen(self, value: Any) -> ArrayAddress:
        """Where an array lies."""
        data = value.data
        return ArrayAddress(data.ptr, data.mem.ptr, value.strides, value.nbytes)

    def whole(self, value: Any) -> bool:
        """Whether an array has no gaps, in whichever order its dimensions lie."""
        reach = value.itemsize
        for stride, size in sorted(zip(value.strides, value.shape, strict=True)):
            if size > 1:
                if stride != reach:
                    return False
                reach *= size
        return bool(value.nbytes)

    def view(self, value: Any) -> BufferView:
        """How an array looks at its memory."""
        return BufferView(value.dtype, value.shape, value.strides, value.data.ptr - value.data.mem.ptr)

    def allocate(self, nbytes: int) -> Any:
        """`nbytes` bytes of memory of the device. Raises `MemoryError`."""
        return self.xp.empty(nbytes, np.uint8)

    def look(self, root: Any, view: BufferView) -> Any:
        """An array over the memory of a root, which it holds."""
        allocation = root.allocation
        memory = self.xp.cuda.UnownedMemory(allocation.data.ptr, allocation.nbytes, root, self.device)
        pointer = self.xp.cuda.MemoryPointer(memory, view.offset)
        return self.xp.ndarray(view.shape, view.dtype, pointer, view.strides)

    def beside(self, value: Any, view: BufferView) -> Any:
        """An array over the memory at which another looks, `offset` bytes behind its beginning."""
        data = value.data
        pointer = self.xp.cuda.MemoryPointer(data.mem, data.ptr - data.mem.ptr + view.offset)
        return self.xp.ndarray(view.shape, view.dtype, pointer, view.strides)

    def again(self, value: Any) -> Any:
        """The same values in memory of their own."""
        return value.copy(order="K")

    def copy(self, allocation: Any, value: Any) -> None:
        """Copy the values of an array without gaps to the beginning of an allocation, in their order."""
        allocation.data.copy_from_device_async(value.data, value.nbytes, self.xp.cuda.get_current_stream())

    def tell(self, allocation: Any, words: Sequence[int]) -> None:
        """Write numbers of 64 bits to the beginning of an allocation.

        They are passed to a kernel as arguments, so no memory of the host is read later.
        """
        place = _kernel(self.xp)
        numbers = allocation.view(np.uint64)
        for at in range(0, len(words), MAX_SCALARS_PER_WRITE):
            some = words[at : at + MAX_SCALARS_PER_WRITE]
            padded = [np.uint64(word) for word in (*some, *(0,) * (MAX_SCALARS_PER_WRITE - len(some)))]
            place((1,), (1,), (numbers[at:], np.uint32(len(some)), *padded))

    def place(self, allocation: Any, at: int) -> Any:
        """The address, as kernels take it, of number `at` among those that `tell` wrote to an allocation."""
        return allocation[8 * at :]

    # runs

    def rehearse(self, run: Callable[[], object]) -> list[AllocationEvent]:
        """Run something as ever; what memory it took, in order, and when each was free again. Raises what it raises."""
        log: list[AllocationEvent] = []
        cuda, device = self.xp.cuda, self.device
        take = cuda.get_allocator()
        number = 0

        def allocator(nbytes: int) -> Any:
            nonlocal number
            given = take(nbytes)
            if not nbytes:
                return given
            life = _AllocationLifetime(given, log, number)
            log.append(AllocationEvent(number, nbytes))
            number += 1
            return cuda.MemoryPointer(cuda.UnownedMemory(given.ptr, nbytes, life, device), 0)

        with cuda.using_allocator(allocator):
            run()
        return [*log]

    def capture(self, run: Callable[[], object], parts: Sequence[AllocationPart]) -> Any:
        """The graph of what `run` tells the device; its allocations are these, one after the other. Raises whatever it raises,
        what the device says, and `AllocationMismatch`."""
        cuda, device = self.xp.cuda, self.device
        take = cuda.get_allocator()
        coming = iter(parts)

        def allocator(nbytes: int) -> Any:
            if not nbytes:
                return take(nbytes)
            part = next(coming, None)
            if part is None or part.nbytes != nbytes:
                raise AllocationMismatch(f"{nbytes} bytes and not {part.nbytes if part else 'nothing'}")
            memory = cuda.UnownedMemory(part.allocation.data.ptr + part.offset, nbytes, part.allocation, device)
            return cuda.MemoryPointer(memory, 0)

        if self.stream is None:
            self.stream = cuda.Stream(non_blocking=True)
        with self.stream, cuda.using_allocator(allocator):
            self.stream.begin_capture()
            try:
                run()
            except BaseException:
                with contextlib.suppress(Exception):  # that the capture is void is no news
                    self.stream.end_capture()
                raise
            graph = self.stream.end_capture()
        if next(coming, None) is not None:
            raise AllocationMismatch("less than before")
        return graph

    def launch(self, graph: Any) -> None:
        """Have a graph done, behind all that the device was told."""
        graph.launch()


@lru_cache(maxsize=1)
def _kernel(xp: Any) -> Any:
    return xp.RawKernel(KERNEL_SOURCE, "place_numbers")
