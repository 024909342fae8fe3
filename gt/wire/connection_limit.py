"""Limits for the connections that listening sockets accept: how many there are, so that they leave a process descriptors to
work with, and how many an address opens a second, because each takes up to a quarter of a millisecond of this process, for
which no principal can be charged.

Without the first libzmq accepts until there are none left, and from then on tries again without a pause, which takes a whole
core. A thread hears of each connection, and hangs up those beyond the limit: whoever is connected goes on, and whoever is not
may try again when others have left. An address on TCP that is beyond its rate is not hung up, which would cost as much as a
handshake that fails: the kernel drops what wants to connect from there (`address_filter.py`), for a second.
"""

from __future__ import annotations

import contextlib
import logging
import socket as socketlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from gt.daemon.rate_limit import RateLimit

from . import address_filter, transport
from .memory_guard import MemoryGuard

log = logging.getLogger("gt.wire")
WARN_SECONDS: Final = 60.0
"""The seconds between two warnings."""
ADDRESS_RATE: Final = (1024, 256.0)
"""The connections that one address may open at once, and then per second. A session opens two or three, a worker one to each
other worker."""

DROP_SECONDS: Final = 1.0
"""So long nothing is accepted from an address that was beyond its rate."""
DROPPING_LOOK_SECONDS: Final = 0.1
"""The most seconds between two looks at which addresses are over that."""


class ConnectionLimit:
    """Hangs up each connection that one of these sockets accepts with a descriptor from `limit` on, and has nothing
    accepted for a second from an address on TCP that is beyond its `rate`: so many at once, and then a second. Its
    thread serves the `guard` of the same sockets, too."""

    def __init__(
        self, sockets: list[transport.Socket], limit: int, guard: MemoryGuard | None = None, *,
        rate: tuple[int, float] = ADDRESS_RATE, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
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
        self.of_address = RateLimit(*rate)
        """Counts the connections of each address."""
        self.dropped: dict[str, float] = {}
        """The addresses of which nothing is accepted, and until when."""
        self._listening: list[socketlib.socket] | None = None
        """Copies of the sockets where connections arrive, once they are needed."""
        self._clock = clock
        self.failed = False
        """Whether a bug was met, which is logged once."""
        self.warn_at = 0.0

    def start(self) -> None:
        """Start the thread, which runs as long as the process."""
        threading.Thread(target=self._run, name="gt-connections", daemon=True).start()

    def close(self) -> None:
        """Close the sockets, where the thread was never started."""
        monitors = dict(self.monitors)
        for copy in self._listening or ():
            copy.close()
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
        now = self._clock()
        if any(until <= now for until in self.dropped.values()):
            self.dropped = {address: until for address, until in self.dropped.items() if until > now}
            self._drop()
        if self.guard is not None:
            return int(1000 * self.guard.look())
        return int(1000 * DROPPING_LOOK_SECONDS) if self.dropped else None

    def _hear(self, listener: int, event: transport.ConnectionEvent) -> None:
        """Process what happened to a connection."""
        if event.kind == transport.REFUSED:
            self.strangers += 1
        elif event.kind == transport.ACCEPTED and event.descriptor >= self.limit:
            self._hang_up(listener, event.descriptor)
        elif event.kind == transport.ACCEPTED:
            self._count(listener, event.descriptor)
            if self.guard is not None:
                self.guard.accepted(listener, event.descriptor)
        elif self.guard is not None:
            self.guard.closed(listener, event.descriptor)

    def _count(self, listener: int, descriptor: int) -> None:
        """Count a connection of its address. If it was one too many, nothing more is accepted from there for a while; it goes on
        itself."""
        address = _peer_address(descriptor, self.endpoints[listener])
        if not address or address in self.dropped:
            return
        now = self._clock()
        if self.of_address.wait(address, now) > 0:
            if len(self.dropped) < address_filter.MAX_DROPPED:
                self.dropped[address] = now + DROP_SECONDS
                self._drop()
            self._warn(
                f"{address} opens more than {self.of_address.a_second:g} a second, so nothing is accepted from there for a "
                "second at a time; programs there try again by themselves"
            )
        self.of_address.take(address, now)

    def _drop(self) -> None:
        """Have the kernel drop what comes from those addresses, at each socket, if it can."""
        if self._listening is None:
            ports = [port for each in self.sockets if (port := transport.port(each)) > 0]
            self._listening = [socket for port in ports for socket in address_filter.listening_at(port)]
        for socket in self._listening:
            with contextlib.suppress(OSError):
                address_filter.drop(socket, self.dropped)

    def _hang_up(self, listener: int, descriptor: int) -> None:
        """End a connection as if the peer had: libzmq, which owns it, closes it. If it is closed by now, and its descriptor means
        something else, nothing happens to that."""
        with _accepted(descriptor, self.endpoints[listener]) as connection:
            if connection is None:
                return
            try:
                connection.shutdown(socketlib.SHUT_RDWR)
            except OSError:  # it has ended
                return
        self.refused += 1
        self._warn(
            f"{self.limit} descriptors are in use, so new ones are refused until others end; it may have as many as `ulimit -Hn` "
            "says where it is started"
        )

    def _warn(self, reason: str) -> None:
        """Say why connections are refused, once in a while."""
        if self._clock() >= self.warn_at:
            self.warn_at = self._clock() + WARN_SECONDS
            log.warning("too many connections: %s", reason)


def _peer_address(descriptor: int, endpoint: str) -> str:
    """The host at the other end of a connection that was accepted at a TCP address, as a number; '' if it has ended, and of any
    other descriptor."""
    try:
        with _accepted(descriptor, endpoint) as connection:
            if connection is not None and connection.family == socketlib.AF_INET:
                return str(connection.getpeername()[0])
    except OSError:  # it has ended
        pass
    return ""


@contextlib.contextmanager
def _accepted(descriptor: int, endpoint: str) -> Iterator[socketlib.socket | None]:
    """A connection that was accepted at this address; None if the descriptor is closed, or that of anything else. It is no copy,
    which would need a descriptor where there may be none left."""
    try:
        connection = socketlib.socket(fileno=descriptor)
    except OSError:  # closed, a file, or a pipe
        yield None
        return
    try:
        yield connection if _is_accepted(connection, endpoint) else None
    finally:
        connection.detach()


def _is_accepted(connection: socketlib.socket, endpoint: str) -> bool:
    """Whether a socket is a connection that was accepted at this address."""
    if connection.getsockopt(socketlib.SOL_SOCKET, socketlib.SO_ACCEPTCONN):
        return False  # it listens itself
    own = connection.getsockname()
    if connection.family == socketlib.AF_UNIX:
        return endpoint == f"ipc://{own}"
    return endpoint.startswith("tcp://") and endpoint.rpartition(":")[2] == str(own[1])
