"""Buffers of a GPU whose bytes a thread reads later, as they were at one place in the order of the device's work.

A deferred read holds the memory of its buffer until it has been read, so nothing else comes there, and nobody writes to it:
values never change. But as long as that memory is held, later values have other addresses, and CUDA graphs, which know theirs,
are of no use. So where there is room the buffer is copied on the device first, and that copy is held (`DeferredReads.set_aside`).

The bytes pass in parts through a little pinned memory, on a stream that waits for what was told before, and the worker's core
waits for none of it. Only when the device has no memory otherwise, the core copies what is held to memory of the host at once
(`DeferredReads.relieve`).

Takes the module `cupy` as an argument, in `CudaStreams`. The order of the GPU's work is in `cuda_streams.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from gt.daemon.host import available_memory

from .async_copies import PART_ALIGNMENT, PART_BYTES, ByteArray, PinnedRing
from .cuda_streams import CudaStreams

GROUP_BYTES: Final = 32 << 20
"""The bytes of buffers that are set aside together, unless one has more."""
PARTS: Final = 4
"""The parts of the ring: while the host reads one, the device copies the others."""


class DeferredReads:
    """The buffers of one device that are still to be read. One thread reads them, one after the other; others `relieve`."""

    def __init__(self, streams: CudaStreams, pin: Callable[[int], ByteArray]) -> None:
        self.streams = streams
        self.ring = PinnedRing(pin, PARTS * PART_BYTES)
        self.lock = threading.Lock()
        """Of what has been started of a read, and of the memory that it holds."""
        self._stream: Any = None
        self._waiting: deque[weakref.ref[DeferredRead]] = deque()
        """What may still hold memory."""
        streams.relieve = self.relieve

    def cut(self) -> tuple[Any, ...]:
        """Events behind all that may still write to values that exist now."""
        with self.lock:
            self._waiting = deque(each for each in self._waiting if (read := each()) is not None and read.holds)
        return tuple(map(self.streams.mark, (self.streams.compute, self.streams.copies_in)))

    def later(self, memory: Any, after: tuple[Any, ...]) -> DeferredRead:
        """Have a buffer read later, as it is behind these events."""
        read = DeferredRead(self, memory, after)
        self._waiting.append(weakref.ref(read))
        return read

    def set_aside(self, reads: Sequence[DeferredRead]) -> list[DeferredRead]:
        """Hold copies of buffers instead, as all kernels so far leave them, in memory of this stream's own, which kernels do not
        miss. Returns those for which there was none. Before anybody reads them."""
        pointer = self.streams.cupy.cuda.MemoryPointer
        left: list[DeferredRead] = []
        with self.lock:
            done = []
            for group in _groups([read for read in reads if read.holds]):
                try:
                    with self.stream:
                        copy = self.streams.pool.malloc(sum(map(_aligned, group)))
                except MemoryError:
                    left += group
                    continue
                at = 0
                for read in group:
                    source, target = pointer(read._memory, 0), pointer(copy.mem, at)
                    target.copy_from_device_async(source, read.nbytes, self.streams.compute)
                    read._memory, read._offset = copy.mem, at
                    at += _aligned(read)
                done += group
            after = (self.streams.mark(self.streams.compute),)
            for read in done:
                read._after = after
        return left

    def relieve(self, nbytes: int) -> bool:
        """Copy what is held to the host until so many bytes of the device are held no longer, if there are as many. Returns
        whether there were any. Any thread may."""
        given = 0
        with self.lock:
            while self._waiting and given < nbytes:
                read = self._waiting.popleft()()
                if read is not None and read.holds:
                    read.bring()
                    given += read.nbytes
        return given > 0

    @property
    def stream(self) -> Any:
        """The stream of these copies."""
        if self._stream is None:
            self._stream = self.streams.cupy.cuda.Stream(non_blocking=True)
        return self._stream

    def mark(self) -> Any:
        """An event behind all copies so far, for which the host waits without computing."""
        event = self.streams.cupy.cuda.Event(block=True, disable_timing=True)
        event.record(self.stream)
        return event


class DeferredRead:
    """One buffer that is to be read, once."""

    def __init__(self, reads: DeferredReads, memory: Any, after: tuple[Any, ...]) -> None:
        self._reads = reads
        self._memory: Any = memory
        self._after = after
        self.nbytes: int = memory.size
        self.address: int = memory.ptr
        """Where the buffer lies."""
        self._offset = 0
        """Where in that memory it begins."""
        self._started = 0
        """The bytes whose copies have been started, from the first one on."""
        self._last: Any = None
        """An event behind the last of them."""
        self._rest: ByteArray | None = None
        """The others, if they had to be copied to the host."""
        self._error: MemoryError | None = None
        """Why they could not be."""

    @property
    def holds(self) -> bool:
        """Whether it holds memory of the device."""
        return self._memory is not None

    def parts(self) -> Iterator[memoryview]:
        """All bytes in their order, in parts; each is valid until the next one. Raises `MemoryError` where the device's memory
        was wanted and the host had none."""
        reads = self._reads
        flying: deque[tuple[Any, ByteArray]] = deque()
        try:
            while True:
                with reads.lock:
                    if self.holds:
                        self._start(flying)
                if not flying:
                    break
                event, part = flying[0]
                event.synchronize()
                if len(flying) == 1 and self._started == self.nbytes:
                    self.release()
                yield part.data
                flying.popleft()
                reads.ring.back()
        finally:
            for event, _ in flying:
                if event is not None:
                    with suppress(Exception):  # a device that has failed copies nothing any more
                        event.synchronize()
                reads.ring.back()
        if self._error is not None:
            raise self._error
        if self._rest is not None:
            yield self._rest.data

    def bring_now(self) -> None:
        """Copy the buffer to the host at once, and hold no memory of the device."""
        with self._reads.lock:
            if self.holds:
                self.bring()

    def release(self) -> None:
        """Hold no memory any more: it was read, or will not be."""
        with self._reads.lock:
            self._memory = None

    def bring(self) -> None:
        """Copy what is left to the host, and hold no memory of the device any more; the caller has the lock. Without memory for
        that the buffer cannot be read."""
        left = self.nbytes - self._started
        if left > available_memory() // 2:
            self._error = MemoryError("the host has no room for a copy of the session's tensors on the device")
        elif left:
            self._rest = np.empty(left, np.uint8)
            self._copy(self._rest)
        if self._last is not None:
            self._last.synchronize()
        self._memory = None

    def _start(self, flying: deque[tuple[Any, ByteArray]]) -> None:
        """Start as many copies as have room in the ring."""
        while self._started < self.nbytes:
            part = self._reads.ring.take(min(PART_BYTES, self.nbytes - self._started))
            if part is None:
                return
            flying.append((None, part))
            flying[-1] = self._copy(part), part
            self._started += part.size

    def _copy(self, target: ByteArray) -> Any:
        """Start to copy what comes next. Returns an event behind that."""
        reads, streams = self._reads, self._reads.streams
        with streams.device:  # another thread has the first one
            for event in self._after:
                reads.stream.wait_event(event)
            self._after = ()
            source = streams.cupy.cuda.MemoryPointer(self._memory, self._offset + self._started)
            source.copy_to_host_async(target.ctypes.data, target.size, reads.stream)
            self._last = reads.mark()
        return self._last


def _aligned(read: DeferredRead) -> int:
    """The bytes that a buffer takes beside others."""
    return -(-read.nbytes // PART_ALIGNMENT) * PART_ALIGNMENT


def _groups(reads: Sequence[DeferredRead]) -> Iterator[list[DeferredRead]]:
    """Buffers that together have no more bytes than a group, or one that has more."""
    group: list[DeferredRead] = []
    nbytes = 0
    for read in reads:
        if group and nbytes + _aligned(read) > GROUP_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(read)
        nbytes += _aligned(read)
    if group:
        yield group
