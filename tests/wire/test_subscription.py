"""A worker's end of published messages; `tests/dispatcher/state/test_multicast.py` has both ends and all that may break."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire import transport
from gt.wire.reliable_stream import MAX_OWED_BYTES
from gt.wire.subscription import Subscription

TICKET = m.Subscribe("there", b"ticket")


class Pipe:
    """A connection to a publisher in memory."""

    def __init__(self) -> None:
        self.socket = object()
        self.broken = False
        self.closed = False
        self.waiting: deque[list[Any]] = deque()
        self.tickets: list[tuple[bytes, bool]] = []

    def subscribe(self, ticket: bytes, wanted: bool = True) -> None:
        self.tickets.append((ticket, wanted))

    def receive(self) -> list[Any] | None:
        return self.waiting.popleft() if self.waiting else None

    def close(self) -> None:
        self.closed = True


class Worker:
    """A subscription with all that it does."""

    def __init__(self) -> None:
        self.pipes: list[Pipe] = []
        self.said: list[Any] = []
        self.subscription = Subscription(self.connect, self.said.append)

    def connect(self, address: str) -> Pipe:
        assert address == TICKET.address
        self.pipes.append(Pipe())
        return self.pipes[-1]

    def publish(self, number: int, body: bytes = b"body", *more: bytes) -> None:
        self.pipes[-1].waiting.append([bytes(m.TOPIC_BYTES) + number.to_bytes(8, "big") + body, *more])


@pytest.fixture
def worker() -> Worker:
    """A worker that has switched."""
    made = Worker()
    made.subscription.subscribe(TICKET)
    made.subscription.switch(m.Switch())
    return made


def test_nothing_is_read_before_the_switch() -> None:
    worker = Worker()
    assert worker.subscription.receive() is None
    worker.subscription.subscribe(TICKET)
    worker.publish(1)
    assert worker.subscription.receive() is None
    worker.subscription.switch(m.Switch())
    assert worker.subscription.socket is worker.pipes[0].socket
    assert worker.subscription.receive() == [b"body"]
    worker.subscription.subscribe(m.Unsubscribe(b"ticket"))
    assert worker.pipes[0].tickets == [(b"ticket", True), (b"ticket", False)]


def test_it_acknowledges_at_most_once_a_second_unless_much_has_come(worker: Worker) -> None:
    subscription = worker.subscription
    for number, now in enumerate([10.0, 10.3, 10.9, 11.0, 11.5, 12.5], start=1):
        worker.publish(number)
        assert subscription.receive() == [b"body"]
        subscription.look(now)
    assert worker.said == [m.Heard(1), m.Heard(4), m.Heard(6)]
    subscription.look(20.0)
    assert len(worker.said) == 3, "there is nothing new to say"
    worker.publish(7, b"body", bytes(MAX_OWED_BYTES))
    assert len(subscription.receive() or []) == 2
    assert worker.said[3:] == [m.Heard(7)]


def test_a_break_is_said_once(worker: Worker) -> None:
    """What has come and was not read is sent again; words about the connection that has ended mean nothing."""
    subscription = worker.subscription
    worker.publish(5)
    worker.publish(6)
    subscription.receive()
    worker.pipes[0].broken = True
    subscription.look(1.0)
    subscription.look(2.0)
    subscription.lapse(m.Lapse())
    assert worker.said == [m.Lapsed(5)]
    assert worker.pipes[0].closed
    assert subscription.receive() is None
    for late in (subscription.subscribe, subscription.switch):
        late(TICKET if late == subscription.subscribe else m.Switch())
    assert len(worker.pipes) == 1
    subscription.resume(m.Unswitch())
    subscription.subscribe(TICKET)
    assert len(worker.pipes) == 2
    subscription.close()
    assert worker.pipes[1].closed
    subscription.close()


def test_what_breaks_the_protocol(worker: Worker) -> None:
    """A dispatcher that confuses its worker ends it with a clear error."""
    worker.publish(2)
    assert worker.subscription.receive() == [b"body"]
    worker.publish(2)
    with pytest.raises(ProtocolError, match="published message 2 comes after 2"):
        worker.subscription.receive()
    worker.pipes[0].waiting.append([b"short"])
    with pytest.raises(ProtocolError, match="begins with 16 bytes of topic and number"):
        worker.subscription.receive()
    with pytest.raises(ProtocolError, match="Unswitch answers Lapsed"):
        worker.subscription.resume(m.Unswitch())
    fresh = Worker().subscription
    with pytest.raises(ProtocolError, match="Switch before Subscribe"):
        fresh.switch(m.Switch())
    with pytest.raises(ProtocolError, match="a ticket is asked back that was never sent"):
        fresh.subscribe(m.Unsubscribe(b"ticket"))


@pytest.mark.process
def test_a_ticket_arrives_where_keys_are_needed() -> None:
    """The handshake of a connection with keys has messages that are larger than a ticket may be."""
    server, client = transport.key_pair(), transport.key_pair()
    publisher = transport.publisher(
        "tcp://127.0.0.1:*", transport.KeyCheck(server.secret, lambda key: key == client.public)
    )
    subscriber = transport.Subscriber(transport.endpoint(publisher), client._replace(server=server.public))
    try:
        subscriber.subscribe(b"ticket")
        assert publisher.poll(10_000)
        assert transport.subscription(publisher) == (b"ticket", True)
        transport.set_topic(publisher, b"topic")
        transport.publish(publisher, b"topic", [b"message"])
        assert subscriber.socket.poll(10_000)
        assert subscriber.receive() == [b"topicmessage"]
        assert not subscriber.broken
    finally:
        subscriber.close()
        publisher.close()
