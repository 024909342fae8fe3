"""The listening end of connections, each known by the identity that its other end has said.

All that a connection may cost is bounded here: how many there are, how many are opened a second, how many of them say nothing,
and the bytes of messages that do not end. No user can use up a bound, and none of a user's programs that user's share: the
kernel says whose a connection is.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import socket as sockets
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gt.bounds import MAX_UNFINISHED_BYTES
from gt.daemon.rate_limit import RateLimit

from .framing import MAX_IDENTITY_BYTES, opening
from .stream_socket import PeerProcess, StreamSocket, readable

log = logging.getLogger("gt.wire")
PEER_KINDS: Final = (b"DEALER", b"REQ", b"ROUTER")
"""Those that ZeroMQ lets connect to a ROUTER."""
MAX_NAMELESS: Final = 256
"""Connections that have not said who they are; the oldest makes room for the next."""
MAX_EVENTS: Final = 256
"""Connections that are read in one turn."""
MAX_ACCEPTED: Final = 16
"""Connections that are accepted in one turn."""
PROGRAM_RATE: Final = (1024, 64.0)
"""The connections that one program may open at once, and then per second."""
USER_RATE: Final = (4096, 256.0)
"""The same for all programs of one user; the last tenth is for programs that have opened none."""
BACKLOG: Final = 1024
"""Connections that wait to be accepted."""
WARN_SECONDS: Final = 60.0
"""The seconds between two warnings."""


class UnixRouter:
    """Listens at `path`. One thread may use it. A peer that sends a frame of more than `frame_bytes` is disconnected. A
    connection whose descriptor is `limit` or more is hung up. Raises `OSError` if it cannot listen."""

    def __init__(self, path: str, frame_bytes: int) -> None:
        self.path = Path(path)
        self.frame_bytes = frame_bytes
        self.limit = 1 << 31
        self.room = 1 << 31
        """How many connections there may be."""
        self.refused = 0
        """How many connections were ended for what they sent, or because there were too many."""
        self._listening = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)
            self._listening.bind(path)
            self._listening.listen(BACKLOG)
        except OSError:
            self._listening.close()
            raise
        self._inode = self.path.stat().st_ino
        self._listening.setblocking(False)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """A descriptor to give up for a moment when there is none to accept a connection with."""
        self._epoll = select.epoll()
        self._epoll.register(self._listening, select.EPOLLIN)
        self._streams: dict[int, StreamSocket] = {}
        """All connections, by descriptor."""
        self._peers: dict[bytes, StreamSocket] = {}
        """Those that have said who they are."""
        self._nameless: dict[StreamSocket, None] = {}
        """The others, oldest first."""
        self._numbers = itertools.count(1)
        self._ready: deque[StreamSocket] = deque()
        """Those with messages that nobody has taken."""
        self._unfinished: dict[StreamSocket, int] = {}
        """The bytes of messages that have not ended."""
        self._empty = False
        """Whether nothing was left when it was last read."""
        self._of_program: Counter[PeerProcess] = Counter()
        """How many connections each program has."""
        self._of_user: Counter[int] = Counter()
        self.program_rate, self.user_rate = RateLimit(*PROGRAM_RATE), RateLimit(*USER_RATE)
        """Count the connections that programs and users open."""
        self.accept_seconds = 0.0
        """The time that new connections have taken, of which nobody's messages came, since somebody has set it to 0."""
        self._warn_at = 0.0

    def fileno(self) -> int:
        """A descriptor that is readable when something has come."""
        return self._epoll.fileno()

    @property
    def has_more(self) -> bool:
        """Whether messages have been read that nobody has taken: they do not make the descriptor readable."""
        return bool(self._ready)

    def poll(self, timeout: float) -> bool:
        """Wait for a message, at most so many milliseconds."""
        return self.has_more or readable(self.fileno(), timeout)

    def send(self, frames: list[Any], peer: bytes) -> bool:
        """Send a message to a peer. Never waits. Returns False if it is not connected."""
        stream = self._peers.get(peer)
        return stream is not None and stream.send(frames)

    def receive(self, *, polled: bool = False) -> tuple[StreamSocket, list[Any]] | None:
        """The next message, and the connection by which it came; None if there is none. Connections take turns. `polled`: a poll
        has just found one."""
        ready = self._ready
        if polled:
            self._empty = False
        while not ready:
            if self._empty:
                self._empty = False
                return None
            self._read()
        stream = ready.popleft()
        message = stream.messages.popleft()
        if stream.messages:
            ready.append(stream)
        return stream, message

    def _read(self) -> None:
        """Read what has come by all connections."""
        events = self._epoll.poll(0, MAX_EVENTS)
        self._empty = len(events) < MAX_EVENTS
        for descriptor, _ in events:
            stream = self._streams.get(descriptor)
            if stream is None:
                self._accept()
            elif not stream.ended:  # else it was ended in this turn
                self._empty &= not stream.read()
                if self._unfinished or self._ready or not stream.is_settled:
                    self._heard(stream)
                elif stream.messages:  # the usual case
                    self._ready.append(stream)

    def _heard(self, stream: StreamSocket) -> None:
        """Something has come by a connection, perhaps its end."""
        if not stream.identity and stream.reader.facts is not None:
            self._name(stream, stream.reader.facts)
        if stream.messages and stream not in self._ready:
            self._ready.append(stream)
        if stream.ended:
            if stream.offence:
                self._refuse(stream, stream.offence)
            else:
                self._forget(stream)
        elif stream.reader.rest:
            self._unfinished[stream] = len(stream.reader.rest)
            if len(self._unfinished) > 1 or len(stream.reader.rest) > MAX_UNFINISHED_BYTES:
                self._bound_unfinished()
        elif self._unfinished:
            self._unfinished.pop(stream, None)

    def _name(self, stream: StreamSocket, facts: Mapping[bytes, bytes]) -> None:
        """Know a connection by what it has said of itself; one that has said no identity is given one, which begins with zero."""
        identity = facts.get(b"identity", b"")
        if facts.get(b"socket-type") not in PEER_KINDS or len(identity) > MAX_IDENTITY_BYTES or identity[:1] == b"\0":
            stream.ended, stream.offence = True, "it is no DEALER, or has an identity that none may have"
            stream.messages.clear()
            return
        stream.identity = identity or b"\0" + next(self._numbers).to_bytes(8, "big")
        self._nameless.pop(stream, None)
        before = self._peers.pop(stream.identity, None)
        if before is not None:  # a new connection of a peer replaces its last, which may seem to live
            self._forget(before)
            before.messages.clear()  # none of it was acknowledged, so it comes again
            if before in self._ready:
                self._ready.remove(before)
        self._peers[stream.identity] = stream

    def _bound_unfinished(self) -> None:
        """End connections while messages that have not ended take too much memory: of the user who has most of it, and of that
        user's programs the one with most, that with the longest."""
        while sum(self._unfinished.values()) > MAX_UNFINISHED_BYTES:
            programs: Counter[PeerProcess] = Counter()
            users: Counter[int] = Counter()
            for stream, nbytes in self._unfinished.items():
                programs[stream.process] += nbytes
                users[stream.process.uid] += nbytes
            user = max(users, key=users.__getitem__)
            program = max((each for each in programs if each.uid == user), key=programs.__getitem__)
            its = [stream for stream in self._unfinished if stream.process == program]
            self._refuse(max(its, key=self._unfinished.__getitem__), "messages that do not end take too much memory")

    def _has_room(self, process: PeerProcess) -> bool:
        """Whether a program may have one more connection."""
        user = self._of_user[process.uid]
        share = _allowance(self.room, len(self._streams) - user)
        return user < share and self._of_program[process] < _allowance(share, user - self._of_program[process])

    def _is_too_fast(self, process: PeerProcess) -> bool:
        """Whether a program, or its user, opens more connections than it may. If not, this one is counted."""
        now, reserved = time.monotonic(), 0
        if self.program_rate.used(process, now) > 0:
            reserved = self.user_rate.burst // 10
        if self.program_rate.wait(process, now) > 0 or self.user_rate.wait(process.uid, now, reserved) > 0:
            return True
        self.program_rate.take(process, now)
        self.user_rate.take(process.uid, now)
        return False

    def _accept(self) -> None:
        """Accept who wants to connect, and note the time that takes."""
        began = time.monotonic()
        self._accept_some()
        self.accept_seconds += time.monotonic() - began

    def _accept_some(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                socket, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    continue  # who wanted to connect is gone
                self._hang_up_next()
                self._count_refused("there is no descriptor for them")
                continue
            stream = StreamSocket(socket, self.frame_bytes)
            if socket.fileno() >= self.limit:
                stream.close()
                self._count_refused(f"{self.limit} descriptors are in use")
                continue
            stream.ask_process()
            if not self._has_room(stream.process):
                stream.close()
                self._count_refused(f"{stream.process} has too many connections")
                continue
            if self._is_too_fast(stream.process):
                stream.close()
                a_second = self.program_rate.a_second
                self._count_refused(f"{stream.process} opens more than {a_second:g} a second, or its user too many")
                continue
            self._of_program[stream.process] += 1
            self._of_user[stream.process.uid] += 1
            stream.send_bytes(opening(b"ROUTER"))
            self._streams[socket.fileno()] = stream
            self._nameless[stream] = None
            self._epoll.register(socket, select.EPOLLIN)
            stream.read()  # who connects says something at once
            self._heard(stream)
            if len(self._nameless) > MAX_NAMELESS:
                self._refuse(next(iter(self._nameless)), "too many say nothing")

    def _refuse(self, stream: StreamSocket, reason: str) -> None:
        """End a connection."""
        self._forget(stream)
        self._count_refused(f"{stream.process}: {reason}")

    def _hang_up_next(self) -> None:
        """Accept who wants to connect in place of the spare descriptor, and hang up. Where another thread takes its number, they
        wait until there is one."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        with contextlib.suppress(OSError):
            self._listening.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _count_refused(self, reason: str) -> None:
        self.refused += 1
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + WARN_SECONDS
            log.warning("connections were ended or refused: %s; more are only counted", reason)

    def _forget(self, stream: StreamSocket) -> None:
        """Close a connection. What has come by it can still be taken."""
        if self._streams.pop(stream.socket.fileno(), None) is None:
            return
        self._epoll.unregister(stream.socket)
        self._nameless.pop(stream, None)
        self._unfinished.pop(stream, None)
        process = stream.process
        self._of_program[process] -= 1
        self._of_user[process.uid] -= 1
        if not self._of_program[process]:
            del self._of_program[process]
        if not self._of_user[process.uid]:
            del self._of_user[process.uid]
        if self._peers.get(stream.identity) is stream:
            del self._peers[stream.identity]
        stream.close()

    def close(self, linger: int = 0) -> None:
        """Close all connections, and listen no more; what was sent may leave within `linger` milliseconds."""
        if self._listening.fileno() < 0:  # it is closed, and others may have these descriptors by now
            return
        until = time.monotonic() + linger / 1000
        for stream in list(self._streams.values()):
            stream.close(int(1000 * max(0.0, until - time.monotonic())))
        self._streams.clear()
        self._peers.clear()
        self._ready.clear()
        self.unlink()
        self._listening.close()
        self._epoll.close()
        if self._spare >= 0:
            os.close(self._spare)

    def unlink(self) -> None:
        """Remove the path at which it listens, unless another one listens there by now."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()


def _allowance(limit: int, others: int) -> int:
    """How many of `limit` connections one may have when others have so many: all that is left but a tenth."""
    left = max(0, limit - others)
    return left - left // 10
