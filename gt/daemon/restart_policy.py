"""When a worker that has ended is restarted: after a pause that doubles each time, and not forever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_RESTARTS: Final = 5
"""The most restarts in a row: a worker that keeps failing is broken."""
RESET_SECONDS: Final = 600.0
"""The seconds of service after which earlier restarts no longer count."""
FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0
"""The first pause in seconds, which doubles each time, and the longest."""
START_SECONDS: Final = 5.0
"""A worker that ends with an error within this many seconds counts as unable to start."""


def pause(times: int) -> float | None:
    """The seconds to wait before the next restart; None if there is none."""
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**times) if times < MAX_RESTARTS else None


@dataclass(slots=True)
class Restarts:
    """The restarts of one worker in a row."""

    times: int = 0

    def after(self, status: int, served: float) -> float | None:
        """The seconds to wait before restarting a process that ended with this exit status (negative: the signal that killed
        it) after so many seconds. None if it is not restarted: it was asked to end, cannot start, or has failed too often."""
        if status == 0 or (status > 0 and served < START_SECONDS):
            return None
        if served >= RESET_SECONDS:
            self.times = 0
        seconds = pause(self.times)
        self.times += seconds is not None
        return seconds
