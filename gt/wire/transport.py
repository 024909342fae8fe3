"""Sockets for all components: libzmq's, or those of `gt/unix_sockets`, which speak its protocol. No other module imports zmq.

At `ipc` addresses control and bulk sockets are without libzmq. Where its own threads look after connections, between workers and
for what is published, they are libzmq's there too. A listening TCP socket that is given a secret key takes only peers whose keys
are accepted (CURVE). Queues are unlimited, because GT's own credits bound what is in flight, and nothing is dropped silently; but
a listening socket reads `READ_AHEAD` messages of each connection at most before somebody takes them. Sending to a peer that is
gone fails visibly. Control, bulk and worker-to-worker traffic each have sockets of their own.
"""

from __future__ import annotations

import logging
import os
import re
import select
import socket as socketlib
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import zmq
from zmq.backend import Socket as BackendSocket
from zmq.utils import z85

from gt.errors import ConnectionFailed, GTError
from gt.unix_sockets.dealer import UnixDealer
from gt.unix_sockets.router import UnixRouter
from gt.unix_sockets.stream_socket import StreamSocket

from .addresses import (
    AddressInUse,
    AddressRefused,
    HostNotFound,
    check_bind,
    with_number,
)  # fmt: skip

MAX_FRAME_BYTES: Final = (1 << 31) + (1 << 20)
"""The largest frame, in bytes, that a socket accepts; a peer that sends a larger one is disconnected."""

MAX_UNIX_FRAME_BYTES: Final = (1 << 31) - 1
"""The same on a Unix socket."""
CURVE_FRAME_BYTES: Final = 64
"""At least what encryption adds to a frame: 33 bytes in CurveZMQ (RFC 26, the MESSAGE command)."""
CURVE_INITIATE_BYTES: Final = 512
"""At least the largest message of CurveZMQ's handshake: INITIATE has 257 bytes and what is said of the socket."""
READ_AHEAD: Final = 256
"""The messages of a connection that libzmq's thread reads before a listening socket's owner takes them, as many as a dispatcher
takes at once. For whoever sends without end it would read and decrypt without end; the system holds up what is not read."""
MAX_TICKET_BYTES: Final = 256
"""The largest subscription, in bytes."""
LARGE_FRAME_BYTES: Final = 65536
"""From here on a frame is neither copied when it is sent nor when it is received."""
MAX_PARTS: Final = 8
"""Frames of one message that are kept, more than any message of GT has; a message with so many is refused by whoever reads it."""

log = logging.getLogger(__name__)
_get: Final = BackendSocket.get
_send: Final = BackendSocket.send
"""What `Socket.send` calls, without what it does before for sockets of other kinds."""
_DONTWAIT: Final = int(zmq.DONTWAIT)
_SNDMORE: Final = int(zmq.SNDMORE | zmq.DONTWAIT)
_READABLE: Final = int(zmq.POLLIN)
_SRCFD: Final = int(zmq.SRCFD)
_EVENTS: Final = int(zmq.EVENTS)
"""As plain integers, because combining enumeration members takes as long as reading the next frame from a socket."""

_NEVER_MS: Final = 24 * 3600 * 1000
"""Milliseconds after which ZeroMQ would connect again by itself: longer than a session without contact lives."""

_HEARTBEAT_MS: Final = 5_000
"""Milliseconds between two of ZeroMQ's own heartbeats."""
_HEARTBEAT_TIMEOUT_MS: Final = 20_000
"""Milliseconds after which a connection ends whose other end does not answer a heartbeat: on a slow link it lies behind several
MiB in the buffers of the system."""
_CONNECT_TIMEOUT_MS: Final = 2_000
"""Milliseconds after which an attempt to connect that neither fails nor succeeds is given up."""

_contexts: dict[int, zmq.Context[Any]] = {}


def facts() -> dict[str, Any]:
    """The version of ZeroMQ, and whether it can encrypt."""
    return {"libzmq": zmq.zmq_version(), "pyzmq": zmq.pyzmq_version(), "curve": bool(zmq.has("curve"))}


