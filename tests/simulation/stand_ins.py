"""Stand-ins for the modules by which shells and sessions wait and read clocks: `time`, `threading`, `os`, `select`.

Each has only what differs in a simulation; everything else is the module's own.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any

from .scheduler import Process, Scheduler, Signal, Source, Task

WALL_SECONDS = 1_700_000_000.0
"""The time of day at which every simulation begins."""


class VirtualTime:
    """`time`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def monotonic_ns(self) -> int:
        return int(self._scheduler.now * 1e9)

    def time(self) -> float:
        return WALL_SECONDS + self._scheduler.now

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait([], seconds)


class VirtualEvent(Signal):
    """`threading.Event`."""

    def is_set(self) -> bool:
        return self.is_set_now

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set_now:
            Signal.scheduler.wait([self], timeout)
        return self.is_set_now


class VirtualRLock(Source):
    """`threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Task | None = None
        self.depth = 0

    def is_ready(self) -> bool:
        return self.depth == 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = Signal.scheduler
        me = scheduler.current
        while self.depth and self.owner is not me:
            if not blocking:
                return False
            scheduler.wait([self], None)
        self.owner = me
        self.depth += 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if not self.depth:
            self.owner = None
            Signal.scheduler.wake(self)

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualThread:
    """`threading.Thread`, as a thread of the process that makes it."""

    def __init__(
        self, *, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", daemon: bool = True
    ) -> None:
        self.run = lambda: target(*args)
        self.name = name
        self.task: Task | None = None

    def start(self) -> None:
        self.task = Signal.scheduler.process_now.start(self.run)

    def is_alive(self) -> bool:
        return self.task is not None and not self.task.finished

    def join(self, timeout: float | None = None) -> None:
        if self.task is not None and not self.task.finished:
            Signal.scheduler.wait([self.task.done], timeout)


class VirtualThreading:
    """`threading`."""

    Event = VirtualEvent
    RLock = VirtualRLock
    Thread = VirtualThread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class VirtualQueue(Source):
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        super().__init__()
        self.items: deque[Any] = deque()

    def is_ready(self) -> bool:
        return bool(self.items)

    def put(self, item: Any) -> None:
        self.items.append(item)
        Signal.scheduler.wake(self)

    def get(self, timeout: float | None = None) -> Any:
        if not self.items:
            Signal.scheduler.wait([self], timeout)
        if not self.items:
            raise Empty
        return self.items.popleft()


class Descriptors:
    """Descriptors of simulated pipes, processes and epoll objects. No number is one of the operating system's."""

    def __init__(self) -> None:
        self.sources: dict[int, Source] = {}

    def add(self, source: Source) -> int:
        """A new descriptor."""
        number = 1_000_000 + len(self.sources)
        self.sources[number] = source
        return number


class VirtualOs:
    """`os`: pipes by which a thread is woken, and descriptors of processes."""

    def __init__(self, scheduler: Scheduler, descriptors: Descriptors) -> None:
        self._scheduler = scheduler
        self._descriptors = descriptors

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pipe(self) -> tuple[int, int]:
        number = self._descriptors.add(Signal())
        return number, number

    def set_blocking(self, _descriptor: int, _blocking: bool) -> None:
        """Nothing: no read or write here ever waits."""

    def read(self, descriptor: int, _count: int) -> bytes:
        signal = self._descriptors.sources[descriptor]
        assert isinstance(signal, Signal)
        if not signal.is_set_now:
            raise BlockingIOError
        signal.clear()
        return b"x"

    def write(self, descriptor: int, data: bytes) -> int:
        signal = self._descriptors.sources[descriptor]
        assert isinstance(signal, Signal)
        signal.set()
        return len(data)

    def pidfd_open(self, number: int) -> int:
        process: Process = self._scheduler.processes[number - 1]
        if process.dead:
            raise ProcessLookupError
        return self._descriptors.add(process.ended)

    def close(self, _descriptor: int) -> None:
        """Nothing: numbers are not used twice."""


class VirtualEpoll(Source):
    """`select.epoll`, for ends of processes."""

    def __init__(self, descriptors: Descriptors) -> None:
        super().__init__()
        self.descriptors = descriptors
        self.registered: dict[int, Source] = {}
        self.number = descriptors.add(self)

    def is_ready(self) -> bool:
        return any(source.is_ready() for source in self.registered.values())

    def fileno(self) -> int:
        return self.number

    def register(self, descriptor: int, _events: int) -> None:
        self.registered[descriptor] = self.descriptors.sources[descriptor]

    def unregister(self, descriptor: int) -> None:
        del self.registered[descriptor]

    def poll(self, _timeout: float) -> list[tuple[int, int]]:
        return [(number, select.EPOLLIN) for number, source in self.registered.items() if source.is_ready()]


class VirtualPoll:
    """`select.poll` and a ZeroMQ poller: waits for sockets and descriptors."""

    def __init__(self, scheduler: Scheduler, descriptors: Descriptors) -> None:
        self.scheduler = scheduler
        self.descriptors = descriptors
        self.registered: dict[Any, Source] = {}

    def register(self, what: Any, _events: int = 0) -> None:
        self.registered[what] = what if isinstance(what, Source) else self.descriptors.sources[what]

    def unregister(self, what: Any) -> None:
        del self.registered[what]

    def __contains__(self, what: Any) -> bool:
        return what in self.registered

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """What is ready, after at most so many milliseconds."""
        sources = [
            each for source in self.registered.values()
            for each in ([source, *source.registered.values()] if isinstance(source, VirtualEpoll) else [source])
        ]  # fmt: skip
        self.scheduler.wait(sources, None if timeout is None or timeout < 0 else timeout / 1000)
        return [(what, select.POLLIN) for what, source in self.registered.items() if source.is_ready()]


class VirtualSelect:
    """`select`."""

    POLLIN = select.POLLIN
    EPOLLIN = select.EPOLLIN

    def __init__(self, scheduler: Scheduler, descriptors: Descriptors) -> None:
        self.poll = lambda: VirtualPoll(scheduler, descriptors)
        self.epoll = lambda: VirtualEpoll(descriptors)
