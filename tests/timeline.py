"""When a card that is none (`card.py`) does what it was told: on streams, late, and in the order that events give and no other.

Kernels are done at once, in their stream of number 0; copies on other streams when somebody asks for an event behind them often
enough, or waits. What nobody ordered comes out as nonsense, so that a missing wait is seen as a wrong value:

* what is on its way holds nonsense until the copy is done;
* a copy of what its stream does not know to be written, or into what it does not know to be used no more, copies nonsense;
* so does a copy of memory that was freed before it was done, for somebody else may have it.

Memory of the host that is registered is not registered twice, and not unregistered while a copy uses it.

What a stream knows are vector clocks (C. J. Fidge, "Timestamps in message-passing systems that preserve the partial ordering",
1988): how far it has waited for each other. The host knows of what it found to be over. The pretend device (`tests/pretend`) does
all as late as CUDA allows, which shows a missing wait only where that order makes a difference; here any is an error.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

NONSENSE: Final = 0xAA
Clock = dict["Stream", int]


class CUDARuntimeError(RuntimeError):
    """As CuPy says what CUDA says."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}: it fails")
        self.status = status


class OutOfMemoryError(MemoryError):
    """The pool has no more."""


class Timeline:
    """What is under way, and who knows of what."""

    def __init__(self) -> None:
        self.quick = True
        """Whether what was started is over at once."""
        self.patience = 3
        """How often somebody asks whether kernels are done before they are."""
        self.waits = 0
        """How often somebody waited for what was not over."""
        self.status = 0
        """What its streams say of themselves."""
        self.lock = threading.RLock()
        self.copies = 0
        """Those to and from the host."""
        self.torn = 0
        """Pinned memory that was given back while something was copied to it."""
        self.host: Clock = {}
        self.written: dict[int, tuple[Stream, int]] = {}
        """By the address of memory, who wrote there last, and when."""
        self.used: dict[int, Clock] = {}
        """By the address of memory, who used it, and when last."""
        self.registered: dict[int, int] = {}
        """Memory of the host that is registered: by address, its size."""
        self.flying: list[tuple[int, int]] = []
        """The address and size of the host's memory of each copy that is still to be done."""
        self.pool = Pool(self)
        self.kernels = Stream(self, null=True)
        self._threads = threading.local()

    @property
    def current(self) -> list[Stream]:
        """The streams that are current in this thread, the innermost last."""
        if not hasattr(self._threads, "streams"):
            self._threads.streams = [self.kernels]
        found: list[Stream] = self._threads.streams
        return found

    def reads(self, root: int) -> None:
        """A kernel reads this memory."""
        self.used.setdefault(root, {})[self.kernels] = self.kernels.now

    def writes(self, root: int) -> None:
        """A kernel writes to this memory."""
        self.kernels.now += 1
        self.reads(root)
        self.written[root] = self.kernels, self.kernels.now

    def knows(self, event: Event) -> bool:
        """Whether the host has found that an event is over."""
        return event.over or all(self.host.get(stream, 0) >= now for stream, now in event.clock.items())

    def register(self, at: int, size: int) -> None:
        """Lock memory of the host. Raises as CUDA does where some of it is locked already."""
        if any(at < start + nbytes and start < at + size for start, nbytes in self.registered.items()):
            raise CUDARuntimeError(712)
        self.registered[at] = size

    def unregister(self, at: int) -> None:
        """Lock it no more."""
        if at not in self.registered:
            raise CUDARuntimeError(713)
        stop = at + self.registered.pop(at)
        assert not any(at < start + nbytes and start < stop for start, nbytes in self.flying), "a copy still uses it"

    def learn(self, clock: Clock, more: Clock) -> None:
        """Know what another knew."""
        for stream, now in more.items():
            clock[stream] = max(clock.get(stream, 0), now)

    def cuda(self) -> dict[str, Any]:
        """Its part of the module `cupy.cuda`."""
        return {
            "Stream": lambda non_blocking=False: Stream(self, non_blocking=non_blocking),
            "Event": lambda block=False, disable_timing=False: Event(self),
            "MemoryPointer": lambda mem, offset: MemoryPointer(self, mem, offset),
            "UnownedMemory": lambda ptr, size, owner, device: Unowned(ptr, size, owner),
            "get_current_stream": lambda: self.current[-1],
            "set_allocator": lambda allocator: setattr(self.pool, "allocator", allocator),
        }


class Stream:
    """Copies in order. That of the kernels is never behind."""

    def __init__(self, timeline: Timeline, *, null: bool = False, non_blocking: bool = False) -> None:
        self._timeline = timeline
        self.non_blocking = non_blocking
        self._null = null
        self.ptr = 0 if null else id(self)
        self.pending: deque[Callable[[], object]] = deque()
        self.now = 1
        self.clock: Clock = {}

    def tell(self, what: Callable[[], object]) -> None:
        """Do this, when all else is done."""
        with self._timeline.lock:
            if self._null or (self._timeline.quick and not self.pending):
                what()
            else:
                self.pending.append(what)

    def step(self) -> None:
        """Do one thing."""
        with self._timeline.lock:
            if self.pending:
                self.pending.popleft()()

    def knows(self, clock: Clock) -> bool:
        """Whether what others did until then was waited for."""
        host = self._timeline.host
        return all(
            other is self or max(self.clock.get(other, 0), host.get(other, 0)) >= now for other, now in clock.items()
        )

    def record(self, event: Event | None = None) -> Event:
        event = event or Event(self._timeline)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self._timeline.learn(self.clock, event.clock)
        self.tell(event.reach)

    def synchronize(self) -> None:
        self.record().synchronize()

    def __enter__(self) -> Stream:
        self._timeline.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._timeline.current.pop()


