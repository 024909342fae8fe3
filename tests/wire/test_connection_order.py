"""Both ends of connections that keep the order of what is sent on them, and nothing else: whatever becomes of them, each message
is heard once and in order.

What is drawn here is what sockets do by themselves, in other threads and in the kernel: a router may know a connection before it
has read its first words, answer those of earlier connections late and by the newest, and lose what it sends meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from effort import PROVED, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.substitutes import Substitutes

import gt.wire.connection
from gt.wire import transport
from gt.wire.connection import SILENCE_SECONDS, Connection, SessionRouter

IDENTITY = b"somebody"
ROUNDS = 10
"""Within so many rounds everything arrives where nothing happens any more."""

Frames = list[Any]


class Pipe:
    """A connection: its near end is a dealer's socket, and its own dealer."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.socket = self
        self.broken = False
        self.outward: deque[Frames] = deque()
        """What is on its way to the router."""
        self.inward: deque[Frames] = deque()
        self.inbox: deque[Frames] = deque()
        """What has arrived here."""

    def close(self, _linger: int = 0) -> None:
        """What was sent before may still arrive."""
        self.lose_inward()

    def poll(self, _timeout: int) -> bool:
        """Whether something has arrived here."""
        return bool(self.inbox)

    def lose_inward(self) -> None:
        self.inward = deque(maxlen=0)
        self.inbox = deque(maxlen=0)


class Network:
    """A stand-in for `gt/wire/transport.py` with one router and one peer."""

    def __init__(self) -> None:
        self.pipes: list[Pipe] = []
        self.known: Pipe | None = None
        """The newest connection of which something has arrived: by it the router sends."""
        self.inbox: deque[Frames] = deque()
        """What has arrived at the router."""

    def __getattr__(self, name: str) -> Any:
        return getattr(transport, name)

    def router(self, *_about: object, **_options: object) -> Network:
        return self

    def Dealer(self, *_about: object, **_options: object) -> Pipe:  # noqa: N802 — as there
        self.pipes.append(Pipe(self))
        return self.pipes[-1]

    def send(self, socket: Pipe | Network, frames: Frames, peer: bytes | None = None) -> bool:
        if isinstance(socket, Pipe):
            socket.outward.append(list(frames))
        elif self.known is not None:
            self.known.inward.append(list(frames))
        return True

    def receive(self, socket: Pipe | Network, _sender: object = None, *, polled: bool = False) -> Frames | None:
        return socket.inbox.popleft() if socket.inbox else None

    def carry(self, choice: int) -> None:
        """The next message of one of the connections arrives at the router, unless it knows a later one."""
        sending = [pipe for pipe in self.pipes if pipe.outward]
        if not sending:
            return
        pipe = sending[choice % len(sending)]
        frames = pipe.outward.popleft()
        known = self.known
        if known is None or self.pipes.index(known) <= self.pipes.index(pipe):
            self.known = pipe
            self.inbox.append([IDENTITY, *frames])

    def bring(self) -> None:
        """The next message of the router arrives."""
        pipe = self.pipes[-1]
        if pipe.inward:
            pipe.inbox.append(pipe.inward.popleft())

    def cut(self, *, noticed: bool) -> None:
        """The newest connection breaks; what is in flight is lost."""
        pipe = self.pipes[-1]
        pipe.outward = deque(maxlen=0)
        pipe.lose_inward()
        pipe.broken = noticed


@contextmanager
def piped() -> Iterator[Network]:
    """Connections are those of this network as long as it lasts."""
    network, substitutes = Network(), Substitutes()
    substitutes.put("transport", network, gt.wire.connection)
    try:
        yield network
    finally:
        substitutes.restore()


class Ends:
    """A router and a connection, what each has said, and what each has heard."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.now = 0.0
        self.router = SessionRouter("tcp://nowhere", 1000)
        self.connection = Connection("tcp://nowhere", identity=IDENTITY, lease=1e9, clock=lambda: self.now)
        self.said: tuple[list[bytes], list[bytes]] = ([], [])
        self.heard: tuple[list[bytes], list[bytes]] = ([], [])

    def act(self, act: str, choice: int) -> None:
        if act == "ask":
            self.said[0].append(b"%d" % len(self.said[0]))
            self.connection.send(self.said[0][-1:])
        elif act == "answer":
            message = b"%d" % len(self.said[1])
            if self.router.send(IDENTITY, [message]):
                self.said[1].append(message)
        elif act == "expect":
            self.router.expect(IDENTITY)
        elif act == "carry":
            self.network.carry(choice)
        elif act == "hear":
            if (heard := self.router.receive()) is not None and heard[1][0]:
                self.heard[0].append(heard[1][0])
        elif act == "bring":
            self.network.bring()
        elif act == "get":
            if (frames := self.connection.receive()) is not None:
                self.heard[1].append(frames[0])
        elif act == "beat":
            self.connection.send_unnumbered([b""])
            self.router.acknowledge()
        elif act == "cut":
            self.network.cut(noticed=choice % 2 == 1)
        else:
            self.now += SILENCE_SECONDS + 1.0
            self.connection.look()

    def settle(self) -> None:
        """Nothing happens any more but what must."""
        for _ in range(ROUNDS):
            while any(pipe.outward for pipe in self.network.pipes):
                self.act("carry", 0)
            while self.network.inbox:
                self.act("hear", 0)
            while self.network.pipes[-1].inward:
                self.act("bring", 0)
            while self.network.pipes[-1].inbox:
                self.act("get", 0)
            if self.heard == self.said and not self.connection.stream.kept:
                return
            self.act("look", 0)


ACTS = st.tuples(
    st.sampled_from(["ask", "answer", "expect", "carry", "carry", "hear", "bring", "get", "beat", "cut", "look"]),
    st.integers(0, 3),
)


@settings(max_examples=cases(10_000), deadline=None)
@given(st.lists(ACTS, max_size=80))
def test_nothing_is_missing_on_a_connection_that_keeps_order(acts: list[tuple[str, int]]) -> None:
    with piped() as network:
        ends = Ends(network)
        for act, choice in acts:
            ends.act(act, choice)
            for said, heard in zip(ends.said, ends.heard, strict=True):
                assert heard == said[: len(heard)]
        ends.settle()
        assert ends.heard == ends.said
    PROVED["histories of a connection"] += 1
