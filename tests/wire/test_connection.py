"""Connections over real sockets in one process, with a clock of the test's own."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gt.wire import transport
from gt.wire.connection import (
    MAX_LOCAL_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    UNKNOWN_SESSION,
    Connection,
    SessionRouter,
    StreamBroken,
)
from gt.wire.reliable_stream import ReliableStream

STEP_SECONDS = 0.05
UNNUMBERED_FRAME = ReliableStream().heartbeat()


class Ends:
    """A router, a connection to it, and the time."""

    def __init__(self, address: str, frame_bytes: int, *, heartbeats: bool = False) -> None:
        self.now = 0.0
        self.router = SessionRouter(address, frame_bytes, heartbeats=heartbeats)
        address = transport.endpoint(self.router.socket)
        self.connection = Connection(address, lease=5.0, clock=lambda: self.now, heartbeats=heartbeats)
        self.heard: list[bytes] = []
        self.got: list[bytes] = []

    def turn(self) -> None:
        """Both ends hear what has arrived, and a moment passes."""
        self.connection.socket.poll(2)
        while True:
            try:
                message = self.router.receive()
            except StreamBroken:
                continue
            if message is None:
                break
            peer, frames, _ = message
            if len(frames[0]):
                self.router.keep(peer)
                self.heard.append(bytes(frames[0]))
        while (frames := self.connection.receive()) is not None:
            self.got.append(bytes(frames[0]))
        self.connection.look()
        self.now += STEP_SECONDS

    def turns(self, most: int = 400) -> Iterator[None]:
        for _ in range(most):
            self.turn()
            yield
        raise AssertionError("it takes too long")

    def close(self) -> None:
        self.connection.close()
        self.router.socket.close(linger=0)


@pytest.fixture(params=["unix", "tcp"])
def ends(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(f"ipc://{tmp_path}/s" if request.param == "unix" else "tcp://127.0.0.1:*", 1000)
    yield made
    made.close()


def test_what_came_before_a_cut_is_read_before_another_connection_is_made() -> None:
    """The other end may be gone for good, after its last words. (On a Unix socket, the cut is found behind them.)"""
    ends = Ends("tcp://127.0.0.1:*", 1000)
    ends.connection.send([b"0"])
    for _ in ends.turns():
        if ends.heard:
            break
    ends.router.send(ends.connection.identity, [b"last words"])
    ends.router.socket.close(linger=1000)
    until = time.monotonic() + 30
    while not ends.connection.cut and time.monotonic() < until:
        ends.connection.socket.poll(1)
    assert ends.connection.cut
    for _ in range(100):
        ends.connection.look()
        ends.now += STEP_SECONDS
        if ends.now > 4:
            break
    assert ends.connection.reconnects == 0
    while (frames := ends.connection.receive()) is not None:
        ends.got.append(bytes(frames[0]))
    assert ends.got[-1:] == [b"last words"]
    ends.now += MAX_RETRY_SECONDS
    ends.connection.look()
    assert ends.connection.reconnects == 1
    assert ends.connection.cut
    ends.connection.close()


def test_messages_go_both_ways(ends: Ends) -> None:
    for n in range(5):
        ends.connection.send([b"%d" % n])
    for _ in ends.turns():
        if len(ends.heard) == 5:
            break
    ends.router.send(ends.connection.identity, [b"answer"])
    for _ in ends.turns():
        if ends.got:
            break
    assert (ends.heard, ends.got) == ([b"0", b"1", b"2", b"3", b"4"], [b"answer"])
    assert ends.connection.stream.unread_bytes == 0


def test_a_frame_that_no_connection_survives_ends_the_session_in_time(ends: Ends) -> None:
    """Each connection breaks at it, so the attempts become rarer, and end with the lease."""
    ends.connection.send([b"first"])
    for _ in ends.turns():
        if ends.heard:
            break
    ends.connection.send([bytes(2000)])
    for _ in ends.turns():
        if ends.connection.failed:
            break
    assert ends.connection.failed.startswith("nothing has got through for 5 s")
    assert ends.connection.reconnects < 20
    assert ends.heard == [b"first"]


def test_a_session_that_is_forgotten_is_unknown(ends: Ends) -> None:
    ends.connection.send([b"first"])
    for _ in ends.turns():
        if ends.heard:
            break
    ends.router.forget(ends.connection.identity)
    ends.connection.send([b"second"])
    for _ in ends.turns():
        if ends.connection.failed:
            break
    assert ends.connection.unknown
    assert ends.connection.failed == UNKNOWN_SESSION
    assert ends.heard == [b"first"]


def test_what_an_earlier_connection_is_told_means_nothing_to_the_next(ends: Ends) -> None:
    """It has the same identity, and the answer to the earlier one may be late; a connection that begins is always accepted."""
    ends.connection.send([b"first"])
    ends.router.socket.poll(1000)
    assert transport.receive(ends.router.socket, ends.router.sender) is not None
    ends.router.refuse(ends.connection.identity)
    ends.connection.socket.poll(1000)
    assert ends.connection.receive() is None
    assert not ends.connection.failed
    for _ in ends.turns():
        if ends.heard:
            break
    assert (ends.heard, ends.connection.failed) == ([b"first"], "")


def test_what_is_sent_before_its_receiver_connects_arrives(ends: Ends) -> None:
    """If it is expected. A connection that continues another stream is told that it is not known."""
    identity = ends.connection.identity
    assert not ends.router.send(identity, [b"lost"])
    ends.router.expect(identity)
    ends.router.expect(identity)
    assert ends.router.send(identity, [b"one"])
    for _ in ends.turns():
        if ends.got:
            break
    assert ends.router.send(identity, [b"two"])
    ends.router.expect(identity)
    for _ in ends.turns():
        if len(ends.got) == 2:
            break
    assert (ends.got, ends.router.expected) == ([b"one", b"two"], set())
    ends.router.forget(identity)
    ends.router.expect(identity)
    ends.connection.close()
    ends.connection.open_again(5.0)
    for _ in ends.turns():
        if ends.connection.unknown:
            break
    ends.router.forget(identity)
    assert not ends.router.expected


def test_nothing_is_in_order_before_the_first_answer(ends: Ends) -> None:
    """A router knows a connection before it has read its first words, and what it sent before that was lost: all comes again
    behind the answer."""
    ends.connection.send([b"first"])
    for _ in ends.turns():
        if ends.heard:
            break
    later = transport.new_identity()
    ends.router.expect(later)
    assert ends.router.send(later, [b"one"])
    ends.connection.send([b"second"])
    assert ends.router.socket.poll(1000)
    connection = Connection(ends.connection.address, identity=later, lease=5.0, clock=lambda: ends.now)
    heard = ends.router.receive()  # a Unix socket accepts who connects while it reads what others have sent
    assert heard is not None
    assert heard[0] == ends.connection.identity
    until = time.monotonic() + 10.0
    while not transport.send(ends.router.socket, [UNNUMBERED_FRAME], later):
        assert time.monotonic() < until
    assert ends.router.send(later, [b"two"])
    assert connection.socket.poll(1000)
    got: list[bytes] = []
    for _ in ends.turns():
        while (frames := connection.receive()) is not None:
            got.append(bytes(frames[0]))
        if len(got) == 2:
            break
    connection.close()
    assert got == [b"one", b"two"]


@pytest.mark.parametrize("silent", [False, True])
def test_a_stream_goes_on_after_the_end_of_its_connection(ends: Ends, silent: bool) -> None:
    """Also one that was silent for longer than its lease: what was sent meanwhile arrives once, both ways."""
    ends.connection.send([b"first"])
    for _ in ends.turns():
        if ends.heard:
            break
    if silent:
        ends.now += 6.0
        ends.connection.look()
        assert ends.connection.failed
    ends.connection.close()
    ends.connection.send([b"second"])
    ends.router.send(ends.connection.identity, [b"answer"])
    ends.connection.open_again(7.0)
    ends.connection.send([b"third"])
    for _ in ends.turns():
        if ends.got and len(ends.heard) == 3:
            break
    assert (ends.heard, ends.got) == ([b"first", b"second", b"third"], [b"answer"])
    assert (ends.connection.lease, ends.connection.failed, ends.connection.closed) == (7.0, "", False)


def test_who_computes_for_long_is_not_silent(tmp_path: Path) -> None:
    """Where ZeroMQ exchanges the heartbeats, an end may answer nothing for as long as it likes."""
    ends = Ends(f"ipc://{tmp_path}/s", 1000, heartbeats=True)
    patient = Connection(ends.connection.address, lease=math.inf, clock=lambda: ends.now, heartbeats=True)
    patient.send([b"a"])
    for _ in range(200):
        ends.now += 10
        patient.look()
    assert (patient.reconnects, patient.failed) == (0, "")
    for _ in ends.turns():
        if ends.heard:
            break
    patient.close()
    ends.close()
    assert ends.heard == [b"a"]


@pytest.mark.parametrize(
    ("address", "most"), [("ipc://{}/nobody", MAX_LOCAL_RETRY_SECONDS), ("tcp://127.0.0.1:1", MAX_RETRY_SECONDS)]
)
def test_attempts_become_rarer_but_not_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, most: float
) -> None:
    """A dispatcher that is started again there is found at once."""
    monkeypatch.setattr(transport.Dealer, "broken", True)  # as a socket finds out sooner or later where nobody listens
    now = 0.0
    found: list[float] = []
    connection = Connection(
        address.format(tmp_path), lease=100.0, clock=lambda: now, reopened=lambda: found.append(now)
    )
    while now < 20.0:
        now += STEP_SECONDS / 10
        connection.look()
    connection.close()
    pauses = [later - earlier for earlier, later in pairwise(found)]
    assert max(pauses) == pytest.approx(most, abs=STEP_SECONDS)
    assert pauses[-3:] == pytest.approx([most] * 3, abs=STEP_SECONDS)
