"""A thread that sends the messages for which a receiver had no room at first. The first such message of a process starts it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Final, Protocol


class Backlogged(Protocol):
    """A socket with a backlog (`stream_socket.py`)."""

    @property
    def socket(self) -> _Descriptor: ...
    def flush(self) -> bool: ...


class _Descriptor(Protocol):
    def fileno(self) -> int: ...


class BacklogWriter:
    """Sends the backlogs of sockets."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sockets: dict[int, Backlogged] = {}
        threading.Thread(target=self._run, name="gt-backlog", daemon=True).start()

    def add(self, socket: Backlogged) -> None:
        """Send the backlog of a socket, as there is room. Its lock is held."""
        descriptor = socket.socket.fileno()
        self._sockets[descriptor] = socket
        self._epoll.register(descriptor, select.EPOLLOUT)

    def remove(self, socket: Backlogged) -> None:
        """A socket has no backlog any more. Its lock is held."""
        descriptor = socket.socket.fileno()
        if self._sockets.get(descriptor) is socket:
            del self._sockets[descriptor]
            with contextlib.suppress(OSError):  # it has ended, and its descriptor is another's
                self._epoll.unregister(descriptor)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                socket = self._sockets.get(descriptor)
                if socket is not None:
                    socket.flush()


_writers: Final[dict[int, BacklogWriter]] = {}
_lock = threading.Lock()


def writer() -> BacklogWriter:
    """That of this process; a forked child gets its own."""
    pid = os.getpid()
    found = _writers.get(pid)
    if found is None:
        with _lock:
            found = _writers.get(pid)
            if found is None:
                _writers.clear()
                found = _writers[pid] = BacklogWriter()
    return found
