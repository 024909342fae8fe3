"""Fan-out: every peer hears its messages in order and whole, whichever way each takes and whatever breaks.

The sockets are a model of ZeroMQ's: a peer's stream is reliable; tickets and published messages arrive at any time and in
order on their connection; one that is cut loses what was in it, and its ends notice at different times. The peers' ends are the
workers' own (`gt/wire/subscription.py`).
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from effort import PROVED, cases

from gt.dispatcher.state.multicast import MAX_WAIT_TICKS, Accept, Broken, Fanout, Withdraw
from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.subscription import Subscription


class Pipe:
    """One connection of a peer to the publisher."""

    def __init__(self) -> None:
        self.socket = object()
        self.published: deque[list[Any]] = deque()
        self.tickets: deque[tuple[bytes, bool]] = deque()
        """On their way to the dispatcher."""
        self.topics: set[bytes] = set()
        self.given: dict[bytes, None] = {}
        """Tickets that the publisher has."""
        self.cut = False
        """Nothing passes any more."""
        self.broken = False
        """The peer knows that."""
        self.closed = False
        self.withdrawn = False
        """The publisher knows that."""

    def subscribe(self, ticket: bytes, wanted: bool = True) -> None:
        assert not self.closed
        self.tickets.append((ticket, wanted))

    def receive(self) -> list[Any] | None:
        assert not self.closed
        return self.published.popleft() if self.published else None

    def close(self) -> None:
        self.closed = True
        self.lose()

    def lose(self, *, published: int = 0, tickets: int = 0) -> None:
        """Break: what is on its way is lost, but for so many that have just arrived."""
        self.cut = True
        while len(self.published) > published:
            self.published.pop()
        while len(self.tickets) > tickets:
            self.tickets.pop()


class Worker:
    """A peer's end of its stream and of its subscription, as `worker/shell.py` has it."""

    def __init__(self) -> None:
        self.direct: deque[list[Any]] = deque()
        self.said: deque[Any] = deque()
        """On its way to the dispatcher, on the stream."""
        self.pipes: list[Pipe] = []
        self.subscription = Subscription(self.connect, self.said.append)
        self.told: list[int] = []
        self.unreachable = False

    @property
    def pipe(self) -> Pipe:
        return self.pipes[-1]

    @property
    def published(self) -> deque[list[Any]]:
        return self.pipe.published

    def connect(self, address: str) -> Pipe:
        assert address == "here"
        self.pipes.append(Pipe())
        if self.unreachable:
            self.pipe.lose()
            self.pipe.broken = self.pipe.withdrawn = True
        return self.pipe

    def hear(self, frames: list[Any]) -> None:
        match codec.decode(frames):
            case m.Subscribe() | m.Unsubscribe() as message:
                self.subscription.subscribe(message)
            case m.Switch() as message:
                self.subscription.switch(message)
            case m.Lapse() as message:
                self.subscription.lapse(message)
            case m.Unswitch() as message:
                self.subscription.resume(message)
            case m.Forget(number):
                self.told.append(number)


