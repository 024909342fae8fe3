"""Connections to a listening socket, and that socket: reliable streams over ZeroMQ connections that may break at any time.

`Connection` is the end of a client, a worker or a watcher, and of a worker that sends pieces to another. It notices that it is
broken, by its socket or by silence, opens another one under the same identity, and goes on where both ends were.
`SessionRouter` is the end of a dispatcher, or of a worker that receives pieces, with one stream for each identity. ZeroMQ
itself does not reconnect: it would lose what was in flight, and say nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gt.daemon.active_clock import ActiveClock
from gt.errors import ConnectionFailed, ProtocolError

from . import transport
from .reliable_stream import (
    ACCEPTED,
    HEADER_BYTES,
    LEASE_SECONDS,
    MAX_OWED_BYTES,
    OPEN_AGAIN,
    OPEN_NEW,
    UNKNOWN,
    UNNUMBERED,
    Frames,
    ReliableStream,
    parse,
)

SILENCE_SECONDS: Final = 5.0
"""Seconds without a sign of life after which a connection counts as broken; half of the lease if that is less."""
LOOK_SECONDS: Final = 0.02
"""Between two looks at a connection at least so much time passes."""
FIRST_RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 2.0
"""Attempts to connect that fail follow each other in at least the first of these times, and each in twice the time of the one
before. One that neither fails nor succeeds is given up after the second."""
MAX_LOCAL_RETRY_SECONDS: Final = 0.1
"""The most seconds between attempts on one machine to which nobody answers: they cost little there."""
UNKNOWN_SESSION: Final = (
    "it does not know this session any more: it was started again since, or has given the session up"
)
MAX_HALF_OPEN: Final = 1024
"""Streams without a session that a router keeps; the oldest makes room for the next."""


class Connection:
    """A client's, worker's or watcher's connection to the dispatcher's socket at `address`, or a worker's to another worker's.

    `reopened` is called whenever there is a new socket to listen to. `failed` says why there will be no other, once there has
    been no contact for `lease` seconds, or once the dispatcher does not know the session (`unknown`). With `heartbeats`
    ZeroMQ's own threads exchange them, so that an end which computes for long, and answers nothing, does not count as silent.
    One thread at a time may use it.
    """

    def __init__(
        self, address: str, *, identity: bytes = b"", lease: float = LEASE_SECONDS,
        reopened: Callable[[], object] = lambda: None, clock: Callable[[], float] | None = None,
        keys: transport.CurveKeys | None = None, heartbeats: bool = False,
    ) -> None:  # fmt: skip
        self.address = address
        self.heartbeats = heartbeats
        self.lease = lease
        self.keys = keys
        self.identity = identity or transport.new_identity()
        self.stream = ReliableStream()
        self.failed = ""
        self.unknown = False
        self.accepted = False
        """Whether the dispatcher has ever answered."""
        self.answered = False
        """Whether it has answered by this connection. What comes before that may lack something, and comes again behind it."""
        self.resuming = False
        """Whether what is sent must wait until the dispatcher has said what it has heard."""
        self.closed = False
        self.reconnects = 0
        self.reopened = reopened
        self._clock = clock or ActiveClock()
        self._heard = self._clock()
        """When something was last heard, as far as was looked."""
        self._spoken = False
        """Whether something was heard since."""
        self._attempt = self._look_at = self._heard
        """When the last attempt to connect began."""
        self._retry = FIRST_RETRY_SECONDS
        self._progress = (0, 0)
        self._progress_at = self._heard
        """What had got through when it was last looked at, and when that last changed or nothing was left to get through."""
        self._dealer = transport.Dealer(address, self.identity, keys, heartbeats=heartbeats)
        self.socket = self._dealer.socket
        transport.send(self.socket, [self.stream.heartbeat(OPEN_NEW)])

    def send(self, frames: Frames) -> None:
        """Send a message. Never waits; it arrives once and in order, unless the session ends."""
        numbered = self.stream.number(frames)
        if not self.resuming and not self.closed:
            transport.send(self.socket, numbered)  # if that fails the next look finds out

    def send_unnumbered(self, frames: Frames) -> None:
        """Send a message that may be lost, such as a heartbeat, and acknowledge what was heard."""
        if not self.resuming and not self.closed:
            transport.send(self.socket, [self.stream.heartbeat() + frames[0], *frames[1:]])

    def receive(self, *, polled: bool = False) -> Frames | None:
        """The frames of the next message; None if there is none. `polled`: a poll has just found one. Raises
        `ProtocolError`."""
        while not self.closed and (frames := transport.receive(self.socket, polled=polled)) is not None:
            polled = False
            stream = self.stream
            self._spoken = True
            if self.answered and (owes := stream.take(frames)) is not None:
                if owes:
                    self.send_unnumbered([b""])
                return frames
            first = frames[0]
            sequence, acknowledged = parse(first)
            if sequence == ACCEPTED:
                self._accept(acknowledged)
            elif sequence == UNKNOWN:
                if self.accepted:  # else it answers an earlier connection of this identity
                    self.unknown = True
                    self.failed = self.failed or UNKNOWN_SESSION
            elif sequence == UNNUMBERED:
                stream.acknowledge(min(acknowledged, stream.sent))
                if len(first) > HEADER_BYTES:
                    frames[0] = first[HEADER_BYTES:]
                    return frames
            elif self.answered:
                stream.accept(sequence, acknowledged, 0)
        return None

    def _accept(self, acknowledged: int) -> None:
        """The dispatcher knows this session: send what it has not heard."""
        self.accepted = self.answered = True
        if self.resuming:
            self.resuming = False
            for frames in self.stream.unheard(acknowledged):
                transport.send(self.socket, frames)
        else:
            self.stream.acknowledge(acknowledged)

    def look(self) -> None:
        """Notice that the connection is broken, and open another one; to be called several times a second."""
        now = self._clock()
        if self.failed or self.closed or now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if now - self._last_heard(now) > self.lease:
            self.failed = f"no sign of life for {self.lease:g} s"
            return
        progress = self.stream.acknowledged, self.stream.heard
        if progress != self._progress or not self.stream.kept:
            self._progress, self._progress_at = progress, now
            if not self.resuming:
                self._retry = FIRST_RETRY_SECONDS
        elif now - self._progress_at > self.lease:
            self.failed = f"nothing has got through for {self.lease:g} s, in {self.reconnects} connections"
            return
        broken = self._dealer.broken
        if self.heartbeats and not broken:
            return
        waiting = self.resuming or not self.accepted
        if now - self._attempt < (self._retry if broken or not waiting else MAX_RETRY_SECONDS):
            return
        if broken and self.socket.poll(0):
            return  # what came before the cut is read first: whoever sent it may be gone
        if waiting or broken or now - self._heard > min(SILENCE_SECONDS, self.lease / 2):
            self._reopen(now)

    @property
    def cut(self) -> bool:
        """Whether the connection is known to be broken, and no other has been answered yet: all that will come by it is here."""
        return self.resuming or self._dealer.broken

    @property
    def silent_seconds(self) -> float:
        """The seconds since something was last heard."""
        now = self._clock()
        return now - self._last_heard(now)

    def _last_heard(self, now: float) -> float:
        """When something was last heard: at the first look since."""
        if self._spoken:
            self._spoken, self._heard = False, now
        return self._heard

    def open_again(self, lease: float) -> None:
        """Go on after `close`, as after a cut: there may be somebody who knows the stream still."""
        now = self._clock()
        self.lease, self.failed, self.closed = lease, "", False
        self._heard = self._progress_at = now
        self._spoken, self._retry = False, FIRST_RETRY_SECONDS
        self._open_again(now)

    def _reopen(self, now: float) -> None:
        self._dealer.close()
        self._open_again(now)

    def _open_again(self, now: float) -> None:
        self.reconnects += 1
        unanswered = self.resuming or not self.accepted
        local = unanswered and self.address.startswith("ipc://")
        self._retry = min(2 * self._retry, MAX_LOCAL_RETRY_SECONDS if local else MAX_RETRY_SECONDS)
        self._attempt = now
        self.answered, self.resuming = False, True
        self._dealer = transport.Dealer(self.address, self.identity, self.keys, heartbeats=self.heartbeats)
        self.socket = self._dealer.socket
        transport.send(self.socket, [self.stream.heartbeat(OPEN_AGAIN if self.accepted else OPEN_NEW)])
        self.reopened()

    def wait_accepted(self, timeout: float) -> None:
        """Wait until the dispatcher has answered. Raises `ConnectionFailed`."""
        until = self._clock() + timeout
        while not self.accepted:
            self.socket.poll(10)
            frames = self.receive()
            assert frames is None, "nothing is sent to who has not spoken"
            self.look()
            if self.failed or self._clock() > until:
                raise ConnectionFailed(f"{self.address} did not answer within {timeout:g} s {self.failed}".rstrip())

    def close(self, linger: int = 0) -> None:
        """Close the socket; what was sent may leave within `linger` milliseconds."""
        self.closed = True
        self._dealer.close(linger)


MAX_REFUSED: Final = 64
"""So many messages of unknown sessions are refused before whoever reads has something else to do."""


class StreamBroken(ProtocolError):
    """A peer sent what cannot be part of its stream."""

    def __init__(self, peer: bytes, reason: str) -> None:
        super().__init__(reason)
        self.peer = peer


class SessionRouter:
    """The listening end of all connections to one socket. One thread may use it. A peer that sends a frame of more than
    `frame_bytes`, besides what this layer adds, is disconnected. What comes is acknowledged after `max_owed_bytes` of it at the
    latest. `heartbeats` are those of `Connection`."""

    def __init__(
        self, address: str, frame_bytes: int, keys: transport.KeyCheck | None = None, *,
        max_owed_bytes: int = MAX_OWED_BYTES, heartbeats: bool = False,
    ) -> None:  # fmt: skip
        self.socket = transport.router(address, frame_bytes + HEADER_BYTES, keys, heartbeats=heartbeats)
        self.max_owed_bytes = max_owed_bytes
        self.sender = transport.MessageSender()
        """Who has sent the last message."""
        self.streams: dict[bytes, ReliableStream] = {}
        self.half_open: dict[bytes, None] = {}
        """Streams whose peers nobody has said to `keep`, oldest first."""
        self.expected: set[bytes] = set()
        """Streams that their peers have yet to open."""
        self.refused = 0
        """Messages of unknown sessions."""

    def receive(self, *, polled: bool = False) -> tuple[bytes, Frames, int] | None:
        """The next message: its peer, its frames without the header (empty ones of a mere acknowledgement), and how many bytes
        that peer was sent and has not acknowledged; None if there is none, or after `MAX_REFUSED` of unknown sessions.
        `polled`: a poll has just found one. Raises `StreamBroken`."""
        most = self.refused + MAX_REFUSED
        while self.refused < most and (raw := transport.receive(self.socket, self.sender, polled=polled)) is not None:
            polled = False
            peer, frames = raw.pop(0), raw
            stream = self.streams.get(peer)
            try:
                if stream is not None and frames and (owes := stream.take(frames)) is not None:
                    if owes:
                        self._control(peer, stream.heartbeat())
                    return peer, frames, stream.unread_bytes
                first = frames[0] if frames else b""
                if stream is None and len(first) < HEADER_BYTES:
                    self.refuse(peer)
                    continue
                sequence, acknowledged = parse(first)
                if sequence in (OPEN_NEW, OPEN_AGAIN):
                    self._open(peer, stream, sequence, acknowledged)
                    continue
                if stream is None:
                    self.refuse(peer)
                    continue
                if sequence == UNNUMBERED:
                    stream.acknowledge(acknowledged)
                    frames[0] = first[HEADER_BYTES:]
                    return peer, frames, stream.unread_bytes
                stream.accept(sequence, acknowledged, 0)  # it was heard before, or raises
            except ProtocolError as error:
                raise StreamBroken(peer, str(error)) from None
        return None

    def _open(self, peer: bytes, stream: ReliableStream | None, sequence: int, heard: int) -> None:
        """A peer has connected: go on with its session, begin one, or say that there is none."""
        if sequence == OPEN_AGAIN and (stream is None or peer in self.expected):
            self.refuse(peer)
            return
        self.expected.discard(peer)
        if stream is None:
            stream = self._begin(peer)
        unheard = stream.unheard(heard)
        self._control(peer, stream.heartbeat(ACCEPTED))
        for frames in unheard:
            transport.send(self.socket, frames, peer)

    def _begin(self, peer: bytes) -> ReliableStream:
        while len(self.half_open) >= MAX_HALF_OPEN:
            self.forget(next(iter(self.half_open)))
        stream = self.streams[peer] = ReliableStream(self.max_owed_bytes)
        self.half_open[peer] = None
        return stream

    def expect(self, peer: bytes) -> None:
        """Keep what is sent to a peer that is known to connect soon, until it does."""
        if peer not in self.streams:
            self._begin(peer)
            self.expected.add(peer)

    def refuse(self, peer: bytes) -> None:
        """Tell a peer whose session is not known, or no longer."""
        self.refused += 1
        self._control(peer, ReliableStream().heartbeat(UNKNOWN))

    def _control(self, peer: bytes, first: bytes) -> None:
        transport.send(self.socket, [first], peer)

    def send(self, peer: bytes, frames: Frames) -> bool:
        """Send a message, now or when its peer has connected again. Returns False if there is no such session."""
        stream = self.streams.get(peer)
        if stream is None:
            return False
        transport.send(self.socket, stream.number(frames), peer)
        return True

    def send_unnumbered(self, peer: bytes, frames: Frames) -> None:
        """Send a message that may be lost, such as a heartbeat, and acknowledge what was heard."""
        stream = self.streams.get(peer)
        if stream is not None:
            transport.send(self.socket, [stream.heartbeat() + frames[0], *frames[1:]], peer)

    def acknowledge(self) -> None:
        """Acknowledge what was heard of all peers."""
        for peer, stream in self.streams.items():
            if stream.owed_messages:
                self._control(peer, stream.heartbeat())

    def keep(self, peer: bytes) -> None:
        """A peer has a session: its stream stays until it is forgotten."""
        self.half_open.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """End a peer's stream: whatever it says from now on is answered by `UNKNOWN`."""
        self.streams.pop(peer, None)
        self.half_open.pop(peer, None)
        self.expected.discard(peer)
