"""The progress bar of long transfers: shown on a terminal once a wait has lasted and moves much.

The one place that draws. It hears how much is under way from the link and the time from its caller, and imports rich when the
first bar is due: a program that waits for nothing long never loads it. Nothing may wait here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from gt.sharding import options

SHOW_AFTER_SECONDS: Final = 1.0
"""Seconds that a wait lasts before anything is shown."""
MIN_SHOWN_BYTES: Final = 64 << 20
"""Bytes under way from which a bar is shown."""
REDRAW_SECONDS: Final = 0.1
"""Seconds between two looks."""

_terminal: Final = threading.Lock()
"""Held by the wait that draws: there is one bar at a time."""


class TransferProgress:
    """The progress that one wait shows, if any. `under_way` gives (bytes moved, bytes in all) of what is on its way now."""

    def __init__(self, what: str, under_way: Callable[[], tuple[int, int]]) -> None:
        self.what = what
        self.under_way = under_way
        self.looked = -REDRAW_SECONDS
        self.left = self.total = 0
        self.bar: Any = None

    def look(self, waited: float) -> None:
        """Show how far it is, `waited` seconds after the wait began, unless that was just done."""
        if waited - self.looked < REDRAW_SECONDS or waited < SHOW_AFTER_SECONDS:
            return
        self.looked = waited
        moved, size = self.under_way()
        left = size - moved
        if not self.total:
            self.total = size
        elif left > self.left:  # something else has begun; what is whole is not under way any more
            self.total += left - self.left
        self.left = left
        if self.bar is None and (left < MIN_SHOWN_BYTES or not self._begin()):
            return
        self.bar.update(0, total=self.total, completed=self.total - left)
        self.bar.refresh()

    def _begin(self) -> bool:
        """Start a bar, where there is a terminal and nobody else draws; whether one was started."""
        if not options.chosen.get("progress", options.OPTIONS["progress"].default):
            return False
        stream = sys.stderr
        if stream is None or not stream.isatty() or not _terminal.acquire(blocking=False):
            return False
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(
            *columns, console=Console(file=stream), auto_refresh=False, transient=True,
            redirect_stdout=False, redirect_stderr=False,  # what the program prints goes where it always does
        )  # fmt: skip
        self.bar.add_task(self.what, total=self.total)
        self.bar.start()
        return True

    def end(self) -> None:
        """Remove the bar from the terminal."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
            _terminal.release()
