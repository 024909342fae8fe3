"""A limit for the connections that listening sockets accept, so that they leave a process descriptors to work with.

Without one libzmq accepts until there are none left, and from then on tries again without a pause, which takes a whole core. A
thread hears of each connection, and hangs up those beyond the limit: whoever is connected goes on, and whoever is not may try
again when others have left.
"""

from __future__ import annotations

import logging
import os
import socket as socketlib
import threading
import time
from typing import Any, Final

from . import transport
from .memory_guard import MemoryGuard

log = logging.getLogger("gt.wire")
WARN_SECONDS: Final = 60.0
"""The seconds between two warnings."""


class ConnectionLimit:
    """Hangs up each connection that one of these sockets accepts with a descriptor from `limit` on. Its thread serves the
    `guard` of the same sockets, too."""

    def __init__(self, sockets: list[transport.Socket], limit: int, guard: MemoryGuard | None = None) -> None:
        self.sockets = sockets
        self.limit = limit
        self.guard = guard
        self.refused = 0
        """How many connections were hung up."""
        self.strangers = 0
        """How many connections were refused because of their keys."""
        monitors = [transport.limit_connections(socket, limit) for socket in sockets]
        self.monitors = [(listener, monitor) for listener, monitor in enumerate(monitors) if monitor is not None]
        self.endpoints = [transport.endpoint(socket) for socket in sockets]
        self.failed = False
        """Whether a bug was met, which is logged once."""
        self.warn_at = 0.0

    def start(self) -> None:
        """Start the thread, which runs as long as the process."""
        threading.Thread(target=self._run, name="gt-connections", daemon=True).start()

    def close(self) -> None:
        """Close the sockets, where the thread was never started."""
        monitors = dict(self.monitors)
        for listener, socket in enumerate(self.sockets):
            transport.close_monitored(socket, monitors.get(listener))

    def _run(self) -> None:
        poller = transport.poller()
        for _, monitor in self.monitors:
            poller.register(monitor, transport.READABLE)
        patience: int | None = None
        while True:
            patience = self.turn(dict(poller.poll(patience)))

    def turn(self, heard: dict[Any, int]) -> int | None:
        """Process what these monitors have to tell. Returns the milliseconds to wait for more, None for as long as it takes.

        Raises nothing: the monitors must be read as long as the process runs. One that is full stops ZeroMQ's own thread, and
        with it all connections.
        """
        try:
            return self._read(heard)
        except Exception:
            if not self.failed:
                log.exception("a bug in GT: messages that do not end are looked for no more; please report it")
            self.failed, self.guard = True, None
            return None

    def _read(self, heard: dict[Any, int]) -> int | None:
        for listener, monitor in self.monitors:
            while monitor in heard and (event := transport.connection_event(monitor)) is not None:
                self._hear(listener, event)
        return None if self.guard is None else int(1000 * self.guard.look())

    def _hear(self, listener: int, event: transport.ConnectionEvent) -> None:
        """Process what happened to a connection."""
        if event.kind == transport.REFUSED:
            self.strangers += 1
        elif event.kind == transport.ACCEPTED and event.descriptor >= self.limit:
            self._hang_up(listener, event.descriptor)
        elif self.guard is not None and event.kind == transport.ACCEPTED:
            self.guard.accepted(listener, event.descriptor)
        elif self.guard is not None:
            self.guard.closed(listener, event.descriptor)

    def _hang_up(self, listener: int, descriptor: int) -> None:
        """End a connection as if the peer had: libzmq, which owns it, closes it. If it is closed by now, and its descriptor means
        something else, nothing happens to that."""
        if not _end_connection(descriptor, self.endpoints[listener]):
            return
        self.refused += 1
        if time.monotonic() >= self.warn_at:
            self.warn_at = time.monotonic() + WARN_SECONDS
            log.warning(
                "too many connections: %d descriptors are in use, so new ones are refused until others end; "
                "it may have as many as `ulimit -Hn` says where it is started",
                self.limit,
            )


def _end_connection(descriptor: int, endpoint: str) -> bool:
    """End a connection that was accepted at this address. Returns False if the descriptor is none, or closed."""
    try:
        copy = os.dup(descriptor)  # which nobody else closes and uses for something else
    except OSError:
        return False
    try:
        connection = socketlib.socket(fileno=copy)
    except OSError:  # a file, or a pipe
        os.close(copy)
        return False
    with connection:
        try:
            if not _is_accepted(connection, endpoint):
                return False
            connection.shutdown(socketlib.SHUT_RDWR)
        except OSError:  # it has ended
            return False
    return True


def _is_accepted(connection: socketlib.socket, endpoint: str) -> bool:
    """Whether a socket is a connection that was accepted at this address."""
    if connection.getsockopt(socketlib.SOL_SOCKET, socketlib.SO_ACCEPTCONN):
        return False  # it listens itself
    own = connection.getsockname()
    if connection.family == socketlib.AF_UNIX:
        return endpoint == f"ipc://{own}"
    return endpoint.startswith("tcp://") and endpoint.rpartition(":")[2] == str(own[1])
