"""Whether a thread has a core when it needs one: what Linux counts of the time for which it was ready to run and another thread
had the core. No clock is used here."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Final

SCHEDULER_COUNTS: Final = Path("/proc/thread-self/schedstat")
"""Of the calling thread: the nanoseconds that it has run, those that it has waited for a core, and how many times it ran."""


class CoreWait:
    """Looks now and then at how long the calling thread has waited for a core."""

    def __init__(self, counts: Path = SCHEDULER_COUNTS) -> None:
        self.counts = counts
        self.at = inf
        self.waited = 0

    def part(self, now: float) -> float:
        """The part of the time since the last look for which it has waited; 0 at the first, and where the system says nothing."""
        try:
            waited = int(self.counts.read_text("ascii").split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        passed, self.at = now - self.at, now
        before, self.waited = self.waited, waited
        return (waited - before) / 1e9 / passed if passed > 0 else 0.0
