"""When a worker that ended is started again: after a pause that doubles, and not for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST: Final = 5
"""Restarts one after the other: what goes on failing is broken."""
CALM: Final = 600.0
"""Seconds of service after which earlier restarts do not count any more."""
FIRST: Final = 0.5
LONGEST: Final = 30.0
"""Seconds of the first pause, twice as long each time, and of the longest."""
SETTLED: Final = 5.0
"""Seconds after which a worker that ends with an error had been serving: one that ends sooner cannot start."""


def pause(times: int) -> float | None:
    """Seconds to wait before starting again for the next time; None: not any more."""
    return min(LONGEST, FIRST * 2.0**times) if times < MOST else None


@dataclass(slots=True)
class Restarts:
    """How often one worker was started again, one restart after the other."""

    times: int = 0

    def after(self, status: int, served: float) -> float | None:
        """Seconds to wait before starting a process again that ended with this exit status (negative: the signal that killed it)
        after so many seconds; None: not again, since it was asked to end, cannot start, or has failed too often."""
        if status == 0 or (status > 0 and served < SETTLED):
            return None
        if served >= CALM:
            self.times = 0
        seconds = pause(self.times)
        self.times += seconds is not None
        return seconds
