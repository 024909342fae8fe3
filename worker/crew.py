"""Who computes the strips of chains: threads, and the scratch memory of each. Bounded: one lane of `LANE` bytes a thread.

The caller is lane 0; the others are threads that begin when they are first needed and end with the process. NumPy lets go
of the interpreter while it computes, so lanes compute at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

LANE: Final = 8 << 20
"""Bytes of scratch memory of one lane."""
ALIGNED: Final = 64


def aligned(nbytes: int) -> int:
    """What an array of so many bytes takes of a lane."""
    return -(-nbytes // ALIGNED) * ALIGNED


class Crew:
    """`lanes` that compute at the same time, of which the caller is the first."""

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        self._memory: dict[int, np.ndarray[Any, Any]] = {}
        self._zeros = np.zeros(0, np.uint8)
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
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
            memory = self._memory[lane] = np.empty(LANE, np.uint8)
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
        """`part(lane)` on all lanes; raises what one of them raised."""
        while self._started < self.lanes:
            threading.Thread(target=self._serve, name=f"gt-lane-{self._started}", daemon=True).start()
            self._started += 1
        done: SimpleQueue[BaseException | None] = SimpleQueue()

        def of(lane: int) -> Callable[[], None]:
            def work() -> None:
                try:
                    part(lane)
                except BaseException as error:  # noqa: BLE001 — it is raised where the lanes meet again
                    done.put(error)
                else:
                    done.put(None)

            return work

        for lane in range(1, self.lanes):
            self._work.put(of(lane))
        of(0)()
        errors = [done.get() for _ in range(self.lanes)]
        for error in errors:
            if error is not None:
                raise error

    def _serve(self) -> None:
        with np.errstate(all="ignore"):
            while True:
                self._work.get()()
