"""ZeroMQ sockets for all components: the only module that imports zmq.

Every socket has unlimited queues: GT's own credits bound what is in flight, and nothing is dropped silently. Sending to a peer
that is gone fails visibly. Control, bulk and worker-to-worker traffic each have sockets of their own.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket as socketlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import zmq

from gt.errors import ConnectionFailed, GTError

MAX_FRAME_BYTES: Final = (1 << 31) + (1 << 20)
"""The largest frame, in bytes, that a socket accepts; a peer that sends a larger one is disconnected."""

LOOP_BACK_TIMEOUT_MS: Final = 4000


_DONTWAIT: Final = int(zmq.DONTWAIT)
_SNDMORE: Final = int(zmq.SNDMORE | zmq.DONTWAIT)
_READABLE: Final = int(zmq.POLLIN)
"""As plain integers, because combining enumeration members takes as long as reading the next frame from a socket."""

_contexts: dict[int, zmq.Context[Any]] = {}


class AddressInUse(GTError, OSError):
    """Another process listens at the address."""


class AddressRefused(GTError, ValueError):
    """An address that GT does not bind or does not understand."""


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


def _socket(kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context().socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    return socket


def check_bind(address: str) -> None:
    """Raise `AddressRefused` unless `address` is `ipc://…` or TCP on loopback: without keys anybody could send instructions."""
    if address.startswith("ipc://"):
        return
    if not address.startswith("tcp://"):
        raise AddressRefused(f"{address!r} is no address: say tcp://127.0.0.1:7000 or ipc:///path")
    host = address[len("tcp://") :].rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise AddressRefused(
            f"refusing to bind {address}: anybody who reaches it could use this machine, and there are no keys yet; "
            'bind a loopback address such as tcp://127.0.0.1:7000 and tunnel to it (README, "Workers elsewhere")'
        )


def bind(kind: int, address: str) -> zmq.Socket[bytes]:
    """A socket listening at `address` (checked). Raises `AddressInUse` or `AddressRefused`."""
    return _bound(_socket(kind), address)


def _bound(socket: zmq.Socket[bytes], address: str) -> zmq.Socket[bytes]:
    """Make a socket listen; close it if it cannot."""
    try:
        check_bind(address)
        if address.startswith("ipc://") and _answers(address.removeprefix("ipc://")):
            raise AddressInUse(_IN_USE.format(address))  # ZeroMQ would take the path away from whoever listens there
    except GTError:
        socket.close()
        raise
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        if error.errno == zmq.EADDRINUSE:
            raise AddressInUse(_IN_USE.format(address)) from None
        raise AddressRefused(f"cannot listen at {address}: {error.strerror or error}") from None
    return socket


_IN_USE: Final = "{} is in use by another process; choose another --address"


def _answers(path: str) -> bool:
    """Whether a process listens at a socket's path."""
    with socketlib.socket(socketlib.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def unlink(socket: zmq.Socket[bytes]) -> None:
    """Remove the path of a listening `ipc` socket, which ZeroMQ leaves behind when the process ends."""
    address = endpoint(socket)
    if address.startswith("ipc://"):
        Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


def router(address: str) -> zmq.Socket[bytes]:
    """A listening ROUTER that reports when a peer is gone."""
    socket = bind(zmq.ROUTER, address)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return socket


def publisher(address: str) -> zmq.Socket[bytes]:
    """A listening XPUB that reports subscriptions and their ends, and leaves the choice of topics to its owner."""
    socket = _socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_MANUAL, 1)
    return _bound(socket, address)


def subscriber(address: str) -> zmq.Socket[bytes]:
    """An XSUB connected to a `publisher`, which decides the topics that it receives."""
    return _connect(zmq.XSUB, address)


def subscribe(subscriber: zmq.Socket[bytes], ticket: bytes, wanted: bool = True) -> None:
    """Send a ticket to the publisher, or withdraw it."""
    subscriber.send((b"\x01" if wanted else b"\x00") + ticket)


