"""A worker's thread pool, which computes the strips of chains. A *lane* is one of its threads, with `SCRATCH_BYTES` of
scratch memory.

The caller is lane 0; the others are threads that start when they are first needed and end with the process. NumPy releases the
interpreter lock while it computes, so lanes run in parallel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Final, Protocol

import numpy as np

SCRATCH_BYTES: Final = 8 << 20
"""The bytes of scratch memory of one lane."""
SCRATCH_ALIGNMENT: Final = 64


def aligned(nbytes: int) -> int:
    """The bytes that an array of `nbytes` bytes takes of a lane."""
    return -(-nbytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT


class PoolTask(Protocol):
    """Work that may be done on any lane."""

    def join(self, lane: int) -> None:
        """Do the work or a part of it, unless others have done all of it."""


class ThreadPool:
    """`lanes` that compute in parallel; the caller is the first."""

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        self._memory: dict[int, np.ndarray[Any, Any]] = {}
        self._zeros = np.zeros(0, np.uint8)
        self._work: SimpleQueue[PoolTask] = SimpleQueue()
        self._started = 1

    def lay(
        self,
        registers: list[Any],
        lane: int,
        scratch: Iterable[tuple[Any, tuple[int, ...]]],
        zeros: Iterable[tuple[Any, tuple[int, ...]]],
    ) -> None:
        """Put arrays into registers: of scratch memory side by side, of zeros one on top of the other."""
        memory = self._memory.get(lane)
        if memory is None:
            memory = self._memory[lane] = np.empty(SCRATCH_BYTES, np.uint8)
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
        """Run `part(lane)` on the caller's lane, and on every other lane that arrives before it is done. Raises what one of
        them raised.

        Lanes that arrive later find nothing to do, so a lane on a busy core delays nobody.
        """
        self._start()
        job = _SharedTask(part)
        for _ in range(1, self.lanes):
            self._work.put(job)
        try:
            part(0)
        finally:
            errors = job.close()
        for error in errors:
            if error is not None:
                raise error

    def leave(self, work: PoolTask) -> None:
        """Leave work to the other lane that is free first. Whoever needs its result joins it, in case none was free."""
        self._start()
        self._work.put(work)

    def _start(self) -> None:
        while self._started < self.lanes:
            threading.Thread(
                target=self._serve, args=(self._started,), name=f"gt-lane-{self._started}", daemon=True
            ).start()
            self._started += 1

    def _serve(self, lane: int) -> None:
        with np.errstate(all="ignore"):
            while True:
                self._work.get().join(lane)


class _SharedTask:
    """Work that lanes share while it is open."""

    def __init__(self, part: Callable[[int], None]) -> None:
        self._part: Callable[[int], None] | None = part
        self._lock = threading.Lock()
        self._joined = 0
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()

    def join(self, lane: int) -> None:
        """Do a part, unless the job is closed."""
        with self._lock:
            part = self._part
            self._joined += part is not None
        if part is None:
            return
        raised: BaseException | None = None
        try:
            part(lane)
        except BaseException as error:  # noqa: BLE001 — it is raised where the lanes meet again
            raised = error
        part = None
        self._done.put(raised)

    def close(self) -> list[BaseException | None]:
        """Admit no further lanes, and wait for those at work. Returns what they raised. Nothing refers to the work afterwards."""
        with self._lock:
            self._part = None
        return [self._done.get() for _ in range(self._joined)]
