"""Fan-out: every peer hears its stream in order and whole, whichever way each message takes, or counts as lost.

The sockets are a model of ZeroMQ's: what is sent one by one and what is published arrive in their own orders, tickets
arrive at any time, a connection that breaks loses what was in it and gives its tickets back.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from effort import PROVED, cases

from gt.dispatcher.state.multicast import Accept, Broken, Fanout, Withdraw
from gt.wire import messages as m


class Worker:
    """A peer's end of both sockets, as `worker/__main__.py` has it."""

    def __init__(self) -> None:
        self.direct: deque[Any] = deque()
        self.published: deque[Any] = deque()
        self.tickets: deque[tuple[bytes, bool]] = deque()
        """On their way to the dispatcher."""
        self.topics: set[bytes] = set()
        self.given: set[bytes] = set()
        """Tickets that the publisher has."""
        self.switched = False
        self.told: list[int] = []
        self.broken = False

    def hear(self, message: Any) -> None:
        match message:
            case m.Subscribe():
                self.tickets.append((message.ticket, True))
            case m.Unsubscribe():
                self.tickets.append((message.ticket, False))
            case m.Switch():
                assert not self.switched
                self.switched = True
            case _:
                self.told.append(message)


class Wires:
    """A dispatcher's shell with its two sockets, and peers at the other ends."""

    def __init__(self, peers: int, *, above: int = 8, limit: int = 128) -> None:
        tickets = itertools.count()
        self.fanout = Fanout("here", lambda: b"ticket %d" % next(tickets), above=above, limit=limit)
        self.workers = {b"w%d" % n: Worker() for n in range(peers)}
        self.sent: dict[bytes, list[int]] = {peer: [] for peer in self.workers}
        self.lost: set[bytes] = set()
        self.numbers = itertools.count()
        self.sends = 0
        """How often a socket was handed a message of the last group."""

    def group(self, *numbers: int) -> tuple[bytes, ...]:
        return tuple(b"w%d" % n for n in numbers)

    def tell(self, to: tuple[bytes, ...]) -> int:
        """A core emits a message; how many sends it took."""
        number = next(self.numbers)
        for peer in to:
            self.sent[peer].append(number)
        self.sends = self._send(to, number)
        while self.fanout.out:
            peer, message = self.fanout.out.pop(0)
            self._send((peer,), message)
        self.fanout.check()
        return self.sends

    def _send(self, to: tuple[bytes, ...], message: Any) -> int:
        topics, peers = self.fanout.routes(to)
        for topic in topics:
            for worker in self.workers.values():
                if topic in worker.topics and not worker.broken:
                    worker.published.append(message)
        for peer in peers:
            self.workers[peer].direct.append(message)
        return len(topics) + len(peers)

    def arrive(self, peer: bytes) -> None:
        """The next ticket of a peer arrives."""
        worker = self.workers[peer]
        ticket, wanted = worker.tickets.popleft()
        if wanted:
            worker.given.add(ticket)
        else:
            worker.given.discard(ticket)
        self._act(worker, self.fanout.subscribed(ticket) if wanted else self.fanout.unsubscribed(ticket))

    def _act(self, worker: Worker, what: Any) -> None:
        match what:
            case Accept():
                worker.topics.add(what.topic)
                if what.switched:
                    self.workers[what.switched].direct.append(m.Switch())
            case Withdraw():
                worker.topics.discard(what.topic)
            case Broken():
                self.lost.add(what.peer)
        self.fanout.check()

    def break_off(self, peer: bytes) -> None:
        """A peer's connection to the publisher breaks: all that is in it is lost."""
        worker = self.workers[peer]
        worker.broken = True
        worker.published.clear()
        worker.topics.clear()
        worker.tickets.clear()
        for ticket in sorted(worker.given):
            self._act(worker, self.fanout.unsubscribed(ticket))

    def settle(self, peers: Iterable[bytes] | None = None) -> None:
        """Everything arrives."""
        for peer in self.workers if peers is None else peers:
            while self.turn(peer):
                pass

    def turn(self, peer: bytes) -> bool:
        """A peer hears one message of each socket, and one of its tickets arrives; whether there was anything."""
        worker = self.workers[peer]
        if worker.direct:
            worker.hear(worker.direct.popleft())
        elif worker.switched and worker.published:
            worker.hear(worker.published.popleft())
        elif worker.tickets and not worker.broken:
            self.arrive(peer)
        else:
            return False
        return True

    def whole(self) -> None:
        """Every peer was told all that was sent to it, in order."""
        for peer, worker in self.workers.items():
            if peer not in self.lost:
                assert worker.told == self.sent[peer]


def test_small_groups_are_told_one_by_one() -> None:
    """Up to eight members nothing is published, and nobody is asked to subscribe."""
    wires = Wires(8)
    everybody = wires.group(*range(8))
    assert [wires.tell(everybody) for _ in range(3)] == [8, 8, 8]
    assert not wires.fanout.asked
    wires.settle()
    wires.whole()


def test_a_large_group_is_told_by_one_message_once_all_have_subscribed() -> None:
    """The first word goes one by one, the second asks them to subscribe, and when all have, one send is enough."""
    wires = Wires(256)
    everybody = wires.group(*range(256))
    assert [wires.tell(everybody), wires.tell(everybody)] == [256, 256]
    wires.settle(everybody[:-1])
    assert wires.tell(everybody) == 256, "one of them has yet to subscribe"
    wires.settle()
    assert wires.tell(everybody) == 1
    assert wires.tell(everybody[:1]) == 1
    assert wires.tell(everybody) == 1
    wires.settle()
    wires.whole()


