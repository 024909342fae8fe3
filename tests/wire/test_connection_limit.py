"""The thread that hears of connections goes on whatever happens: a monitor that nobody reads stops all connections."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from gt.unix_sockets.router import UnixRouter
from gt.wire import address_filter, transport
from gt.wire.connection_limit import ConnectionLimit


class BrokenGuard:
    """A guard with a bug."""

    def accepted(self, _listener: int, _descriptor: int) -> None:
        raise KeyError("put in")

    def look(self) -> float:
        raise KeyError("put in")


def test_a_bug_without_a_guard_is_logged_once_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers have no guard."""

    def bug(*_: Any) -> Any:
        raise KeyError("put in")

    limit = ConnectionLimit([], 10)
    monkeypatch.setattr(limit, "_read", bug)
    assert limit.turn({}) is None
    assert limit.turn({}) is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_what_is_dropped_costs_nothing_and_comes_later() -> None:
    """A program that wants to connect tries again by itself, and is there once its address is dropped no more."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as mine:
        port = listening.getsockname()[1]
        before = len([*Path("/proc/self/fd").iterdir()])
        (copy,) = address_filter.listening_at(port)
        with copy:
            assert len([*Path("/proc/self/fd").iterdir()]) == before + 1, "no other is left open"
            address_filter.drop(copy, ["10.0.0.1", "127.0.0.1"])
            mine.settimeout(0.05)
            with pytest.raises(TimeoutError):
                mine.connect(("127.0.0.1", port))
            listening.settimeout(0)
            with pytest.raises(BlockingIOError):
                listening.accept()
            address_filter.drop(copy, [])
            listening.settimeout(60)
            listening.accept()[0].close()


def test_an_address_that_is_too_fast_is_dropped_for_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once by name. Connections that are there go on, and the socket itself: whoever connects and leaves at once may
    have left its descriptor to any other by the time that it is heard of."""
    now, dropped = 100.0, list[list[str]]()
    monkeypatch.setattr(address_filter, "drop", lambda _socket, addresses: dropped.append([*addresses]))
    router = transport.router("tcp://127.0.0.1:*")
    limit = ConnectionLimit([router], 1 << 20, rate=(2, 1.0), clock=lambda: now)
    assert isinstance(router, zmq.Socket)
    router.disable_monitor()  # its events are made here
    port = transport.port(router)
    with contextlib.ExitStack() as stack:
        stack.callback(limit.close)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        limit.endpoints = [f"tcp://127.0.0.1:{listening.getsockname()[1]}"]
        for _ in range(5):
            mine = stack.enter_context(socket.create_connection(listening.getsockname(), 60))
            other = stack.enter_context(listening.accept()[0])
            limit._hear(0, transport.ConnectionEvent(transport.ACCEPTED, other.fileno()))
            other.sendall(b"x")
            assert mine.recv(1) == b"x"
        assert limit._listening is not None
        limit._hear(0, transport.ConnectionEvent(transport.ACCEPTED, limit._listening[0].fileno()))
        assert dropped == [["127.0.0.1"]]
        assert limit.turn({}) == 100, "it looks again when that may be over"
        now += 1
        assert limit.turn({}) is None
        assert dropped == [["127.0.0.1"], []]
        stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    assert limit.refused == 0
    (record,) = caplog.records
    assert "127.0.0.1 opens more than 1 a second" in record.getMessage()


@pytest.mark.process
def test_a_bug_of_the_guard_is_logged_once_and_connections_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ZeroMQ's own thread waits when a thousand events are unread, so more than that come."""
    caplog.set_level(logging.ERROR)
    address = f"ipc://{tmp_path}/s"
    router = transport.router(address, 1000, heartbeats=True)  # ZeroMQ's
    assert not isinstance(router, UnixRouter)
    guard: Any = BrokenGuard()
    limit = ConnectionLimit([router], 1 << 20, guard)
    limit.start()
    until = time.monotonic() + 60
    for number in range(1500):
        dealer = transport.Dealer(address, transport.new_identity(), heartbeats=True)
        transport.send(dealer.socket, [b"hello"])
        while (heard := transport.receive(router)) is None:
            assert time.monotonic() < until, f"connection {number} is not served"
        assert heard[1] == b"hello"
        dealer.close()
    assert limit.guard is None
    assert len([record for record in caplog.records if "looked for no more" in record.message]) == 1
    router.disable_monitor()
    router.close(linger=0)


def test_only_a_connection_that_was_accepted_there_is_hung_up(tmp_path: Path) -> None:
    """By the time the thread hears of a connection, ZeroMQ may have closed it, and its descriptor may be that of anything."""
    router = transport.router("tcp://127.0.0.1:*", 1000)
    limit = ConnectionLimit([router], 0)
    mine, other = socket.socketpair()
    with mine, other, (tmp_path / "file").open("w") as file, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()) as outgoing, listening.accept()[0] as accepted:
            for each in (
                mine.fileno(),
                file.fileno(),
                listening.fileno(),
                outgoing.fileno(),
                accepted.fileno(),
                1 << 20,
            ):
                limit._hear(0, transport.ConnectionEvent(transport.ACCEPTED, each))
            for one, another in ((mine, other), (outgoing, accepted)):
                one.sendall(b"x")
                assert another.recv(1) == b"x"
        file.write("x")
        assert limit.refused == 0
        with socket.create_connection(("127.0.0.1", int(transport.endpoint(router).rpartition(":")[2]))) as dialled:
            dialled.settimeout(60)
            (monitor,) = (each for _, each in limit.monitors)
            assert monitor.poll(60_000)
            limit.turn({monitor: 1})
            assert limit.refused == 1
            while dialled.recv(100):  # what ZeroMQ greets with, and then the end
                pass
    limit.close()
