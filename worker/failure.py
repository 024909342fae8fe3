"""When a device fails for good: what its last words were, and which lines it may have been computing.

A kernel that writes where it must not kills all that its process has on the device, and is noticed at some later call: whatever
failed by that is not to blame. So the device itself is asked after each event, and a worker whose device computes no more
ends, with all that it held; its dispatcher says so to whom it concerns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from .program import Program

RECENT: Final = 4
"""Plans of which one may be to blame: what a device has under way when it fails."""
LINES: Final = 12
"""Lines of the user's that are named."""


class DeviceFailed(Exception):
    """The device computes no more."""


class Device(NamedTuple):
    """What a core knows of a device that computes by itself. `sync`: it is waited for after every step."""

    name: str
    failure: Callable[[], str]
    """Why it computes no more; empty while it does. Does not wait."""
    sync: bool = False


class Watch:
    """Remembers what may be to blame."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.recent: deque[Program] = deque(maxlen=RECENT)
        self.blamed = ""
        """The first step that failed since the last look."""

    def look(self) -> None:
        """Raises `DeviceFailed` when the device computes no more."""
        reason = self.device.failure()
        if reason:
            raise DeviceFailed(f"{self.device.name} failed: {reason}; {self._where()}")
        self.blamed = ""

    def blame(self, step: str) -> None:
        """A step failed: when the device is waited for after every step, it is the one."""
        self.blamed = self.blamed or step

    def _where(self) -> str:
        if self.device.sync:
            return f"in {self.blamed}" if self.blamed else "between two steps"
        sites = dict.fromkeys(tag.site for program in reversed(self.recent) for tag in program.plan.tags)
        named = ", ".join(list(sites)[:LINES]) + (" and others" if len(sites) > LINES else "")
        return f"it was computing by itself, one of {named or 'no plan'}; with GT_SYNC=1 in its environment a worker knows which"