def test_nothing_that_is_published_overtakes_what_was_sent_before() -> None:
    """A worker reads what is published only when it was told to switch, which is the last that it is sent otherwise."""
    wires = Wires(9)
    everybody = wires.group(*range(9))
    slow = wires.workers[b"w0"]
    for _ in range(2):
        wires.tell(everybody)
    wires.settle(everybody[1:])
    while slow.direct:  # it has heard all but what is on its way when its tickets arrive
        slow.hear(slow.direct.popleft())
    wires.tell(wires.group(0))
    while slow.tickets:
        wires.arrive(b"w0")
    assert wires.tell(everybody) == 1
    assert slow.published, "it waits there"
    assert len(slow.direct) == 2, "before it, a message and the word to switch"
    wires.settle()
    wires.whole()


def test_a_stopped_member_holds_up_nobody() -> None:
    """A member that reads nothing, before or after it subscribed, leaves the others' streams as they are."""
    wires = Wires(10)
    everybody, others = wires.group(*range(10)), wires.group(*range(1, 10))
    for _ in range(4):
        wires.tell(everybody)
        wires.settle(others)
    assert all(wires.workers[peer].told == wires.sent[peer] for peer in others)
    assert not wires.workers[b"w0"].told
    wires.settle()
    wires.whole()


def test_a_connection_that_breaks_is_a_lost_worker() -> None:
    """A worker whose connection breaks is known at once; the others are told by a group without it."""
    wires = Wires(11)
    everybody, rest = wires.group(*range(11)), wires.group(*range(10))
    for _ in range(3):
        wires.tell(everybody)
        wires.settle()
    wires.break_off(b"w10")
    assert wires.lost == {b"w10"}
    wires.fanout.keep(rest)
    assert not wires.fanout.groups
    assert [wires.tell(rest), wires.tell(rest)] == [10, 10]
    wires.settle()
    assert wires.tell(rest) == 1
    wires.settle()
    wires.whole()
    assert all(len(worker.topics) == 2 for peer, worker in wires.workers.items() if peer in rest), (
        "its own, the group's"
    )


def test_a_connection_that_comes_back_is_a_lost_worker_too() -> None:
    """A ticket that arrives a second time says that the connection was another in between."""
    wires = Wires(9)
    everybody = wires.group(*range(9))
    for _ in range(2):
        wires.tell(everybody)
        wires.settle()
    ticket = next(iter(wires.fanout.heard))
    assert isinstance(wires.fanout.subscribed(ticket), Broken)


def test_tickets_of_strangers_mean_nothing() -> None:
    """Who does not know a ticket hears nothing, and does no harm."""
    wires = Wires(9)
    for _ in range(2):
        wires.tell(wires.group(*range(9)))
    assert wires.fanout.subscribed(b"") is None
    assert wires.fanout.subscribed(b"guessed") is None
    assert wires.fanout.unsubscribed(b"guessed") is None
    wires.fanout.check()


def test_groups_are_bounded() -> None:
    """The least recently used group gives way, its members give their tickets back, and nothing is left of it."""
    wires = Wires(11, limit=2)
    groups = [wires.group(*range(n, n + 9)) for n in range(3)]
    for group in groups:
        for _ in range(3):
            wires.tell(group)
            wires.settle()
    assert list(wires.fanout.groups) == groups[1:]
    assert wires.tell(groups[0]) == 9
    wires.settle()
    wires.whole()
    kept = sum(len(group.members) for group in wires.fanout.groups.values())
    assert len(wires.fanout.tickets) == len(wires.fanout.heard) == kept + 11
    assert len(wires.workers[b"w0"].topics) == 1, "its own"


SEEDS = cases(120)
BATCHES = [range(start, min(start + 20, SEEDS)) for start in range(0, SEEDS, 20)]


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_any_order_of_arrivals_and_ends(seeds: range) -> None:
    """Groups of any size, stopped peers, broken connections, peers that end: who is not lost is told all, in order."""
    for seed in seeds:
        simulate(seed)


def simulate(seed: int) -> None:
    draw = random.Random(seed)
    wires = Wires(draw.randint(3, 14), above=draw.randint(1, 4), limit=draw.randint(2, 4))
    stopped: set[bytes] = set()

    def groups() -> list[tuple[bytes, ...]]:
        there = [peer for peer in wires.workers if peer not in wires.lost]
        return [tuple(draw.sample(there, draw.randint(1, len(there)))) for _ in range(4)] if there else []

    known = groups()
    published = 0
    for _ in range(300):
        what = draw.random()
        if what < 0.3 and known:
            to = draw.choice(known)
            if wires.lost.isdisjoint(to):
                published += wires.tell(to) < len(to)
        elif what < 0.9:
            awake = [peer for peer in wires.workers if peer not in stopped]
            for _ in range(2 * len(awake)):
                wires.turn(draw.choice(awake))
        elif what < 0.93:
            stopped ^= {draw.choice(list(wires.workers))}
        elif what < 0.935:
            wires.break_off(draw.choice(list(wires.workers)))
        elif what < 0.98:
            wires.fanout.keep([peer for peer in wires.workers if peer not in wires.lost])
            wires.fanout.check()
        else:
            known = groups()
    for peer, worker in wires.workers.items():
        if peer in wires.lost:
            assert worker.told == wires.sent[peer][: len(worker.told)], "what a lost peer heard is a beginning"
    wires.fanout.keep([peer for peer in wires.workers if peer not in wires.lost])
    wires.settle()
    wires.whole()
    PROVED["streams of peers that are told by groups"] += published
