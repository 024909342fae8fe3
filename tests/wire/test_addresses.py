"""A host's name that is looked up holds up neither its own process nor other connections."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from gt.wire import addresses, transport
from gt.wire.addresses import HostNotFound, look_up


@pytest.fixture
def server() -> Any:
    """A socket that listens by TCP at a port that was chosen for it."""
    made = transport.router("tcp://127.0.0.1:*", 1000, heartbeats=True)
    yield made
    made.close()


def at_name(server: Any) -> str:
    """Where it listens, by a name in place of the number."""
    return f"tcp://node.example:{addresses.host_and_port(transport.endpoint(server))[1]}"


def heard(server: Any, dealer: transport.Dealer) -> Any:
    """What arrives of one message."""
    assert transport.send(dealer.socket, [b"hello"])
    assert server.poll(10_000)
    received = transport.receive(server)
    dealer.close()
    return received and received[1]


def test_a_name_server_that_is_silent_stops_no_connection(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects by that name has a connection that is broken, as where nobody listens; the next one may be better."""
    answers, known = threading.Event(), [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    def silent(*_: object, **__: object) -> list[object]:
        answers.wait(60)
        return []

    monkeypatch.setattr(transport, "_CONNECT_TIMEOUT_MS", 20)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", silent)
        stuck = transport.Dealer(at_name(server), b"stuck", heartbeats=True)
        assert stuck.broken
        assert not transport.send(stuck.socket, [b"for", b"nobody"])
        stuck.close()
        other = transport.Dealer(transport.endpoint(server), b"other", heartbeats=True)
        assert heard(server, other) == b"hello"
        answers.set()
    monkeypatch.setattr(transport, "_CONNECT_TIMEOUT_MS", 10_000)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)
    assert heard(server, transport.Dealer(at_name(server), b"again", heartbeats=True)) == b"hello"


def test_what_is_no_name_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> list[object]:
        raise AssertionError("looked up")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    for address in ("tcp://127.0.0.1:7000", "tcp://[::1]:7000", "ipc:///path", "tcp://*:7000", "tcp://node.example"):
        assert addresses.with_number(address, 1) == address


def test_why_a_name_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    with pytest.raises(HostNotFound, match="no answer in time"):
        look_up("node.example", 5)

    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(HostNotFound, match="Name or service not known"):
        look_up("node.example", 5)
