"""What a daemon tells the service manager that started it, where there is one: systemd with Type=notify (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
"""Names the datagram socket of the service manager; a name that begins with '@' is in the abstract namespace."""


class ServiceManager:
    """The service manager of this process; all calls do nothing where there is none. Children do not inherit it."""

    def __init__(self) -> None:
        path = os.environ.pop(SOCKET_VARIABLE, "")
        self._path = f"\0{path[1:]}" if path.startswith("@") else path

    def ready(self, text: str) -> None:
        """The daemon serves; `text` is what `systemctl status` shows."""
        self._tell(f"READY=1\nSTATUS={text}\nMAINPID={os.getpid()}")

    def beat(self) -> None:
        """The main loop turns; without that for WatchdogSec the daemon is killed and started again."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon ends."""
        self._tell("STOPPING=1")

    def _tell(self, words: str) -> None:
        if self._path:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.setblocking(False)
                link.sendto(words.encode(), self._path)  # where that fails it is gone, or busy: the next beat comes
