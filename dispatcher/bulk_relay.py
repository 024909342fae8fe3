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
from collections.abc import Callable, Collection
from typing import Any, Final

from gt.bounds import MAX_BULK_BYTES
from gt.dispatcher.state.events import ShellError
from gt.wire import transport
from gt.wire.connection import SessionRouter, StreamBroken

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
        self._errors: deque[ShellError] = deque()
        self._warned = False
        self._joined: set[bytes] = set()
        self._beat_at = 0.0

    def introduce(self, identity: Any) -> Any:
        """The public name of a peer that has said Hello with this identity. What is no identity stays as it is."""
        if not isinstance(identity, bytes) or not 0 < len(identity) <= MAX_IDENTITY_BYTES:
            return identity
        name = _public_name(identity)
        self.identities[name] = identity
        return name

    def keep(self, names: Collection[bytes]) -> None:
        """Only peers of these names have a session now."""
        known = {name: identity for name, identity in self.identities.items() if name in names}
        self.identities, self.members = known, frozenset(known.values())

    def start(self) -> None:
        """Start the thread, which runs as long as the process."""
        threading.Thread(target=self._run, name="gt-relay", daemon=True).start()

    def take(self) -> list[ShellError]:
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
            while time.monotonic() < self._beat_at and (heard := self.router.receive()) is not None:
                self._pass(heard[0], heard[1])
        except StreamBroken as error:
            self.router.forget(error.peer)
            self.router.refused += 1
            if not self._warned:
                self._warned = True
                log.warning("refused bulk data: %s; more of it is only counted", error)

    def _pass(self, sender: bytes, frames: list[Any]) -> None:
        if len(frames) != 3:
            return
        receiver, header, payload = frames
        identity, name = self.identities.get(bytes(receiver)), _public_name(sender)
        if name not in self.identities:
            self.router.refused += 1
            return
        if identity is None:
            return  # it has left
        try:
            self.router.expect(identity)  # it may say Hello before its bulk connection is there
            self.router.send(identity, [name, header, payload])
        except Exception as error:  # noqa: BLE001 — whatever it is, it is this frame's
            self._errors.append(ShellError(name, "bulk data", error, bulk=True))
            self.wake()

    def _tidy(self) -> None:
        """Forget who has left, and acknowledge what the others have said."""
        members = self.members
        for peer in members:
            self.router.keep(peer)
        for peer in self._joined.difference(members):
            self.router.forget(peer)
        self._joined = set(members)
        for peer in list(self.router.streams):
            self.router.send_unnumbered(peer, [b""])