def subscription(publisher: zmq.Socket[bytes]) -> tuple[bytes, bool] | None:
    """A ticket that arrived (with True), or that was withdrawn or whose connection is gone (with False); None if there is
    none."""
    frames = receive(publisher)
    if not frames or not frames[0]:
        return None
    return bytes(frames[0][1:]), frames[0][:1] == b"\x01"


def set_topic(publisher: zmq.Socket[bytes], topic: bytes, wanted: bool = True) -> None:
    """Give the sender of the last `subscription` a topic, or take it away; does nothing if the sender is gone."""
    publisher.setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, topic)


def publish(publisher: zmq.Socket[bytes], topic: bytes, frames: list[Any]) -> None:
    """Send a message to all receivers of a topic, which precedes its first frame. Never waits."""
    if len(frames) == 1:
        publisher.send(topic + frames[0], _DONTWAIT)
    else:
        send(publisher, [topic + frames[0], *frames[1:]])


def pull(address: str) -> zmq.Socket[bytes]:
    """A listening PULL, for pieces from other workers."""
    return bind(zmq.PULL, address)


def _connect(kind: int, address: str, identity: bytes = b"") -> zmq.Socket[bytes]:
    socket = _socket(kind)
    if identity:
        socket.setsockopt(zmq.IDENTITY, identity)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise ConnectionFailed(
            f"cannot connect to {address!r}: {error}; an address is tcp://host:port or ipc:///path"
        ) from None
    return socket


def dealer(address: str, identity: bytes) -> zmq.Socket[bytes]:
    """A DEALER connected to a dispatcher."""
    return _connect(zmq.DEALER, address, identity)


def push(address: str) -> zmq.Socket[bytes]:
    """A PUSH connected to another worker."""
    return _connect(zmq.PUSH, address)


def new_identity() -> bytes:
    """An unguessable name for a connection; it never begins with a zero byte, which ZeroMQ reserves."""
    return b"g" + os.urandom(15)


def endpoint(socket: zmq.Socket[bytes]) -> str:
    """The address of a listening socket, with the port that was chosen for it."""
    return str(socket.getsockopt(zmq.LAST_ENDPOINT).decode())  # type: ignore[union-attr]


def send(socket: zmq.Socket[bytes], frames: list[Any]) -> bool:
    """Send without waiting; False if the peer is gone. Large frames are not copied."""
    try:
        for frame in frames[:-1]:
            socket.send(frame, _SNDMORE)
        last = frames[-1]
        socket.send(last, _DONTWAIT, copy=len(last) < 65536)
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

    __slots__ = ("frame",)

    def __init__(self) -> None:
        self.frame: zmq.Frame | None = None

    def credentials(self, address: str) -> PeerCredentials:
        """Who that was, on a socket that listens at `address`."""
        if self.frame is None:
            return PeerCredentials()
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


def receive(socket: zmq.Socket[bytes], sender: MessageSender | None = None) -> list[Any] | None:
    """The frames of one message (large ones uncopied, in ZeroMQ's memory), or None if there is none. `sender` is told who has
    sent it."""
    if not socket.get(zmq.EVENTS) & _READABLE:  # type: ignore[operator]  # cheaper than being told by an exception
        return None
    frames: list[Any] = []
    more = True
    while more:
        frame = socket.recv(_DONTWAIT, copy=False)
        frames.append(frame.bytes if len(frame) < 65536 else frame.buffer)
        more = frame.more
    if sender is not None:
        sender.frame = frame
    return frames


def loop_back(bulk: zmq.Socket[bytes], identity: bytes) -> None:
    """Wait until the relay knows this end of a bulk socket, because messages for unknown ends are lost. Raises
    `ConnectionFailed`."""
    send(bulk, [identity, b"", b""])
    if not bulk.poll(LOOP_BACK_TIMEOUT_MS):
        raise ConnectionFailed(f"the dispatcher's bulk socket did not answer within {LOOP_BACK_TIMEOUT_MS / 1000:g} s")
    receive(bulk)


def poller() -> zmq.Poller:
    """A poller for sockets and file descriptors."""
    return zmq.Poller()


READABLE: Final = zmq.POLLIN
Socket = zmq.Socket[bytes]
