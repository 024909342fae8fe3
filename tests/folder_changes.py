"""Waiting for changes of files, by inotify(7): for what can only be seen in a folder, as the daemons and jobs of others."""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path

CHANGES = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200
"""IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE and IN_DELETE."""


class FolderChanges:
    """The changes of files in a folder, and in all below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.events = self.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.events < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._watch()

    def _watch(self) -> None:
        """Watch all folders that there are by now; to watch one again has no effect."""
        for each, _, _ in os.walk(self.folder):
            self.libc.inotify_add_watch(self.events, os.fsencode(each), CHANGES)

    def wait(self, seconds: float) -> bool:
        """Wait until something has changed since the last time, for at most so long. Returns whether something has."""
        found = bool(select.select([self.events], [], [], max(0.0, seconds))[0])
        if found:
            try:
                while os.read(self.events, 1 << 16):
                    pass
            except BlockingIOError:
                pass
            self._watch()
        return found

    def close(self) -> None:
        os.close(self.events)
