"""A connection that is dropped and not closed. ZeroMQ's own thread, which serves all of a process, waits for ever where it has
something to say to a monitor that was closed before its socket."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import zmq

from gt.wire import transport
from gt.wire.connection_limit import ConnectionLimit


class Order:
    """Notes in which order sockets were closed, and when a socket was told to forget its monitor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, zmq.Socket[bytes]]] = []
        close, disable = zmq.Socket.close, zmq.Socket.disable_monitor

        def closing(socket: zmq.Socket[bytes], linger: int | None = None) -> None:
            if not socket.closed:
                self.calls.append(("close", socket))
            close(socket, linger)

        def disabling(socket: zmq.Socket[bytes]) -> None:
            self.calls.append(("forget", socket))
            disable(socket)

        monkeypatch.setattr(zmq.Socket, "close", closing)
        monkeypatch.setattr(zmq.Socket, "disable_monitor", disabling)

    def of(self, *sockets: zmq.Socket[bytes]) -> list[tuple[str, int]]:
        """What became of these, by their positions."""
        return [(what, sockets.index(socket)) for what, socket in self.calls if socket in sockets]


def connection(tmp_path: Path) -> tuple[transport.Dealer, zmq.Socket[bytes], zmq.Socket[bytes]]:
    """A connection to nobody, its socket and its monitor."""
    made = transport.Dealer(f"ipc://{tmp_path}/s", transport.new_identity(), heartbeats=True)
    end: Any = made._end
    return made, end.socket, end._monitor


IN_ORDER = [("forget", 0), ("close", 1), ("close", 0)]


@pytest.mark.parametrize("cycle", [False, True])
def test_its_socket_forgets_its_monitor_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cycle: bool) -> None:
    """In whatever order the interpreter drops what belongs to it."""
    dropped, socket, monitor = connection(tmp_path)
    order = Order(monkeypatch)
    if cycle:
        dropped.itself = dropped  # type: ignore[attr-defined]
    del dropped
    gc.collect()
    assert order.of(socket, monitor) == IN_ORDER


def test_one_that_was_closed_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, socket, monitor = connection(tmp_path)
    order = Order(monkeypatch)
    closed.close()
    closed.close()
    del closed
    gc.collect()
    assert order.of(socket, monitor) == IN_ORDER


def test_a_forked_process_leaves_those_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would close is the parent's."""
    dropped, socket, monitor = connection(tmp_path)
    order = Order(monkeypatch)
    gc.collect()  # what other tests have dropped must be closed by its process, in order
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        del dropped
    assert order.of(socket, monitor) == []
    socket.disable_monitor()
    monitor.close()
    socket.close()


def test_listening_sockets_forget_those_that_tell_of_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unix = transport.router(f"ipc://{tmp_path}/s", 1000)
    router: Any = transport.router("tcp://127.0.0.1:*", 1000, heartbeats=True)
    limit = ConnectionLimit([unix, router], 1 << 20)
    ((listener, monitor),) = limit.monitors
    assert listener == 1
    order = Order(monkeypatch)
    limit.close()
    assert order.of(router, monitor) == IN_ORDER
    assert not (tmp_path / "s").exists()
