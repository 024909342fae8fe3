"""Processes that were started together with this one, by the same supervisor."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil


def kill_sibling(pid: int, descriptor: int) -> bool:
    """Kill a process if it has the same parent as this one. `descriptor` is its pidfd, so that no other process with its number
    is meant. Returns whether it was killed."""
    with contextlib.suppress(OSError, psutil.Error):
        if psutil.Process(pid).ppid() == os.getppid():
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return True
    return False
