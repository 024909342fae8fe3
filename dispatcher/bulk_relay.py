"""The relay of bulk data: a thread that passes frames from peer to peer, off the dispatcher's main loop.

A frame on which it fails costs its sender's session. Should the thread itself end, large data would never arrive any more and
nobody would know: the dispatcher ends too, and is started again by whoever supervises it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from gt.bounds import MAX_BULK_BYTES, MAX_UNREAD_BULK_BYTES
from gt.dispatcher.state.events import Malformed, ShellError
from gt.errors import ProtocolError
from gt.wire import transport
from gt.wire.connection import SessionRouter, StreamBroken

from .bulk_window import BulkWindow

log = logging.getLogger("gt.dispatcher")
HEARTBEAT_SECONDS: Final = 1.0
"""Seconds between two acknowledgements to every peer, and between two looks at who has left."""
MAX_IDENTITY_BYTES: Final = 255
"""The longest identity that a socket can have."""


def _public_name(identity: bytes) -> bytes:
    """By which a peer is known to others, who cannot tell its identity from it."""
    return hashlib.blake2b(identity, digest_size=16).digest()


class BulkRelay:
    """Passes [sender, receiver, header, payload] on with the two swapped. `wake` is called when `take` has something to say.

    Peers know each other by public names. The identity of a peer's connection, with which it could be taken over, is known to
    the peer and to the relay alone.
    """

    def __init__(self, address: str, wake: Callable[[], object], keys: transport.KeyCheck | None = None) -> None:
        self.router = SessionRouter(address, MAX_BULK_BYTES, keys)
        self.address = transport.endpoint(self.router.socket)
        self.wake = wake
        self.failure: Exception | None = None
        """Why the thread has ended."""
        self.members: Collection[bytes] = ()
        """The identities of all who have a session; the dispatcher's thread replaces the collection."""
        self.identities: dict[bytes, bytes] = {}
        """The identities of those who have said Hello, by their public names."""
        self.workers: set[bytes] = set()
        """The public names of those of them who are workers: all others are clients, who say nothing to each other."""
        self.windows: dict[bytes, BulkWindow] = {}
        """What each client has under way, by identity."""
        self.shares: Mapping[bytes, int] = {}
        """How much each client may have unread, by identity, if not as much as any may; the dispatcher's thread replaces it."""
        self.unread: dict[bytes, deque[tuple[int, bytes, int]]] = {}
        """By worker, (sequence number, client, bytes) of what clients have sent and it has not acknowledged."""
        self.barred: set[bytes] = set()
        """Clients whose sessions are ending, because they keep to no bound: nothing passes from or to them any more."""
        self._errors: deque[ShellError | Malformed] = deque()
        self._warned = False
        self._ended: deque[bytes] = deque()
        """The identities whose sessions have ended, of which the thread has yet to forget all: a client that comes back begins
        anew by the same one."""
        self._beat_at = 0.0

    def introduce(self, identity: Any) -> Any:
        """The public name of a peer that has said Hello with this identity. What is no identity stays as it is."""
        if not isinstance(identity, bytes) or not 0 < len(identity) <= MAX_IDENTITY_BYTES:
            return identity
        name = _public_name(identity)
        self.identities[name] = identity
        return name

    def admit(self, worker: bytes) -> None:
        """A worker of this public name has joined."""
        self.workers.add(worker)

    def keep(self, names: Collection[bytes], shares: Mapping[bytes, int] = {}) -> None:
        """Only peers of these names have a session now: the thread forgets all others before it reads on. `shares`: how much
        each of them may have unread, if less than any may."""
        self._ended += [identity for name, identity in self.identities.items() if name not in names]
        known = {name: identity for name, identity in self.identities.items() if name in names}
        self.workers.intersection_update(known)
        self.identities, self.members = known, frozenset(known.values())
        self.shares = {known[name]: most for name, most in shares.items() if name in known}

    def renew(self, name: bytes) -> None:
        """The peer of this name has opened another session: the thread forgets all of the former one, before it reads on."""
        self._ended.append(self.identities[name])

    def start(self) -> None:
        """Start the thread, which runs as long as the process."""
        threading.Thread(target=self._run, name="gt-relay", daemon=True).start()

    def take(self) -> list[ShellError | Malformed]:
        """The errors since the last call. Raises the one with which the thread has ended."""
        if self.failure is not None:
            raise self.failure
        return [self._errors.popleft() for _ in range(len(self._errors))]

    def _run(self) -> None:
        try:
            poller = transport.poller()
            poller.register(self.router.socket, transport.READABLE)
            while True:
                poller.poll(int(HEARTBEAT_SECONDS * 1000))
                self._drain()
                if time.monotonic() >= self._beat_at:
                    self._beat_at = time.monotonic() + HEARTBEAT_SECONDS
                    self._tidy()
        except Exception as error:  # noqa: BLE001 — it is raised again in the main thread
            self.failure = error
            self.wake()

    def _drain(self) -> None:
        """Pass on what has arrived, until a heartbeat is due."""
        try:
            while time.monotonic() < self._beat_at and (heard := self._receive()) is not None:
                sender, frames, _ = heard
                self._pass(sender, frames)
                if sender in self.unread:
                    self._settle(sender)
                window = self.windows.get(sender)
                if window is not None and window.held:
                    self._release(sender, window)
        except StreamBroken as error:
            self.router.forget(error.peer)
            self.router.refused += 1
            if not self._warned:
                self._warned = True
                log.warning("refused bulk data: %s; more of it is only counted", error)

    def _receive(self) -> tuple[bytes, list[Any], int] | None:
        while self._ended:
            self._forget(self._ended.popleft())
        return self.router.receive()

    def _forget(self, peer: bytes) -> None:
        """End the stream of a peer whose session has ended, and count no more what it had under way."""
        self.router.forget(peer)
        self.windows.pop(peer, None)
        self.barred.discard(peer)
        for worker, waiting in self.unread.items():
            if any(client == peer for _, client, _ in waiting):
                self.unread[worker] = deque(each for each in waiting if each[1] != peer)

    def _pass(self, sender: bytes, frames: list[Any]) -> None:
        if len(frames) != 3:
            return
        receiver, header, payload = frames
        receiver, name = bytes(receiver), _public_name(sender)
        identity = self.identities.get(receiver)
        if name not in self.identities or sender in self.barred:
            self.router.refused += 1
            return
        if identity is None or identity in self.barred:
            return  # it has left
        by_worker = name in self.workers
        if not by_worker and receiver not in self.workers:
            self.router.refused += 1
            return
        window = self.windows.get(identity) if by_worker else None
        try:
            if window is not None:
                window.hears(header, len(payload))
            elif not by_worker and not self._may_pass(sender, frames):
                return
            self._send(sender, identity, [name, header, payload], by_worker=by_worker)
            if window is not None and window.held:
                self._release(identity, window)
        except ProtocolError as error:
            self.router.refused += 1
            if not by_worker:
                self._bar(sender, name, str(error))
        except Exception as error:  # noqa: BLE001 — whatever it is, it is this frame's
            self._errors.append(ShellError(name, "bulk data", error, bulk=True))
            self.wake()

    def _may_pass(self, client: bytes, frames: list[Any]) -> bool:
        """Whether a frame of a client passes now, rather than when the client has read more. Raises `ProtocolError`."""
        window = self.windows.get(client)
        if window is None:
            window = self.windows[client] = BulkWindow(self._share(client))
        stream = self.router.streams.get(client)
        return window.says(frames, 0 if stream is None else stream.unread_bytes)

    def _share(self, client: bytes) -> int:
        """How much a client may have unread."""
        return self.shares.get(client, MAX_UNREAD_BULK_BYTES)

    def _send(self, sender: bytes, receiver: bytes, frames: list[Any], *, by_worker: bool) -> None:
        """Send a frame. Raises `ProtocolError` if its sender, a client, has sent more than workers read."""
        self.router.expect(receiver)  # it may say Hello before its bulk connection is there
        self.router.send(receiver, frames)
        if by_worker:
            return
        size, window = sum(map(len, frames)), self.windows[sender]
        self.unread.setdefault(receiver, deque()).append((self.router.streams[receiver].sent, sender, size))
        window.sent += size
        if window.is_over_sent:
            self._settle(receiver)
            window.check_sent()

    def _release(self, client: bytes, window: BulkWindow) -> None:
        """Pass on what was held back, as far as workers have sent what they may, and the client has read."""
        name, stream = _public_name(client), self.router.streams.get(client)
        unread = 0 if stream is None else stream.unread_bytes
        try:
            while (frames := window.released(unread)) is not None:
                identity = self.identities.get(bytes(frames[0]))
                if identity is not None:
                    self._send(client, identity, [name, *frames[1:]], by_worker=False)
        except ProtocolError as error:
            self._bar(client, name, str(error))

    def _settle(self, worker: bytes) -> None:
        """Count no more what a worker has acknowledged, or will never read."""
        stream, waiting = self.router.streams.get(worker), self.unread[worker]
        while waiting and (stream is None or waiting[0][0] <= stream.acknowledged):
            _, client, size = waiting.popleft()
            if (window := self.windows.get(client)) is not None:
                window.sent -= size
        if stream is None:
            del self.unread[worker]

    def _bar(self, client: bytes, name: bytes, reason: str) -> None:
        """End the session of a client that keeps to no bound."""
        self.barred.add(client)
        self._errors.append(Malformed(name, f"bulk data: {reason}", bulk=True))
        self.wake()

    def _tidy(self) -> None:
        """Acknowledge what all have said, and pass on what may pass by now."""
        for peer in self.members:
            self.router.keep(peer)
        for worker in list(self.unread):
            self._settle(worker)
        for client, window in list(self.windows.items()):
            stream = self.router.streams.get(client)
            if stream is None:
                del self.windows[client]
                continue
            window.beat()
            window.most = self._share(client)
            if window.held:
                self._release(client, window)
        for peer in list(self.router.streams):
            self.router.send_unnumbered(peer, [b""])
