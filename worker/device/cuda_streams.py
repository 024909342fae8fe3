"""The streams of a GPU, which may run at the same time, and the one rule that orders them.

There are four streams: `compute`, where all kernels are; `copies_in` (puts, and what comes back from pinned memory), `copies_out`
(fetches, and what goes there) and `collectives` (what comes from peers and goes to them). A thread that reads for marks has its
own (`deferred_reads.py`). What one stream does is in order; two streams know of each other only by events, and the host asks
whether an event is over, and does not wait. The rule has two halves:

* **Values.** A stream that reads what another wrote first waits for an event behind that. A copy out waits for all kernels so
  far; before kernels read what is on its way in, `compute` waits for its copy.
* **Memory.** What is freed is given again by the stream that gave it at once, in that stream's order alone (CuPy's pool has an
  arena for each). So whatever another stream uses is *held* until an event behind that use is over. When no memory is to be had
  otherwise, nobody waits either: the streams wait for each other, and what was held is let go (`allocate`). What the host is
  still to read is copied there last of all (`deferred_reads.py`), and that alone is waited for.

Takes the module `cupy` as an argument, for only `worker/base/backend.py` names it. There is one of these a process and GPU:
the pool is.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class CudaStreams:
    """The streams of the current device. `compute` is the stream that is current now."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self.device = cupy.cuda.Device()
        self.pool = cupy.get_default_memory_pool()
        self.compute = cupy.cuda.get_current_stream()
        self.copies_in = cupy.cuda.Stream(non_blocking=True)
        self.copies_out = cupy.cuda.Stream(non_blocking=True)
        self.collectives = cupy.cuda.Stream(non_blocking=True)
        self.others = (self.copies_in, self.copies_out, self.collectives)
        self._held: dict[Any, deque[tuple[Any, Any]]] = {stream: deque() for stream in (*self.others, self.compute)}
        """By stream, what it may still use, each with the event behind that."""
        self._held_host: deque[tuple[Any, Any]] = deque()
        self.relieve: Callable[[int], bool] = lambda _: False
        """Gives up memory of so many bytes that is held for reads by the host, where it can."""
        cupy.cuda.set_allocator(self.allocate)

    def mark(self, stream: Any) -> Any:
        """An event behind all that a stream was told so far."""
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return event

    def follow(self, stream: Any, other: Any) -> None:
        """What `stream` is told from now on is done after all that `other` was told so far."""
        stream.wait_event(self.mark(other))

    @contextmanager
    def collective(self) -> Iterator[Any]:
        """The stream of collectives: what it is told in here is done after all kernels so far, and before all later ones. So
        nothing that it uses need be held."""
        self.follow(self.collectives, self.compute)
        try:
            yield self.collectives
        finally:
            self.follow(self.compute, self.collectives)

    # memory

    def hold(self, stream: Any, memory: Any, event: Any = None) -> None:
        """Keep memory until a stream has come to an event, or else has done all that it was told so far. Any thread may."""
        if event is None:
            with self.device:  # a thread of another kind has the first device, and marks nothing here
                event = self.mark(stream)
        self._held[stream].append((event, memory))

    def hold_host(self, event: Any, memory: Any) -> None:
        """Keep memory of the host until an event is over, whatever streams wait for: the host does not wait with them."""
        self._held_host.append((event, memory))

    def let_go(self) -> None:
        """Let go of what no stream uses any more. What goes may have more held, and another thread may look meanwhile: so what is
        looked at is out of the books."""
        for held in (*self._held.values(), self._held_host):
            for first in _taken(held):
                if not first[0].done:
                    held.appendleft(first)
                    break

    @property
    def holds(self) -> int:
        """How many times memory is held."""
        return sum(map(len, self._held.values()))

    def room(self, stream: Any, nbytes: int) -> StreamMemory:
        """Memory for a stream other than `compute` to write to. It has some of its own, for which it waits for nobody; when there
        is no more of that, it gets what kernels use, after all of them so far."""
        try:
            with stream:
                return StreamMemory(self, self.pool.malloc(nbytes), nbytes)
        except MemoryError:
            lent = StreamMemory(self, self.allocate(nbytes), nbytes, stream)
        self.follow(stream, self.compute)
        return lent

    def allocate(self, nbytes: int) -> Any:
        """CuPy's allocator: memory of the current stream's. Raises `MemoryError`."""
        while True:
            try:
                return self._allocated(nbytes)
            except MemoryError:
                if not self.relieve(nbytes):
                    raise

    def _allocated(self, nbytes: int) -> Any:
        """The same without what is held for reads by the host."""
        try:
            return self.pool.malloc(nbytes)
        except MemoryError:
            if not self.holds:
                self.pool.free_all_blocks()  # what other streams have, and pieces of other sizes
                return self.pool.malloc(nbytes)
        self._hold_nothing()
        try:
            return self.pool.malloc(nbytes)
        except MemoryError:
            self.pool.free_all_blocks()
        return self.pool.malloc(nbytes)

    def _hold_nothing(self) -> None:
        """Have streams wait for each other, so that what was held until now may be given again at once."""
        for _ in range(2):  # what others let go may be held for kernels
            found = [each for held in self._held.values() for each in _taken(held)]
            for stream in self.others:
                self.follow(self.compute, stream)
            for stream in self.others:
                self.follow(stream, self.compute)
            found.clear()


def _taken(held: deque[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """All that is held, out of the books. Another thread may take some of it meanwhile."""
    with suppress(IndexError):
        while True:
            yield held.popleft()


class StreamMemory:
    """Memory at which arrays look. When none does any more it is held until kernels so far are done, and where it was theirs also
    until `writer` is, for which no kernel need have waited."""

    __slots__ = ("__weakref__", "_streams", "_writer", "nbytes", "pointer")

    def __init__(self, streams: CudaStreams, pointer: Any, nbytes: int, writer: Any = None) -> None:
        self._streams = streams
        self._writer = writer
        self.pointer = pointer
        self.nbytes = nbytes

    def look(self, shape: Any, dtype: Any, strides: Any = None, offset: int = 0) -> Any:
        """An array over this memory; `strides` and `offset` in bytes."""
        cupy = self._streams.cupy
        memory = cupy.cuda.UnownedMemory(self.pointer.ptr, self.nbytes, self, self.pointer.device_id)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, offset), strides)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with suppress(RuntimeError):  # a device that computes no more uses nothing either
                self._streams.hold(self._streams.compute, self.pointer)
                if self._writer is not None:
                    self._streams.hold(self._writer, self.pointer)
