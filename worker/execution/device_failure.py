"""Detection of a device that has failed for good: its last error, and the lines that it may have been computing.

A kernel that writes to invalid memory destroys everything that its process has on the device, and is noticed only at a later
call, which is not to blame. So the device itself is asked after each event. A worker whose device has failed ends and loses
everything that it held; its dispatcher tells those concerned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from gt.worker.program.compiler import Program

MAX_RECENT_PLANS: Final = 4
"""The number of recent plans that may be to blame, because a device runs that far behind."""
MAX_NAMED_LINES: Final = 12
"""The most user lines that are named."""


class DeviceFailed(Exception):
    """The device has failed for good."""


class WatchedDevice(NamedTuple):
    """An asynchronous device as its watch sees it. With `sync` the worker waits for it after every step."""

    name: str
    failure: Callable[[], str]
    """Why it has failed; empty while it works. Does not wait."""
    sync: bool = False


class FailureWatch:
    """Remembers which plans and steps may be to blame, and raises `DeviceFailed` once the device has failed."""

    def __init__(self, device: WatchedDevice) -> None:
        self.device = device
        self.recent: deque[Program] = deque(maxlen=MAX_RECENT_PLANS)
        self.blamed = ""
        """The first step that failed since the last look."""

    def look(self) -> None:
        """Raise `DeviceFailed` if the device has failed."""
        reason = self.device.failure()
        if reason:
            raise DeviceFailed(f"{self.device.name} failed: {reason}; {self._where()}")
        self.blamed = ""

    def blame(self, step: str) -> None:
        """Note a failed step: if the device is waited for after every step, it is to blame."""
        self.blamed = self.blamed or step

    def _where(self) -> str:
        if self.device.sync:
            return f"in {self.blamed}" if self.blamed else "between two steps"
        sites = dict.fromkeys(tag.site for program in reversed(self.recent) for tag in program.plan.tags)
        named = ", ".join(list(sites)[:MAX_NAMED_LINES]) + (" and others" if len(sites) > MAX_NAMED_LINES else "")
        return f"it was computing by itself, one of {named or 'no plan'}; with GT_SYNC=1 in its environment a worker knows which"
