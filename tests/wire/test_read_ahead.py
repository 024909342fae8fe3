"""What a listening TCP socket reads of a connection before its owner takes it."""

from __future__ import annotations

import pytest
import zmq

from gt.wire import transport

FEW = 4
MESSAGE_BYTES = 1 << 20
MANY = 200


def test_whoever_sends_without_end_is_held_up_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq's thread would otherwise read, decrypt and keep all of it, whatever the owner of the socket does."""
    monkeypatch.setattr(transport, "READ_AHEAD", FEW)
    router = transport.router("tcp://127.0.0.1:*")
    sender = transport.context().socket(zmq.DEALER)
    try:
        sender.setsockopt(zmq.LINGER, 0)
        sender.setsockopt(zmq.SNDHWM, FEW)
        sender.setsockopt(zmq.IDENTITY, b"one")
        sender.connect(transport.endpoint(router))
        sent = 0
        while sent < MANY and sender.poll(300, zmq.POLLOUT):
            sender.send(sent.to_bytes(2, "big") + bytes(MESSAGE_BYTES), zmq.DONTWAIT)
            sent += 1
        assert FEW < sent < MANY
        for number in range(sent):
            assert router.poll(10_000)
            found = transport.receive(router)
            assert found is not None
            assert bytes(found[1][:2]) == number.to_bytes(2, "big")
        assert sender.poll(10_000, zmq.POLLOUT), "it goes on"
    finally:
        sender.close()
        router.close()
