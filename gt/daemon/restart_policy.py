"""When a daemon that has ended is started again, by the cause of its end.

A daemon that a signal killed (the kernel for lack of memory, a fault in a driver, somebody's `kill -9`) starts again at once, and
no number of kills ends a service. One that ends with an error of its own starts again after a pause that doubles, and not for
ever. One that was asked to end, or that could never start, is left alone.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

MAX_RESTARTS: Final = 5
"""The most restarts in a row after errors: a daemon that keeps failing is broken."""
RESET_SECONDS: Final = 600.0
"""The seconds of service after which earlier errors no longer count."""
FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0
"""The first pause in seconds, which doubles each time, and the longest."""
STOP_STATUSES: Final = frozenset({0, -signal.SIGTERM, -signal.SIGINT})
"""The statuses of a process that was asked to end; the signals end one that has yet to install its handlers."""

HAND_OVER_STATUS: Final = 75
"""That of a dispatcher that has ended so that the next one goes on with its sessions: EX_TEMPFAIL of sysexits.h."""


def pause(times: int) -> float | None:
    """The seconds to wait before the next restart after so many in a row; None if there is none."""
    return _growing_pause(times) if times < MAX_RESTARTS else None


def _growing_pause(times: int) -> float:
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(times, 16))


def describe_end(status: int) -> str:
    """How a process ended, in words. A negative status is the signal that killed it."""
    if status == HAND_OVER_STATUS:
        return "ended for the next one"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"


@dataclass(slots=True)
class Restarts:
    """The ends of one daemon in a row, and what follows from them."""

    failures: int = 0
    """Restarts after errors of its own."""
    early_kills: int = 0
    """Kills in a row before it was in service: something kills it whenever it starts."""
    has_served: bool = False
    """Whether any process of this daemon has ever been in service."""

    def after(self, status: int, served: float, *, in_service: bool) -> float | None:
        """The seconds to wait before starting the daemon again, whose process ended with this status (negative: the signal
        that killed it) after so many seconds. `in_service`: it had come so far as to serve.

        None if it is not started again: it was asked to end, has never been able to start, or has failed too often.
        """
        self.has_served = self.has_served or in_service
        if status in STOP_STATUSES:
            return None
        if status == HAND_OVER_STATUS:
            return 0.0
        if served >= RESET_SECONDS:
            self.failures = 0
        if status < 0:
            self.early_kills = 0 if in_service else self.early_kills + 1
            return 0.0 if self.early_kills <= 1 else _growing_pause(self.early_kills - 2)
        if not self.has_served:
            return None
        seconds = pause(self.failures)
        self.failures += seconds is not None
        return seconds
