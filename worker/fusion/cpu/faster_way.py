"""Whether another thread helps a program with products of a tenth of a millisecond: as long as the program takes less time so.

Where the client and the dispatcher leave a core idle it does; where they want that core, as on two cores while a program is not
compiled, the other thread waits for it, and the worker's for the other one. So a hot program is timed both ways, and mostly
runs as it takes less time. Both ways compute the same pieces: time has no say in any bit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from gt.worker.device.thread_pool import ThreadPool
from gt.worker.kernels.matmul import has_halves
from gt.worker.program.compiler import ProgramStep, Slots

from .background_matmul import ActionSteps

TRIAL_PERIOD: Final = 16
"""The way that is not preferred has one run in so many."""
MEMORY: Final = 5
"""The runs of a way by whose median it is judged. So few forget soon what it was like while the client and the dispatcher did all
of this for the first time, and what the machine did in one or two of them counts for nothing."""


class FasterWay:
    """Which of two ways takes less time, by what runs took lately."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: tuple[deque[float], deque[float]] = (deque(maxlen=MEMORY), deque(maxlen=MEMORY))
        self._medians = [0.0, 0.0]
        self._runs = 0
        self._way = 0
        self._began = 0.0

    def begin(self) -> int:
        """The way of the run that begins now."""
        preferred = 0 if self._medians[0] <= self._medians[1] else 1
        if self._runs < 2 * MEMORY:
            self._way = self._runs % 2  # in turns, for whatever else the machine does then
        else:
            self._way = 1 - preferred if self._runs % TRIAL_PERIOD == 0 else preferred
        self._runs += 1
        self._began = self._clock()
        return self._way

    def end(self) -> None:
        """That run is over."""
        lately = self._seconds[self._way]
        lately.append(self._clock() - self._began)
        self._medians[self._way] = sorted(lately)[len(lately) // 2]


def timed(groups: list[ActionSteps], thread_pool: ThreadPool) -> list[ActionSteps]:
    """A whole program whose products that are cut in two are shared, or not, as it takes less time."""
    if thread_pool.threads == 1 or not any(_has_halves(step) for group in groups for step in group.steps):
        return groups
    way = FasterWay()

    def begin(_: Slots) -> None:
        thread_pool.helps = way.begin() == 0

    def end(_: Slots) -> None:
        way.end()
        thread_pool.helps = True

    return [ActionSteps(begin, []), *groups, ActionSteps(end, [])]


def _has_halves(step: ProgramStep) -> bool:
    return step.call is not None and has_halves(step.call)
