"""Connections between workers, over real sockets in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy

from gt.errors import ProtocolError
from gt.wire import transport
from gt.worker.transfer.peer_connections import MAX_OWED_PIECE_BYTES, PeerConnections
from gt.worker.transfer.peer_keys import PeerKeys

TURNS = 4000


class NoKeys(PeerKeys):
    """On TCP as on a Unix socket: one process can guard one socket only."""

    def check_for(self, listen: str | None) -> None:
        return None


class Pair:
    """Worker 7, which sends to worker 8 at `address`, and what 8 has heard."""

    def __init__(self, listening: str, own: str) -> None:
        self.sender = PeerConnections(own, PeerKeys())
        self.sender.number = 7
        self.receiver = PeerConnections(listening, NoKeys())
        self.address = self.endpoint
        self.heard: list[bytes] = []

    @property
    def endpoint(self) -> str:
        return transport.endpoint(self.receiver.router.socket)

    def send(self, *frames: bytes) -> None:
        self.sender.send(self.address, list(frames))

    def until(self, condition: Callable[[], bool]) -> None:
        """Let both ends work until it holds."""
        for _ in range(TURNS):
            self._hear()
            for each in (self.receiver, self.sender):
                each.look()
            if condition():
                return
            self.receiver.router.socket.poll(5)
        raise AssertionError("it takes too long")

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()

    def _hear(self) -> None:
        while True:
            try:
                frames = self.receiver.receive()
            except ProtocolError:
                continue
            if frames is None:
                return
            self.heard.append(b"".join(map(bytes, frames)))

    @property
    def unread_bytes(self) -> int:
        return sum(connection.stream.unread_bytes for connection in self.sender.connections.values())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(f"ipc://{tmp_path}/b", f"ipc://{tmp_path}/a")
    yield made
    made.close()


def test_what_was_heard_is_kept_no_longer(pair: Pair) -> None:
    """Small messages are acknowledged at the next look, and then nobody needs to look soon."""
    for n in range(5):
        pair.send(b"%d" % n, b"data")
    assert pair.sender.patience < 1
    pair.until(lambda: len(pair.heard) == 5 and not pair.unread_bytes)
    assert pair.heard == [b"%ddata" % n for n in range(5)]
    pair.sender.look()
    assert pair.sender.patience > 1


def test_large_pieces_are_acknowledged_as_they_come(pair: Pair) -> None:
    """Whoever sends many of them keeps few, though nobody looks after the connections meanwhile."""
    for _ in range(20):
        pair.send(b"piece", bytes(MAX_OWED_PIECE_BYTES))
        while pair.receiver.receive() is None:
            pair.receiver.router.socket.poll(100)
        (connection,) = pair.sender.connections.values()
        assert connection.socket.poll(1000), "an acknowledgement, or two, or that the connection was accepted"
    assert pair.unread_bytes <= 3 * (MAX_OWED_PIECE_BYTES + 100)


def test_a_lost_worker_is_forgotten_at_both_ends(pair: Pair) -> None:
    """Nothing more of it is heard; it is told so once, and keeps nothing of what it says in vain."""
    pair.send(b"before")
    pair.until(lambda: pair.heard == [b"before"])
    pair.receiver.forget(7, "")
    assert not pair.receiver.router.streams
    pair.send(b"after")
    (connection,) = pair.sender.connections.values()
    pair.until(lambda: bool(connection.failed))
    kept = pair.unread_bytes
    pair.send(b"in vain")
    assert pair.unread_bytes == kept
    assert pair.heard == [b"before"]
    pair.sender.forget(8, pair.address)
    assert not pair.sender.connections
    pair.send(b"afresh")
    pair.until(lambda: len(pair.heard) == 2)


def test_a_broken_stream_ends_alone(pair: Pair, tmp_path: Path) -> None:
    """Who sends what cannot be part of its stream is forgotten; others are heard."""
    pair.send(b"one")
    pair.until(lambda: len(pair.heard) == 1)
    other = PeerConnections(f"ipc://{tmp_path}/c", PeerKeys())
    other.number = 9
    other.send(pair.address, [b"other"])
    (connection,) = pair.sender.connections.values()
    connection.stream.number([b"never sent"])
    pair.send(b"two")
    pair.until(lambda: b"other" in pair.heard and bool(connection.failed))
    assert pair.heard == [b"one", b"other"]
    other.send(pair.address, [b"more"])
    pair.until(lambda: pair.heard[-1] == b"more")
    other.close()


def test_cuts_lose_and_double_nothing(tmp_path: Path) -> None:
    """A connection that is cut in the middle of messages, again and again."""
    pair = Pair("tcp://127.0.0.1:*", f"ipc://{tmp_path}/a")
    with CuttingProxy(pair.endpoint) as proxy:
        pair.address = proxy.address
        proxy.cut_every = 500_000
        sent = [bytes([n]) * 100_000 for n in range(50)]
        for each in sent:
            pair.send(each)
        pair.until(lambda: len(pair.heard) >= 50)
        pair.until(lambda: not pair.unread_bytes)
        assert pair.heard == sent
        assert proxy.connections > 5
    pair.close()
