"""A clock for deadlines: it does not count times in which the process itself stood still (SIGSTOP, a paused container, a laptop
that slept), because in such a time it could hear nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PAUSE_SECONDS: Final = 2.0
"""Between two readings that are further apart than this the process stood still, or was deep in one piece of work."""


class ActiveClock:
    """Seconds that a process was awake. It is read at least every second while the process is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self.paused_seconds = 0.0
        """The seconds that were left out so far."""

    def __call__(self) -> float:
        """The time in seconds, from an arbitrary start."""
        now = self._clock()
        gap = now - self._last
        self._last = now
        if gap > PAUSE_SECONDS:
            self.paused_seconds += gap
        return now - self.paused_seconds