class Wires:
    """A dispatcher's shell with its two sockets, and peers at the other ends."""

    def __init__(self, peers: int, *, above: int = 8, limit: int = 128) -> None:
        tickets = itertools.count()
        self.fanout = Fanout("here", lambda: b"ticket %d" % next(tickets), above=above, limit=limit)
        self.workers = {b"w%d" % n: Worker() for n in range(peers)}
        self.sent: dict[bytes, list[int]] = {peer: [] for peer in self.workers}
        self.lost: set[bytes] = set()
        self.numbers = itertools.count()
        self.now = 0.0
        self.resent = 0

    def group(self, *numbers: int) -> tuple[bytes, ...]:
        return tuple(b"w%d" % n for n in numbers)

    def tell(self, to: tuple[bytes, ...]) -> int:
        """A core emits a message; how many sends it took."""
        number = next(self.numbers)
        for peer in to:
            self.sent[peer].append(number)
        sends = self._send(to, m.Forget(number))
        self._ask()
        return sends

    def _ask(self) -> None:
        while self.fanout.out:
            peer, message = self.fanout.out.pop(0)
            self._send((peer,), message)
        self.fanout.check()

    def _send(self, to: tuple[bytes, ...], message: Any) -> int:
        frames = codec.encode(message)
        prefixes, peers = self.fanout.routes(to, frames)
        for prefix in prefixes:
            for worker in self.workers.values():
                for pipe in worker.pipes:
                    if prefix[: m.TOPIC_BYTES] in pipe.topics and not pipe.cut:
                        pipe.published.append([prefix + frames[0]])
        for peer in peers:
            self._direct(peer, frames)
        return len(prefixes) + len(peers)

    def _direct(self, peer: bytes, frames: list[Any]) -> None:
        self.workers[peer].direct.append(list(frames))

    def arrive(self, peer: bytes, pipe: Pipe | None = None) -> None:
        """The next ticket of a peer arrives."""
        pipe = pipe or self.workers[peer].pipe
        ticket, wanted = pipe.tickets.popleft()
        if wanted:
            pipe.given[ticket] = None
        else:
            pipe.given.pop(ticket, None)
        self._act(pipe, self.fanout.subscribed(ticket) if wanted else self.fanout.unsubscribed(ticket))

    def _act(self, pipe: Pipe, what: Any) -> None:
        match what:
            case Accept():
                pipe.topics.add(what.topic)
                if what.switched:
                    self._direct(what.switched, codec.encode(m.Switch()))
            case Withdraw():
                pipe.topics.discard(what.topic)
            case Broken():
                self._direct(what.peer, codec.encode(m.Lapse()))
        self.fanout.check()

    def withdraw(self, pipe: Pipe) -> None:
        """The publisher notices that a connection has ended."""
        pipe.lose()
        pipe.withdrawn = True
        pipe.topics.clear()
        for ticket in pipe.given:
            self._act(pipe, self.fanout.unsubscribed(ticket))

    def break_off(self, peer: bytes) -> None:
        """A peer's connection to the publisher breaks: all that is in it is lost, and both ends notice."""
        pipe = self.workers[peer].pipe
        pipe.lose()
        pipe.broken = True
        self.withdraw(pipe)

    def hear(self, peer: bytes) -> None:
        """The dispatcher hears a peer's next word about its subscription."""
        said = self.workers[peer].said.popleft()
        if peer in self.lost:
            return
        if isinstance(said, m.Heard):
            self.fanout.acknowledge(peer, said.number)
        else:
            for frames in self.fanout.lapsed(peer, said.number):
                self.resent += isinstance(codec.decode(frames), m.Forget)
                self._direct(peer, frames)
            self._direct(peer, codec.encode(m.Unswitch()))
        self.fanout.check()

    def tick(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.now += 1
            self.fanout.tick()
            self._ask()

    def lose(self, peer: bytes) -> None:
        """A peer's process ends."""
        self.lost.add(peer)
        worker = self.workers[peer]
        worker.subscription.close()
        worker.direct.clear()
        self.fanout.keep([peer for peer in self.workers if peer not in self.lost])
        self._ask()

    def settle(self, peers: Iterable[bytes] | None = None) -> None:
        """Everything arrives, and is acknowledged."""
        moved = True
        while moved:
            moved = False
            self.now += 1
            for peer in list(self.workers) if peers is None else peers:
                self.workers[peer].subscription.look(self.now)
                while self.turn(peer):
                    moved = True

    def turn(self, peer: bytes) -> bool:
        """A peer hears one message, or something of it arrives; whether there was anything."""
        worker = self.workers[peer]
        if peer in self.lost:
            return False
        if worker.direct:
            worker.hear(worker.direct.popleft())
        elif (frames := worker.subscription.receive()) is not None:
            worker.hear(frames)
        elif worker.said:
            self.hear(peer)
        elif waiting := [pipe for pipe in worker.pipes if pipe.tickets]:
            self.arrive(peer, waiting[0])
        else:
            return False
        return True

    def whole(self) -> None:
        """Every peer was told all that was sent to it, in order."""
        for peer, worker in self.workers.items():
            if peer not in self.lost:
                assert worker.told == self.sent[peer]

    def nothing_kept(self) -> None:
        """After a tick nothing that was published is kept any more."""
        self.tick()
        assert not self.fanout.kept_bytes
        assert not self.fanout.dropped


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
    while slow.pipe.tickets:
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


def test_a_connection_that_breaks_costs_nothing() -> None:
    """A worker whose connection breaks is sent what it missed on its stream, then everything, until it has subscribed again."""
    wires = Wires(11)
    everybody = wires.group(*range(11))
    for _ in range(3):
        wires.tell(everybody)
        wires.settle()
    assert wires.tell(everybody) == 1
    wires.settle(everybody[:-1])
    wires.break_off(b"w10")
    assert wires.tell(everybody) == 1, "the dispatcher cannot know yet what it has heard"
    assert wires.tell(everybody[-1:]) == 1
    assert wires.workers[b"w10"].direct, "the word that it has lapsed"
    wires.settle()
    wires.whole()
    assert wires.resent == 3
    wires.settle()
    assert wires.tell(everybody) == 11, "each group that it is in is told one by one"
    wires.tick()
    wires.settle()
    assert wires.tell(everybody) == 1, "it has subscribed again"
    wires.settle()
    wires.whole()
    wires.nothing_kept()
    assert len(wires.workers[b"w10"].pipes) == 2


def test_a_break_that_only_the_worker_notices() -> None:
    """Its word is enough; that its tickets come back later means nothing."""
    wires = Wires(9)
    everybody = wires.group(*range(9))
    for _ in range(3):
        wires.tell(everybody)
        wires.settle()
    first = wires.workers[b"w0"].pipe
    first.lose()
    first.broken = True
    wires.tell(everybody)
    wires.settle()
    wires.tick()
    wires.settle()
    assert wires.tell(everybody) == 1
    wires.withdraw(first)
    assert not wires.workers[b"w0"].direct
    wires.settle()
    wires.whole()


def test_a_break_before_the_switch_is_heard() -> None:
    """A worker loses the connection when the dispatcher has switched already, and the word of it is on its way: it takes no
    notice of that, nor of tickets that it was asked for in between."""
    wires = Wires(10)
    everybody, others = wires.group(*range(9)), wires.group(*range(1, 10))
    slow = wires.workers[b"w0"]
    for _ in range(2):
        wires.tell(everybody)
    while slow.direct:
        slow.hear(slow.direct.popleft())
    while slow.pipe.tickets:
        wires.arrive(b"w0")
    wires.tell(wires.group(0))
    for _ in range(2):
        wires.tell((*others, b"w0"))  # another group, whose tickets are published for it
    slow.pipe.lose()
    slow.subscription.lapse()
    wires.settle()
    wires.whole()
    assert slow.subscription.socket is None
    assert wires.resent == 3
    wires.tick(2)
    wires.settle()
    assert slow.subscription.socket is not None
    assert wires.tell(everybody) == 1
    wires.settle()
    wires.whole()


def test_a_socket_that_cannot_be_reached_is_asked_for_ever_more_seldom() -> None:
    """Its worker hears everything on its stream, and is asked at most once a minute."""
    wires = Wires(9)
    everybody = wires.group(*range(9))
    far = wires.workers[b"w0"]
    far.unreachable = True
    for _ in range(300):
        wires.tell(everybody)
        wires.settle()
        wires.tick()
    wires.whole()
    assert 300 / MAX_WAIT_TICKS < len(far.pipes) <= 12
    far.unreachable = False
    wires.tick(MAX_WAIT_TICKS)
    wires.settle()
    assert wires.tell(everybody) == 1
    wires.tick(MAX_WAIT_TICKS)
    wires.break_off(b"w0")
    wires.settle()
    assert wires.fanout.waiting == {b"w0": 1}, "one that lasted does not count as such"


def test_what_was_acknowledged_is_not_kept() -> None:
    """Each tick forgets what all members of a group have heard. One that acknowledges nothing holds up its groups' alone."""
    wires = Wires(20)
    ours, theirs = wires.group(*range(10)), wires.group(*range(10, 20))
    for _ in range(3):
        for group in (ours, theirs):
            wires.tell(group)
        wires.settle()
    wires.tick()
    assert not wires.fanout.kept_bytes
    for _ in range(5):
        for group in (ours, theirs):
            assert wires.tell(group) == 1
    wires.settle([*ours[1:], *theirs])
    wires.tick()
    logs = {group: len(known.log) for group, known in wires.fanout.groups.items()}
    assert logs == {ours: 5, theirs: 0}
    wires.settle()
    wires.whole()
    wires.nothing_kept()


def test_much_that_was_acknowledged_is_not_kept_until_the_next_tick() -> None:
    """Between two ticks there may be more than memory should hold."""
    wires = Wires(9)
    wires.fanout.trim_at = 100
    everybody = wires.group(*range(9))
    for _ in range(100):
        wires.tell(everybody)
        wires.settle()
    assert wires.fanout.trim_at > 100
    assert wires.fanout.kept_bytes < 300


def test_nobody_acknowledges_what_was_never_published() -> None:
    wires = Wires(9)
    with pytest.raises(ProtocolError, match="publication 1 is acknowledged, and there were 0"):
        wires.fanout.acknowledge(b"w0", 1)
    with pytest.raises(ProtocolError, match="publication 7 is acknowledged"):
        wires.fanout.lapsed(b"w0", 7)


def test_a_worker_that_is_lost_is_not_told_any_more() -> None:
    """The others are told by a group without it, and what was kept for it is forgotten."""
    wires = Wires(11)
    everybody, rest = wires.group(*range(11)), wires.group(*range(10))
    for _ in range(3):
        wires.tell(everybody)
        wires.settle()
    wires.break_off(b"w10")
    wires.tell(everybody)
    wires.lose(b"w10")
    assert not wires.fanout.groups
    assert [wires.tell(rest), wires.tell(rest)] == [10, 10]
    wires.settle()
    assert wires.tell(rest) == 1
    wires.settle()
    wires.whole()
    assert all(len(worker.pipe.topics) == 2 for peer, worker in wires.workers.items() if peer in rest), (
        "its own, the group's"
    )


def test_a_ticket_that_arrives_again_is_of_another_connection() -> None:
    """What was published in between is lost, so the worker is told so, once."""
    wires = Wires(9)
    everybody = wires.group(*range(9))
    for _ in range(2):
        wires.tell(everybody)
        wires.settle()
    ticket = next(iter(wires.fanout.arrived))
    assert isinstance(wires.fanout.subscribed(ticket), Broken)
    assert wires.fanout.subscribed(ticket) is None


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
    assert len(wires.fanout.tickets) == len(wires.fanout.arrived) == kept + 11
    assert len(wires.workers[b"w0"].pipe.topics) == 1, "its own"


SEEDS = cases(120)
BATCHES = [range(start, min(start + 20, SEEDS)) for start in range(0, SEEDS, 20)]


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_any_order_of_arrivals_cuts_and_ends(seeds: range) -> None:
    """Groups of any size, stopped peers, connections that are cut with a word or without one, peers that end: who is not lost
    is told all, once and in order, and in the end nothing is kept."""
    for seed in seeds:
        simulate(seed)


class Story:
    """What happens to some peers, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.wires = Wires(draw.randint(3, 14), above=draw.randint(1, 4), limit=draw.randint(2, 4))
        self.known: list[tuple[bytes, ...]] = []
        self.stopped: set[bytes] = set()
        self.saved = self.cuts = 0
        self.happens = {
            self.groups: 0.02,
            self.tell: 0.4,
            self.move: 0.4,
            self.pass_time: 0.1,
            self.stop: 0.03,
            self.cut: draw.choice([0.005, 0.05]),
            self.end: 0.004,
        }

    def present(self) -> list[bytes]:
        return [peer for peer in self.wires.workers if peer not in self.wires.lost]

    def groups(self) -> None:
        there = self.present()
        self.known = [tuple(self.draw.sample(there, self.draw.randint(1, len(there)))) for _ in range(4)]

    def tell(self) -> None:
        to = self.draw.choice(self.known)
        if self.wires.lost.isdisjoint(to):
            self.saved += self.wires.tell(to) < len(to)

    def stop(self) -> None:
        self.stopped ^= {self.draw.choice(self.present())}

    def cut(self) -> None:
        worker = self.wires.workers[self.draw.choice(self.present())]
        if worker.pipes and not worker.pipe.cut:
            self.cuts += 1
            worker.pipe.lose(published=self.draw.randint(0, 3), tickets=self.draw.randint(0, 2))

    def end(self) -> None:
        if len(self.present()) > 1:
            self.wires.lose(self.draw.choice(self.present()))

    def pass_time(self) -> None:
        self.wires.tick()

    def move(self) -> None:
        awake = [peer for peer in self.present() if peer not in self.stopped]
        for _ in range(4 * len(awake)):
            self.get_on(self.draw.choice(awake))

    def get_on(self, peer: bytes) -> None:
        """Something of a peer gets on, in any order."""
        wires, worker, what = self.wires, self.wires.workers[peer], self.draw.random()
        pipe = self.draw.choice(worker.pipes) if worker.pipes else None
        if what < 0.3 and worker.direct:
            worker.hear(worker.direct.popleft())
        elif what < 0.6 and (frames := worker.subscription.receive()) is not None:
            worker.hear(frames)
        elif what < 0.7 and worker.said:
            wires.hear(peer)
        elif what < 0.85 and pipe is not None and pipe.tickets:
            wires.arrive(peer, pipe)
        elif what < 0.9:
            worker.subscription.look(wires.now)
        elif pipe is not None and pipe.cut:
            self.notice(pipe)

    def notice(self, pipe: Pipe) -> None:
        """One end of a connection notices that it has ended."""
        if self.draw.random() < 0.5:
            pipe.broken = True
        elif not pipe.withdrawn:
            self.wires.withdraw(pipe)

    def run(self, steps: int) -> None:
        self.groups()
        for _ in range(steps):
            self.draw.choices(list(self.happens), list(self.happens.values()))[0]()
            self.wires.fanout.check()

    def finish(self) -> None:
        """In the end somebody notices each cut, and everything arrives."""
        for worker in self.wires.workers.values():
            for pipe in worker.pipes:
                if pipe.cut and self.draw.random() < 0.5:
                    pipe.broken = True
                elif pipe.cut and not pipe.withdrawn:
                    self.wires.withdraw(pipe)
        self.wires.settle()
        self.wires.whole()
        self.wires.tick(MAX_WAIT_TICKS)
        self.wires.settle()
        self.wires.whole()
        self.wires.nothing_kept()


def simulate(seed: int) -> None:
    story = Story(seed)
    story.run(400)
    story.finish()
    PROVED["messages that took fewer sends than peers"] += story.saved
    PROVED["cut subscriptions"] += story.cuts
    PROVED["messages sent again after a cut subscription"] += story.wires.resent
