"""A guard of the memory of a process that listens: it ends connections by which messages come that do not end.

It knows the accepted connections of all sockets, looks at the memory several times a second, and asks `UnfinishedMessages` whom
to end. Messages are looked at in a suspicion alone. The thread of `ConnectionLimit` uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import socket as socketlib
import stat
import struct
import sys
import termios
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from gt.bounds import MIB
from gt.daemon.heap import ResidentMemory, give_back_free_memory

from . import transport
from .unfinished_messages import Reading, UnfinishedMessages

log = logging.getLogger("gt.wire")
LOOK_SECONDS: Final = 0.1
"""The seconds between two looks at the memory."""
SUSPICIOUS_LOOK_SECONDS: Final = 0.02
"""The same in a suspicion."""
MAX_SHARE: Final = 0.05
"""The part of its time that the guard spends in looks at most, where there are thousands of connections."""
TRIM_SECONDS: Final = (0.1, 1.5)
"""When memory is given back after a connection was ended: once ZeroMQ has freed what came by it, and once more after the sockets
were looked at that nobody listens to."""
WARN_SECONDS: Final = 60.0
"""The seconds between two warnings."""
_AT_ONCE: Final = struct.pack("=ii", 1, 0)
"""SO_LINGER for a connection that is reset when it is closed: else a peer that waits for room may wait for a minute more."""
_TCP_INFO_BYTES_RECEIVED: Final = 128
"""Where `tcpi_bytes_received` is in `struct tcp_info`, from Linux 4.1 on."""


class Listener(NamedTuple):
    """A listening socket that is guarded."""

    socket: transport.Socket
    sender: transport.MessageSender
    """What its reader tells of the senders of messages."""


class _Accepted(NamedTuple):
    """A connection: its listener, its descriptor, and what else it is known by, since descriptors are used again."""

    listener: int
    descriptor: int
    inode: int


class MemoryGuard:
    """Ends connections of these sockets whose messages do not end."""

    def __init__(self, listeners: list[Listener]) -> None:
        self.listeners = listeners
        self._ended = 0
        """How many connections it has ended itself."""
        self.messages: UnfinishedMessages[_Accepted] = UnfinishedMessages()
        self._message_bytes = [2 * transport.max_frame_bytes(each.socket) for each in listeners]
        self._unix = [transport.endpoint(each.socket).startswith("ipc://") for each in listeners]
        self._connections: dict[tuple[int, int], _Accepted] = {}
        """By listener and descriptor."""
        self._counts: dict[_Accepted, int] = {}
        """The bytes that had come by a TCP connection when it was last read."""
        self._trusted: set[_Accepted] = set()
        self._memory = ResidentMemory()
        self._trims: list[float] = []
        self._warn_at = 0.0

    @property
    def ended(self) -> int:
        """How many connections were ended, also by sockets that look after that themselves."""
        return self._ended + sum(transport.refused(each.socket) for each in self.listeners)

    def trust(self, listener: int) -> None:
        """The sender of the last message of a listener is known to be a peer that may be silent from now on. The reader of that
        listener may call this, in its thread."""
        descriptor = self.listeners[listener].sender.descriptor()
        self._trusted.add(_Accepted(listener, descriptor, _inode(descriptor)))

    def accepted(self, listener: int, descriptor: int) -> None:
        """A listener has accepted a connection."""
        inode = _inode(descriptor)
        if inode:  # else it has ended already
            self._connections[listener, descriptor] = _Accepted(listener, descriptor, inode)

    def closed(self, listener: int, descriptor: int) -> None:
        """A connection has ended."""
        connection = self._connections.pop((listener, descriptor), _NOBODY)
        self._counts.pop(connection, None)
        self._trusted.discard(connection)

    def look(self) -> float:
        """Look at the memory, and end connections if it must be. Returns the seconds until the next look."""
        now = time.monotonic()
        memory = self._memory.read()
        if self._trims and now >= self._trims[0]:
            self._trims.pop(0)
            give_back_free_memory()
            memory = self._memory.read()
        calm = self.messages.calm
        guilty = self.messages.look(now, memory, self._read)
        suspicious = self.messages.began is not None
        if guilty:
            self._end(guilty, memory - calm)
            self._trims = [now + seconds for seconds in TRIM_SECONDS]
        if not suspicious:
            self._counts.clear()
            for each in self.listeners:
                each.sender.finished = None
            return LOOK_SECONDS
        return max(SUSPICIOUS_LOOK_SECONDS, (time.monotonic() - now) / MAX_SHARE)

    def _read(self) -> Iterator[Reading[_Accepted]]:
        """What has come by each connection since the last call."""
        finished = []
        for each in self.listeners:
            finished.append(each.sender.finished or ())
            each.sender.finished = set()
        for (listener, descriptor), connection in self._connections.items():
            yield Reading(
                connection,
                descriptor in finished[listener],
                self._received(connection),
                self._message_bytes[listener],
                connection in self._trusted,
            )

    def _received(self, connection: _Accepted) -> float:
        """The bytes that have come by a connection since the last call."""
        try:
            if self._unix[connection.listener]:
                unread = fcntl.ioctl(connection.descriptor, termios.FIONREAD, bytes(4))
                return math.inf if int.from_bytes(unread, sys.byteorder) else 0
            count = _bytes_received(connection.descriptor)
        except (OSError, struct.error):
            return 0  # it has ended
        before = self._counts.get(connection, count)
        self._counts[connection] = count
        return float(count - before)

    def _end(self, guilty: list[_Accepted], growth: float) -> None:
        """End connections as if their peers had: libzmq, which owns them, closes them and frees what came by them."""
        peers = []
        for connection in guilty:
            self._connections.pop(connection[:2], None)
            with contextlib.suppress(OSError):  # it has ended already
                copy = os.dup(connection.descriptor)  # which nobody else closes and uses for something else
                with socketlib.socket(fileno=copy) as socket:
                    if _inode(copy) == connection.inode:
                        peers.append(_peer(socket))
                        socket.setsockopt(socketlib.SOL_SOCKET, socketlib.SO_LINGER, _AT_ONCE)
                        socket.shutdown(socketlib.SHUT_RDWR)
        self._ended += len(peers)
        if peers and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + WARN_SECONDS
            log.warning(
                "this process has grown by %.0f MiB, and messages that do not end may be why; connections ended because "
                "nothing whole came by them: %d (%s%s); sessions that had one go on by another; more are only counted",
                growth / MIB, len(peers), ", ".join(peers[:3]), ", …" if len(peers) > 3 else "",
            )  # fmt: skip


_NOBODY: Final = _Accepted(-1, -1, 0)


def _inode(descriptor: int) -> int:
    """The number that a socket has for as long as it is open; 0 if a descriptor is no socket."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return 0
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else 0


def _bytes_received(descriptor: int) -> int:
    """How many bytes have come by a TCP connection in all. Raises OSError or `struct.error` where that is not known."""
    socket = socketlib.socket(socketlib.AF_INET, socketlib.SOCK_STREAM, 0, fileno=descriptor)
    try:
        told = socket.getsockopt(socketlib.IPPROTO_TCP, socketlib.TCP_INFO, 256)
    finally:
        socket.detach()
    return int(struct.unpack_from("=Q", told, _TCP_INFO_BYTES_RECEIVED)[0])


def _peer(socket: socketlib.socket) -> str:
    """Who is at the other end, for people."""
    if socket.family != socketlib.AF_UNIX:
        return "{}:{}".format(*socket.getpeername()[:2])
    pid, uid, _ = struct.unpack("=iII", socket.getsockopt(socketlib.SOL_SOCKET, socketlib.SO_PEERCRED, 12))
    return f"process {pid} of user {uid}"
