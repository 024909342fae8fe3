"""The bulk relay: passes frames of large data from peer to peer, in a thread of its own, off the dispatcher's main loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import Final

from gt.wire import transport
from gt.wire.connection import SessionRouter, StreamBroken

log = logging.getLogger("gt.dispatcher")
HEARTBEAT_SECONDS: Final = 1.0
"""Seconds between two acknowledgements to every peer, and between two looks at who has left."""


class BulkRelay:
    """A router of frames [receiver, header, payload], in which it replaces the receiver by the sender."""

    def __init__(self, address: str) -> None:
        self.router = SessionRouter(address)
        self.address = transport.endpoint(self.router.socket)
        self.members: Collection[bytes] = ()
        """The identities of all who have a session; the dispatcher's thread replaces the collection."""
        self.warned = False
        self._joined: set[bytes] = set()
        self._beat_at = 0.0

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        threading.Thread(target=self._run, name="gt-relay", daemon=True).start()

    def _run(self) -> None:
        poller = transport.poller()
        poller.register(self.router.socket, transport.READABLE)
        while True:
            poller.poll(int(HEARTBEAT_SECONDS * 1000))
            try:
                self._pass_on()
            except StreamBroken as error:
                self.router.forget(error.peer)
                self.router.refused += 1
                if not self.warned:
                    self.warned = True
                    log.warning("refused bulk data: %s; more of it is only counted", error)
            now = time.monotonic()
            if now >= self._beat_at:
                self._beat_at = now + HEARTBEAT_SECONDS
                self._tidy()

    def _pass_on(self) -> None:
        while (heard := self.router.receive()) is not None:
            sender, frames = heard
            if len(frames) == 3:
                receiver, header, payload = frames
                self.router.send(bytes(receiver), [sender, header, payload])

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