def context() -> zmq.Context[Any]:
    """The process' ZeroMQ context; a forked child gets its own."""
    pid = os.getpid()
    if pid not in _contexts:
        _contexts.clear()
        _contexts[pid] = zmq.Context()
    return _contexts[pid]


# keys


class CurveKeys(NamedTuple):
    """A pair of keys, and the public key of whom to connect to, all as text."""

    public: str
    secret: str
    server: str = ""


def key_pair() -> CurveKeys:
    """A new pair of keys. Raises `AddressRefused` if ZeroMQ cannot encrypt."""
    if not zmq.has("curve"):
        raise AddressRefused(
            "this ZeroMQ was built without CURVE, so there are no keys: install pyzmq's own wheel, listen at ipc:///PATH, or "
            "say --insecure on a loopback address"
        )
    public, secret = zmq.curve_keypair()
    return CurveKeys(public.decode(), secret.decode())


KEY_BYTES: Final = 32


def key_pair_of(secret: bytes) -> CurveKeys:
    """The pair that a secret key belongs to."""
    text = z85.encode(secret)
    return CurveKeys(zmq.curve_public(text).decode(), text.decode())


def key_bytes(key: str) -> bytes:
    """The bytes of a key."""
    return z85.decode(key)


def key_text(key: bytes) -> str:
    """A key as text. Raises ValueError unless it has `KEY_BYTES` bytes."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return z85.encode(key).decode()


_HANDSHAKE_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""NO_DETAIL: a peer without a key may hang up first, when it sees that one is needed."""


class KeyCheck:
    """The secret key of listening sockets, and which public keys they accept; a thread of its own asks `accepts`.

    One process has one.
    """

    def __init__(self, secret: str, accepts: Callable[[str], bool]) -> None:
        self.secret = secret
        self.accepts = accepts
        asked: zmq.Socket[bytes] = context().socket(zmq.REP)
        asked.bind("inproc://zeromq.zap.01")
        threading.Thread(target=self._answer, args=(asked,), name="gt-keys", daemon=True).start()

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket that is not bound yet accept these peers alone."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, b"gt")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer nobody is accepted

    def _answer(self, asked: zmq.Socket[bytes]) -> None:
        """Answer ZeroMQ's questions (ZAP, rfc.zeromq.org/spec/27) about peers that want to connect."""
        while True:
            _, request, _, _, _, mechanism, *given = asked.recv_multipart()
            known = mechanism == b"CURVE" and len(given) == 1 and len(given[0]) == 32
            key = z85.encode(given[0]) if known else b""
            try:
                well = bool(key) and self.accepts(key.decode())
            except Exception:  # this thread must not end: without it nobody could connect any more
                log.exception("a key could not be looked up; its peer is refused")
                well = False
            status = (b"200", b"", key) if well else (b"400", b"unknown key", b"")
            asked.send_multipart([b"1.0", request, *status, b""])


