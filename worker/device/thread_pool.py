"""A worker's thread pool, which computes the strips of chains. Each thread has `SCRATCH_BYTES`
of scratch memory.

The caller is thread 0; the others are threads that start when they are first needed and end with the process. NumPy releases the
interpreter lock while it computes, so threads run in parallel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Final, Protocol

import numpy as np

SCRATCH_BYTES: Final = 8 << 20
"""The bytes of scratch memory of one thread."""
SCRATCH_ALIGNMENT: Final = 64


def aligned(nbytes: int) -> int:
    """The bytes that an array of `nbytes` bytes takes of a thread's scratch memory."""
    return -(-nbytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT


class PoolTask(Protocol):
    """Work that may be done on any thread."""

    def join(self, thread: int) -> None:
        """Do the work or a part of it, unless others have done all of it."""


class ThreadPool:
    """`threads` that compute in parallel; the caller is the first."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._memory: dict[int, np.ndarray[Any, Any]] = {}
        self._zeros = np.zeros(0, np.uint8)
        self._work: SimpleQueue[PoolTask] = SimpleQueue()
        self._started = 1

    def lay(
        self,
        registers: list[Any],
        thread: int,
        scratch: Iterable[tuple[Any, tuple[int, ...]]],
        zeros: Iterable[tuple[Any, tuple[int, ...]]],
    ) -> None:
        """Put arrays into registers: of scratch memory side by side, of zeros one on top of the other."""
        memory = self._memory.get(thread)
        if memory is None:
            memory = self._memory[thread] = np.empty(SCRATCH_BYTES, np.uint8)
        start = 0
        for register, shape in scratch:
            size = register.dtype.itemsize * int(np.prod(shape))
            registers[register.number] = memory[start : start + size].view(register.dtype).reshape(shape)
            start += aligned(size)
        for register, shape in zeros:
            size = register.dtype.itemsize * int(np.prod(shape))
            if size > self._zeros.size:
                self._zeros = np.zeros(size, np.uint8)
                self._zeros.flags.writeable = False
            registers[register.number] = self._zeros[:size].view(register.dtype).reshape(shape)

    def run(self, part: Callable[[int], None]) -> None:
        """Run `part(thread)` on the caller's thread, and on every other thread that arrives before it is done. Raises what one of
        them raised.

        Threads that arrive later find nothing to do, so a thread on a busy core delays nobody.
        """
        self._start()
        job = _SharedTask(part)
        for _ in range(1, self.threads):
            self._work.put(job)
        try:
            part(0)
        finally:
            errors = job.close()
        for error in errors:
            if error is not None:
                raise error

    def leave(self, work: PoolTask) -> None:
        """Leave work to the other thread that is free first. Whoever needs its result joins it, in case none was free."""
        self._start()
        self._work.put(work)

    def _start(self) -> None:
        while self._started < self.threads:
            threading.Thread(
                target=self._serve, args=(self._started,), name=f"gt-thread-{self._started}", daemon=True
            ).start()
            self._started += 1

    def _serve(self, thread: int) -> None:
        with np.errstate(all="ignore"):
            while True:
                self._work.get().join(thread)


class _SharedTask:
    """Work that threads share while it is open."""

    def __init__(self, part: Callable[[int], None]) -> None:
        self._part: Callable[[int], None] | None = part
        self._lock = threading.Lock()
        self._joined = 0
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()

    def join(self, thread: int) -> None:
        """Do a part, unless the job is closed."""
        with self._lock:
            part = self._part
            self._joined += part is not None
        if part is None:
            return
        raised: BaseException | None = None
        try:
            part(thread)
        except BaseException as error:  # noqa: BLE001 — it is raised where the threads meet again
            raised = error
        part = None
        self._done.put(raised)

    def close(self) -> list[BaseException | None]:
        """Admit no more threads, wait for those at work; nothing refers to the work afterwards. Returns what they raised."""
        with self._lock:
            self._part = None
        return [self._done.get() for _ in range(self._joined)]