class Event:
    """A place in a stream."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._asked = 0
        self.stream = timeline.kernels
        self.reached = self.over = False
        self.clock: Clock = {}

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.now += 1
        self.clock = {**stream.clock, stream: stream.now}
        self.over = self._timeline.quick and not stream.pending
        stream.tell(self._reached)

    def _reached(self) -> None:
        self.reached = True

    def reach(self) -> None:
        """Have the stream get here."""
        while not self.reached:
            self.stream.step()

    @property
    def done(self) -> bool:
        self._look()
        if not self.over:
            self._asked += 1
            self.stream.step()
            self.over = self.reached and (self.stream.ptr != 0 or self._asked > self._timeline.patience)
        if self.over:
            self._timeline.learn(self._timeline.host, self.clock)
        return self.over

    def synchronize(self) -> None:
        self._look()
        self._timeline.waits += not self.over
        self.reach()
        self.over = True
        self._timeline.learn(self._timeline.host, self.clock)

    def _look(self) -> None:
        if self._timeline.status:
            raise CUDARuntimeError(self._timeline.status)


class Memory:
    """What the pool gave; when nobody has it any more it is given again."""

    def __init__(self, pool: Pool, stream: Stream, buffer: Any) -> None:
        self._pool, self._stream, self._buffer = pool, stream, buffer
        self.ptr, self.size = int(buffer.ctypes.data), buffer.nbytes

    def __del__(self) -> None:
        self._pool.free.setdefault((self._stream, self.size), []).append(self._buffer)


class Unowned:
    """Memory that `owner` has."""

    def __init__(self, ptr: int, size: int, owner: Any) -> None:
        self.ptr, self.size, self.owner = ptr, size, owner


class Behind:
    """Memory behind an array of NumPy."""

    def __init__(self, root: np.ndarray[Any, Any]) -> None:
        self.ptr, self.size, self.root = int(root.ctypes.data), root.nbytes, root
        self.owner = getattr(root.base, "owner", None)


class Pool:
    """An arena for each stream: what was freed is given again at once, to that stream."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.free: dict[tuple[Stream, int], list[Any]] = {}
        self.live: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
        self.limits: list[int] = []
        """What it was limited to."""
        self.room: int | None = None
        """How many bytes it gives beside those that kernels take; None: as many as are asked for."""
        self.allocator: Any = None

    def malloc(self, size: int) -> MemoryPointer:
        stream = self._timeline.current[-1]
        waiting = self.free.get((stream, size))
        if waiting:
            buffer = waiting.pop()
        elif self.room is not None and self.total_bytes() + size > self.room:
            raise OutOfMemoryError(f"no {size} bytes in {self.room}")
        else:
            buffer = np.full(size, NONSENSE, np.uint8)
            kernels = self._timeline.kernels
            self._timeline.used[int(buffer.ctypes.data)] = {kernels: kernels.now} if stream is kernels else {}
        memory = Memory(self, stream, buffer)
        self.live[memory.ptr] = memory
        return MemoryPointer(self._timeline, memory, 0)

    def free_all_blocks(self) -> None:
        self.free.clear()

    def set_limit(self, size: int) -> None:
        self.limits.append(size)

    def used_bytes(self) -> int:
        return sum(memory.size for memory in self.live.values())

    def total_bytes(self) -> int:
        return self.used_bytes() + sum(size * len(buffers) for (_, size), buffers in self.free.items())


class MemoryPointer:
    """A place in memory of the device."""

    device_id = 0

    def __init__(self, timeline: Timeline, mem: Any, offset: int) -> None:
        self._timeline = timeline
        self.mem = mem
        self.ptr = mem.ptr + offset

    def _alive(self) -> Callable[[], object]:
        """Says whether this memory is still who asked for it has."""
        held = self._timeline.pool.live.get(self.mem.ptr)
        if held is None:
            held = getattr(self.mem, "root", None)
        return weakref.ref(held if held is not None else self.mem.owner)

    def copy_to_host_async(self, target: int, size: int, stream: Stream) -> None:
        timeline, source, alive = self._timeline, self.ptr, self._alive()
        timeline.copies += 1
        writer = timeline.written.get(self.mem.ptr)
        sound = writer is None or stream.knows(dict((writer,)))
        stream.now += 1
        timeline.used.setdefault(self.mem.ptr, {})[stream] = stream.now
        ctypes.memset(target, NONSENSE, size)

        timeline.flying.append((target, size))

        def copy() -> None:
            timeline.flying.remove((target, size))
            if sound and alive() is not None:
                ctypes.memmove(target, source, size)

        stream.tell(copy)

    def copy_from_host_async(self, source: int, size: int, stream: Stream) -> None:
        timeline, target, alive = self._timeline, self.ptr, self._alive()
        timeline.copies += 1
        used = timeline.used.setdefault(self.mem.ptr, {})
        sound = stream.knows(used)
        stream.now += 1
        used[stream] = stream.now
        timeline.written[self.mem.ptr] = stream, stream.now
        ctypes.memset(target, NONSENSE, size)

        timeline.flying.append((source, size))

        def copy() -> None:
            timeline.flying.remove((source, size))
            if sound and alive() is not None:
                ctypes.memmove(target, source, size)

        stream.tell(copy)

    def copy_from_device_async(self, source: MemoryPointer, size: int, stream: Stream) -> None:
        assert stream is self._timeline.kernels, "it is done at once, as kernels are"
        self._timeline.reads(source.mem.ptr)
        self._timeline.writes(self.mem.ptr)
        ctypes.memmove(self.ptr, source.ptr, size)


def behind(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that has the memory at which another looks."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def address(x: np.ndarray[Any, Any]) -> int:
    """Where that memory is."""
    found: int = behind(x).__array_interface__["data"][0]
    return found