def _socket(kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context().socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    return socket


def _bound(socket: zmq.Socket[bytes], address: str, keys: KeyCheck | None) -> zmq.Socket[bytes]:
    """Make a socket listen; close it if it cannot."""
    try:
        check_bind(address, keyed=keys is not None)
        if address.startswith("ipc://") and _answers(address.removeprefix("ipc://")):
            raise AddressInUse(_IN_USE.format(address))  # ZeroMQ would take the path away from whoever listens there
    except GTError:
        socket.close()
        raise
    if keys is not None and address.startswith("tcp://"):
        keys.guard(socket)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        if error.errno == zmq.EADDRINUSE:
            raise AddressInUse(_IN_USE.format(address)) from None
        raise AddressRefused(f"cannot listen at {address}: {error.strerror or error}") from None
    return socket


_IN_USE: Final = "{} is in use by another process; choose another --address"


def _unix_router(address: str, frame_bytes: int) -> UnixRouter:
    path = address.removeprefix("ipc://")
    if _answers(path):
        raise AddressInUse(_IN_USE.format(address))
    try:
        return UnixRouter(path, frame_bytes)
    except OSError as error:
        raise AddressRefused(f"cannot listen at {address}: {error.strerror or error}") from None


def _answers(path: str) -> bool:
    """Whether a process listens at a socket's path."""
    with socketlib.socket(socketlib.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _exchange_heartbeats(socket: zmq.Socket[bytes]) -> None:
    """Have ZeroMQ's own threads exchange heartbeats on a socket's connections, whatever the threads that use it do, and end
    those whose other end is silent."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)


def unlink(socket: Socket) -> None:
    """Remove the path of a listening `ipc` socket, which ZeroMQ leaves behind when the process ends."""
    if isinstance(socket, UnixRouter):
        socket.unlink()
        return
    address = endpoint(socket)
    if address.startswith("ipc://"):
        Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


def router(
    address: str, frame_bytes: int = MAX_FRAME_BYTES, keys: KeyCheck | None = None, *, heartbeats: bool = False
) -> Socket:
    """A listening socket that knows its peers by their identities, and reports when one is gone. A peer that sends a frame of
    more than `frame_bytes` is disconnected. With `keys`, peers on TCP need one. With `heartbeats` ZeroMQ's own threads look
    after its connections, and read all that comes. Raises `AddressInUse` or `AddressRefused`."""
    if address.startswith("ipc://") and not heartbeats:
        return _unix_router(address, frame_bytes)
    socket = _socket(zmq.ROUTER)
    socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes + (0 if keys is None else CURVE_FRAME_BYTES))
    if heartbeats:
        _exchange_heartbeats(socket)  # which would wait behind what is not read
    else:
        socket.setsockopt(zmq.RCVHWM, READ_AHEAD)
    socket = _bound(socket, address, keys)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a new connection of a peer replaces its last, which may seem to live
    return socket


def publisher(address: str, keys: KeyCheck | None = None) -> zmq.Socket[bytes]:
    """A listening XPUB that reports subscriptions and their ends, and leaves the choice of topics to its owner. ZeroMQ's own
    threads look after its connections, or one that is silent would be sent to for ever."""
    socket = _socket(zmq.XPUB)
    _exchange_heartbeats(socket)
    socket.setsockopt(zmq.XPUB_MANUAL, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_TICKET_BYTES + (0 if keys is None else CURVE_INITIATE_BYTES))
    return _bound(socket, address, keys)


def subscription(publisher: Socket, sender: MessageSender | None = None) -> tuple[bytes, bool] | None:
    """A ticket that arrived (with True), or that was withdrawn or whose connection is gone (with False); None if there is
    none. `sender` is told who has sent it."""
    frames = receive(publisher, sender)
    if not frames or not frames[0]:
        return None
    return bytes(frames[0][1:]), frames[0][:1] == b"\x01"


def set_topic(publisher: zmq.Socket[bytes], topic: bytes, wanted: bool = True) -> None:
    """Give the sender of the last `subscription` a topic, or take it away; does nothing if the sender is gone."""
    publisher.setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, topic)


def publish(publisher: zmq.Socket[bytes], prefix: bytes, frames: list[Any]) -> None:
    """Send a message to all receivers of a topic; `prefix`, which begins with it, precedes the first frame. Never waits."""
    if len(frames) == 1:
        publisher.send(prefix + frames[0], _DONTWAIT)
    else:
        send(publisher, [prefix + frames[0], *frames[1:]])


def _connected(socket: zmq.Socket[bytes], address: str, keys: CurveKeys | None) -> None:
    """Connect a socket, which happens in the background once its host's name is looked up. Raises `ConnectionFailed` where the
    address is none, `HostNotFound` where nobody knows the host."""
    address = with_number(address, _CONNECT_TIMEOUT_MS / 1000)
    if keys is not None and address.startswith("tcp://"):
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise ConnectionFailed(
            f"cannot connect to {address!r}: {error}; an address is tcp://host:port or ipc:///path"
        ) from None


class SingleConnection:
    """A socket that is connected once. When its connection breaks there is no other (`broken`), because ZeroMQ would lose
    what was in flight and say nothing; what has arrived by then can still be read. With `heartbeats` ZeroMQ's own threads find
    that out. One that nobody closes is closed when nothing refers to it any more. Raises `ConnectionFailed`."""

    def __init__(self, socket: zmq.Socket[bytes], address: str, keys: CurveKeys | None, *, heartbeats: bool) -> None:
        self.socket = socket
        socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        if heartbeats:
            _exchange_heartbeats(socket)
            socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS)
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
        self._process = os.getpid()
        self._close = weakref.finalize(self, _close_in, self._process, socket, self._monitor)
        self._close.atexit = False
        self._failed = False
        try:
            _connected(socket, address, keys)
        except HostNotFound:
            self._failed = True  # as where nobody listens: it may be known later
        except ConnectionFailed:
            self.close()
            raise

    @property
    def broken(self) -> bool:
        """Whether the connection has ended, or could not be made."""
        return self._failed or bool(self._monitor.get(zmq.EVENTS) & _READABLE)  # type: ignore[operator]

    def close(self, linger: int = 0) -> None:
        """Close it; what was sent may leave within `linger` milliseconds."""
        if self._close.detach():
            _close_in(self._process, self.socket, self._monitor, linger)


def close_monitored(socket: Socket, monitor: zmq.Socket[bytes] | None, linger: int = 0) -> None:
    """Close a socket and what tells of its connections, in the one order that is safe: ZeroMQ's own thread waits for ever where
    it has something to say to a monitor that is closed already, and then no connection of the process is served any more."""
    if monitor is not None:
        if isinstance(socket, zmq.Socket) and not socket.closed:
            socket.disable_monitor()
        monitor.close(linger=0)
    socket.close(linger=linger)


def _close_in(process: int, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], linger: int = 0) -> None:
    """`close_monitored` in the process that has made them, and not in its forked children."""
    if os.getpid() == process:
        close_monitored(socket, monitor, linger)


class Dealer:
    """A connection to a `router`, which must have been made with the same `heartbeats`."""

    def __init__(
        self, address: str, identity: bytes, keys: CurveKeys | None = None, *, heartbeats: bool = False
    ) -> None:
        self.socket: Socket
        self._end: UnixDealer | SingleConnection
        if address.startswith("ipc://") and not heartbeats:
            self.socket = self._end = UnixDealer(address.removeprefix("ipc://"), identity, MAX_UNIX_FRAME_BYTES)
        else:
            self.socket = _socket(zmq.DEALER)
            self.socket.setsockopt(zmq.IDENTITY, identity)
            self._end = SingleConnection(self.socket, address, keys, heartbeats=heartbeats)

    @property
    def broken(self) -> bool:
        """Whether the connection has ended, or could not be made."""
        return self._end.broken

    def close(self, linger: int = 0) -> None:
        """Close it; what was sent may leave within `linger` milliseconds."""
        self._end.close(linger)


class SubscriberSocket(SingleConnection):
    """An XSUB connected to a `publisher`, which decides the topics that it receives."""

    def __init__(self, address: str, keys: CurveKeys | None = None) -> None:
        super().__init__(_socket(zmq.XSUB), address, keys, heartbeats=True)
        self.receive = partial(receive, self.socket)
        """Returns the frames of the next message; None if there is none."""

    def subscribe(self, ticket: bytes, wanted: bool = True) -> None:
        """Send a ticket to the publisher, or withdraw it."""
        self.socket.send((b"\x01" if wanted else b"\x00") + ticket)


def new_identity() -> bytes:
    """An unguessable name for a connection; it never begins with a zero byte, which ZeroMQ reserves."""
    return b"g" + os.urandom(15)


def endpoint(socket: Socket) -> str:
    """The address of a listening socket, with the port that was chosen for it."""
    if isinstance(socket, UnixRouter):
        return f"ipc://{socket.path}"
    assert isinstance(socket, zmq.Socket), "a dealer does not listen"
    return str(socket.getsockopt(zmq.LAST_ENDPOINT).decode())  # type: ignore[union-attr]


def descriptor(socket: Socket) -> int:
    """The number of what is readable when something may have come; -1 if it is closed, maybe just now by another thread."""
    try:
        return socket.fileno()
    except zmq.ZMQError:
        return -1


def send(socket: Socket, frames: list[Any], peer: bytes | None = None) -> bool:
    """Send without waiting, by a `router` to this `peer`; False if the peer is gone."""
    if isinstance(socket, UnixDealer):
        return socket.send(frames)
    if isinstance(socket, UnixRouter):
        return peer is not None and socket.send(frames, peer)
    try:
        if peer is not None:
            _send(socket, peer, _SNDMORE)
        if len(frames) > 1:
            for frame in frames[:-1]:
                _send(socket, frame, _SNDMORE)
        last = frames[-1]
        _send(socket, last, _DONTWAIT, len(last) < LARGE_FRAME_BYTES)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise
    return True


class PeerCredentials(NamedTuple):
    """What a socket knows of a message's sender that the sender cannot choose: the user and process at the other end of an
    `ipc` connection (-1 and 0: unknown), or the public key, as text, with which it has proved itself on TCP."""

    uid: int = -1
    pid: int = 0
    key: str = ""


class MessageSender:
    """The sender of the message that `receive` has returned last."""

    __slots__ = ("finished", "frame")

    def __init__(self) -> None:
        self.frame: zmq.Frame | StreamSocket | None = None
        self.finished: set[int] | None = None
        """The descriptors of connections by which whole messages have come, while somebody wants to know."""

    def descriptor(self) -> int:
        """That of the connection by which the message has come; -1 if it is not known."""
        if not isinstance(self.frame, zmq.Frame):
            return -1
        try:
            return int(self.frame.get(_SRCFD))
        except zmq.ZMQError:  # the end of a subscription has none
            return -1

    def credentials(self, address: str) -> PeerCredentials:
        """Who that was, on a socket that listens at `address`."""
        if self.frame is None:
            return PeerCredentials()
        if isinstance(self.frame, StreamSocket):
            return PeerCredentials(*self.frame.process)
        if not address.startswith("ipc://"):
            return PeerCredentials(key=_property(self.frame, "User-Id"))
        found = _PEER_PROCESS.search(_property(self.frame, "Peer-Address"))
        return PeerCredentials() if found is None else PeerCredentials(int(found[1]), int(found[2]))


_PEER_PROCESS: Final = re.compile(r":(\d+):\d+:(\d+)$")
"""User, group and process at the end of the address that libzmq gives the peers of a Unix socket."""


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""


def receive(socket: Socket, sender: MessageSender | None = None, *, polled: bool = False) -> list[Any] | None:
    """The frames of one message (large ones uncopied, in the memory in which they came), or None if there is none; on a `router`,
    its sender's identity before them. `sender` is told who has sent it. `polled`: a poll has just found one."""
    if isinstance(socket, UnixDealer):
        return socket.receive(polled=polled)
    if isinstance(socket, UnixRouter):
        if (found := socket.receive(polled=polled)) is None:
            return None
        if sender is not None:
            sender.frame = found[0]
        return [found[0].identity, *found[1]]
    if not polled and not zmq.zmq_poll([(socket, _READABLE)], 0):  # cheaper than an exception, or asking for its events
        return None
    try:
        frame = socket.recv(_DONTWAIT, copy=False)
    except zmq.Again:
        return None
    frames: list[Any] = [frame.bytes if len(frame) < LARGE_FRAME_BYTES else frame.buffer]
    while frame.more:
        frame = socket.recv(_DONTWAIT, copy=False)
        if len(frames) < MAX_PARTS:
            frames.append(frame.bytes if len(frame) < LARGE_FRAME_BYTES else frame.buffer)
    if sender is not None:
        sender.frame = frame
        if (finished := sender.finished) is not None:
            finished.add(sender.descriptor())
    return frames


class ConnectionEvent(NamedTuple):
    """Something that happened to the connections of a listening socket."""

    kind: int
    """`ACCEPTED`, `ENDED`, or `REFUSED`: its peer has no key, or an unknown one."""
    descriptor: int
    """Of what was accepted or has ended."""


ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
ENDED: Final = int(zmq.EVENT_DISCONNECTED)
REFUSED: Final = int(_HANDSHAKE_FAILURES)


def limit_connections(listening: Socket, limit: int) -> zmq.Socket[bytes] | None:
    """Have a listening socket hang up connections with a descriptor from `limit` on. Where that is ZeroMQ's somebody else must do
    it: a socket that tells of each connection that is accepted, of its end, and of those that are refused because of their keys.
    It may be read in another thread."""
    if isinstance(listening, UnixRouter):
        listening.limit, listening.room = limit, limit // 2  # two routers of a process share its descriptors
        return None
    assert isinstance(listening, zmq.Socket), "a dealer does not listen"
    return listening.get_monitor_socket(ACCEPTED | ENDED | REFUSED)


def connection_event(monitor: zmq.Socket[bytes]) -> ConnectionEvent | None:
    """The next of these events; None if there is none yet."""
    frames = receive(monitor)
    if frames is None:
        return None
    kind = int.from_bytes(frames[0][:2], sys.byteorder)
    return ConnectionEvent(
        kind if kind in (ACCEPTED, ENDED) else REFUSED, int.from_bytes(frames[0][2:6], sys.byteorder, signed=True)
    )


def port(listening: Socket) -> int:
    """The TCP port at which a socket listens; -1 if it is another kind of address."""
    address = endpoint(listening)
    return int(address.rpartition(":")[2]) if address.startswith("tcp://") else -1


def max_frame_bytes(listening: Socket) -> int:
    """The largest frame that a listening socket accepts."""
    if isinstance(listening, UnixRouter):
        return listening.frame_bytes
    assert isinstance(listening, zmq.Socket), "a dealer does not listen"
    return int(listening.getsockopt(zmq.MAXMSGSIZE))


def refused(listening: Socket) -> int:
    """How many connections a listening socket has ended or refused by itself, as far as that is known."""
    return listening.refused if isinstance(listening, UnixRouter) else 0


def take_accept_seconds(listening: Socket) -> float:
    """How long the thread that reads a listening socket has worked on new connections since the last call: 0 where threads of
    ZeroMQ do that."""
    if not isinstance(listening, UnixRouter):
        return 0.0
    seconds, listening.accept_seconds = listening.accept_seconds, 0.0
    return seconds


class Poller:
    """Waits for sockets and file descriptors to become readable."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._descriptors: dict[Any, int] = {}
        """Of all that is registered."""
        self._registered: dict[int, Any] = {}
        self._unix: list[UnixDealer | UnixRouter] = []
        self._zmq: list[zmq.Socket[bytes]] = []

    def register(self, source: Any, _flags: int = 0) -> None:
        """Wait for this socket or descriptor, too."""
        descriptor = source if isinstance(source, int) else int(source.fileno())
        self._descriptors[source] = descriptor
        self._registered[descriptor] = source
        self._poll.register(descriptor, select.POLLIN)
        if isinstance(source, zmq.Socket):
            self._zmq.append(source)
        elif isinstance(source, UnixDealer | UnixRouter):
            self._unix.append(source)

    def unregister(self, source: Any) -> None:
        """Wait for it no longer; it may be closed already."""
        descriptor = self._descriptors.pop(source)
        del self._registered[descriptor]
        self._poll.unregister(descriptor)
        for some in (self._zmq, self._unix):
            if source in some:
                some.remove(source)

    def __contains__(self, source: Any) -> bool:
        return source in self._descriptors

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """What is readable, at once or within so many milliseconds (None: whenever that is). It may return nothing earlier."""
        ready: list[tuple[Any, int]] = [(each, READABLE) for each in self._unix if each.has_more]
        ready += [(each, READABLE) for each in self._zmq if _has_message(each)]
        for descriptor, _ in self._poll.poll(0 if ready else timeout):
            source = self._registered[descriptor]
            if not isinstance(source, zmq.Socket) or _has_message(source):
                ready.append((source, READABLE))
        return ready


def _has_message(socket: zmq.Socket[bytes]) -> bool:
    return bool(_get(socket, _EVENTS) & _READABLE)  # type: ignore[operator]


def poller() -> Poller:
    """A poller for sockets and file descriptors."""
    return Poller()


READABLE: Final = int(zmq.POLLIN)
Socket = zmq.Socket[bytes] | UnixDealer | UnixRouter
