"""The connections between one worker and the others: reliable streams, like those to the dispatcher.

A worker listens at one socket, and connects to that of each worker to which it has something to say, so messages go one way on
a connection, and acknowledgements the other. A connection that breaks is opened again, and what the other end has not heard is
sent again. Whoever computes answers nothing meanwhile, so ZeroMQ's own threads exchange the heartbeats. A stream ends when the
dispatcher says that the worker at its other end is lost.

What is not acknowledged is kept: no more than what plans in flight send, and what was sent in the last moments. Nobody listens
for acknowledgements; they are read when something is sent, and at each `look`.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Final

from gt.errors import ProtocolError
from gt.wire import transport
from gt.wire.connection import Connection, SessionRouter, StreamBroken
from gt.wire.reliable_stream import Frames

from .peer_keys import PeerKeys

log = logging.getLogger("gt.worker")
MAX_OWED_PIECE_BYTES: Final = 64 << 10
"""Bytes of pieces that are heard before they are acknowledged at once: until then their sender keeps them, and with each piece
the whole array that it is part of."""
LOOK_SECONDS: Final = 0.25
"""The seconds between two looks while something is not acknowledged."""
RESUMING_LOOK_SECONDS: Final = 0.05
"""The same while a connection is opened again."""


class PeerConnections:
    """One worker's socket for what others send, and its connections to theirs. One thread uses it.

    Raises `AddressInUse` or `AddressRefused` if it cannot listen at `address`.
    """

    def __init__(self, address: str, keys: PeerKeys) -> None:
        self.keys = keys
        self.router = SessionRouter(
            address,
            transport.MAX_FRAME_BYTES,
            keys.check_for(address),
            max_owed_bytes=MAX_OWED_PIECE_BYTES,
            heartbeats=True,
        )
        self.number = -1
        """This worker's number, once the dispatcher has said it: nothing is sent before."""
        self.connections: dict[str, Connection] = {}
        """Those to other workers, by their addresses."""
        self.patience = math.inf
        """The seconds after which to `look` again, because something that was sent may not have been heard."""

    def send(self, address: str, frames: Frames) -> None:
        """Send a message to the worker at `address`. Never waits; it arrives once and in order, unless that worker is lost.
        Raises `ProtocolError` or `ConnectionFailed` if the address is none."""
        connection = self.connections.get(address)
        if connection is None:
            place, keys = self.keys.for_peer(address)
            identity = _prefix(self.number) + os.urandom(7)
            connection = self.connections[address] = Connection(
                place, identity=identity, lease=math.inf, keys=keys, heartbeats=True
            )
        if connection.failed:
            return
        connection.send(frames)
        self.patience = min(self.patience, LOOK_SECONDS)
        if connection.stream.unread_bytes >= MAX_OWED_PIECE_BYTES:
            _hear(connection)

    def receive(self) -> Frames | None:
        """The frames of the next message of another worker; None if there is none. Raises `ProtocolError`."""
        try:
            while (heard := self.router.receive()) is not None:
                peer, frames, _ = heard
                if len(frames[0]):
                    self.router.keep(peer)
                    return frames
        except StreamBroken as error:
            self.router.forget(error.peer)
            self.router.refuse(error.peer)
            raise
        return None

    def look(self) -> None:
        """Acknowledge what was heard, read acknowledgements, and open broken connections again; to be called every second, and
        after `patience`."""
        self.router.acknowledge()
        self.patience = math.inf
        for address, connection in [each for each in self.connections.items() if not each[1].failed]:
            _hear(connection)
            connection.look()
            if connection.failed:
                log.warning("nothing can be sent to the worker at %s: %s", address.partition("?")[0], connection.failed)
            elif connection.resuming:
                self.patience = RESUMING_LOOK_SECONDS
            elif connection.stream.kept:
                self.patience = min(self.patience, LOOK_SECONDS)

    def forget(self, worker: int, address: str) -> None:
        """A worker is lost: nothing is sent to its address any more, and nothing of it is heard."""
        connection = self.connections.pop(address, None)
        if connection is not None:
            connection.close()
        for peer in [peer for peer in self.router.streams if peer.startswith(_prefix(worker))]:
            self.router.forget(peer)

    def close(self) -> None:
        """Close all sockets, and remove the path at which this worker listens."""
        for connection in self.connections.values():
            connection.close()
        transport.unlink(self.router.socket)
        self.router.socket.close(linger=0)


def _prefix(worker: int) -> bytes:
    """What the identities of a worker's connections begin with."""
    return b"w" + worker.to_bytes(8, "big")


def _hear(connection: Connection) -> None:
    """Read acknowledgements."""
    try:
        while connection.receive() is not None:
            pass
    except ProtocolError as error:
        connection.failed = str(error)
