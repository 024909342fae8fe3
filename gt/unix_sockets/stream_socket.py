"""One end of a connection: it sends messages without waiting, and reads what has come.

What the other end has no room for is kept, and sent by a thread of its own (`backlog_writer.py`) as soon as there is room, so
that whoever sends may do something else meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket as sockets
import struct
import threading
import time
from collections import deque
from typing import Any, Final, NamedTuple

from gt.errors import ProtocolError

from . import backlog_writer
from .framing import MessageReader, packed

READ_BYTES: Final = 1 << 16
"""The most bytes that are read at once."""


class PeerProcess(NamedTuple):
    """The user and process at the other end of a connection, as the kernel says."""

    uid: int
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} of user {self.uid}"


class StreamSocket:
    """A connected socket, of which it is the owner. One thread may read, and one at a time send."""

    __slots__ = (
        "_lock", "_recv", "_send", "backlog", "ended", "identity", "messages", "offence", "process", "reader", "socket",
        "unheard",
    )  # fmt: skip

    def __init__(self, socket: sockets.socket, frame_bytes: int) -> None:
        socket.setblocking(False)
        self.socket = socket
        self.reader = MessageReader(frame_bytes)
        self.messages: deque[list[Any]] = deque()
        """What has come and nobody has taken."""
        self.identity = b""
        """What the other end has said that it is."""
        self.process = PeerProcess(-1, 0)
        self.ended = False
        """Whether the connection has ended, and all that came by it was read."""
        self.offence = ""
        """The reason why this end has ended it, if the other has sent what can be no message."""
        self.unheard = False
        """Whether nothing can be sent any more; something may have come that was not read."""
        self.backlog: deque[memoryview] = deque()
        """What was sent and the kernel had no room for. Only under the lock, but for a look whether there is anything."""
        self._lock = threading.Lock()
        self._send = socket.send
        self._recv = socket.recv

    def send(self, frames: list[Any]) -> bool:
        """Send a message. Never waits. Returns False if the connection has ended."""
        return self.send_bytes(packed(frames))

    def send_bytes(self, data: bytes) -> bool:
        """The same of what is packed, whole messages or commands."""
        if self.unheard:
            return False
        if self.backlog:
            with self._lock:
                if self.backlog:  # else all of it was sent in this moment
                    self.backlog.append(memoryview(data))
                    return True
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.unheard = True
            return False
        if sent < len(data):
            with self._lock:
                self.backlog.append(memoryview(data)[sent:])
                backlog_writer.writer().add(self)
        return True

    def flush(self) -> bool:
        """Send of the backlog what there is room for. Returns whether anything is left."""
        with self._lock:
            while self.backlog:
                data = self.backlog[0]
                try:
                    sent = self._send(data)
                except BlockingIOError:
                    return True
                except OSError:
                    self.unheard = True
                    self.backlog.clear()
                    break
                if sent < len(data):
                    self.backlog[0] = data[sent:]
                else:
                    self.backlog.popleft()
            backlog_writer.writer().remove(self)
            return False

    def read(self) -> bool:
        """Read what has come. Returns whether there may be more."""
        try:
            data = self._recv(READ_BYTES)
            if data:
                self.reader.feed(data, self.messages)
                if self.reader.answers:
                    self.send_bytes(self.reader.answers)
                    self.reader.answers = b""
                return len(data) == READ_BYTES
        except BlockingIOError:
            return False
        except OSError:
            pass
        except ProtocolError as error:
            self.offence = str(error)
        self.ended = self.unheard = True
        return False

    @property
    def is_settled(self) -> bool:
        """Whether it is open, the other end has said who it is, and no message has begun and not ended."""
        return not (self.ended or self.reader.rest) and bool(self.identity)

    def ask_process(self) -> None:
        """Ask the kernel who is at the other end."""
        with contextlib.suppress(OSError):
            pid, uid, _ = struct.unpack("=iII", self.socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12))
            self.process = PeerProcess(uid, pid)

    def mute(self) -> None:
        """End the connection, but keep its descriptor, which is never readable from now on: others may still poll it."""
        self.ended = self.unheard = True
        self._drop_backlog()
        with self._lock:  # another thread that closes it gives the descriptor's number to whoever opens one next
            if self.socket.fileno() >= 0:
                quiet = os.eventfd(0, os.EFD_CLOEXEC)
                os.dup2(quiet, self.socket.fileno(), inheritable=False)
                os.close(quiet)

    def close(self, linger: int = 0) -> None:
        """Close it; what was sent may leave within `linger` milliseconds."""
        until = time.monotonic() + linger / 1000
        while self.backlog and (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self.socket, select.POLLOUT)
            poll.poll(left * 1000)
            self.flush()
        self.ended = self.unheard = True
        self._drop_backlog()
        with self._lock:
            self.socket.close()

    def _drop_backlog(self) -> None:
        with self._lock:
            if self.backlog:
                self.backlog.clear()
                backlog_writer.writer().remove(self)


def readable(descriptor: int, timeout: float) -> bool:
    """Whether a descriptor becomes readable within so many milliseconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout))
