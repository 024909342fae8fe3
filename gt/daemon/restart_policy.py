"""When a worker that has ended is restarted: after a pause that doubles each time, and not forever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST: Final = 5
"""The most restarts in a row: a worker that keeps failing is broken."""
CALM: Final = 600.0
"""The seconds of service after which earlier restarts no longer count."""
FIRST: Final = 0.5
LONGEST: Final = 30.0
"""The first pause in seconds, which doubles each time, and the longest."""
SETTLED: Final = 5.0
"""A worker that ends with an error within this many seconds counts as unable to start."""


def pause(times: int) -> float | None:
    """The seconds to wait before the next restart; None if there is none."""
    return min(LONGEST, FIRST * 2.0**times) if times < MOST else None


@dataclass(slots=True)
class Restarts:
    """The restarts of one worker in a row."""

    times: int = 0

    def after(self, status: int, served: float) -> float | None:
        """The seconds to wait before restarting a process that ended with this exit status (negative: the signal that killed
        it) after so many seconds. None if it is not restarted: it was asked to end, cannot start, or has failed too often."""
        if status == 0 or (status > 0 and served < SETTLED):
            return None
        if served >= CALM:
            self.times = 0
        seconds = pause(self.times)
        self.times += seconds is not None
        return seconds
