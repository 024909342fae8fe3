"""How each worker receives its messages: sent individually, or published once for a whole group.

Sending to one peer after the other costs the dispatcher's only thread some microseconds each. So a group above a few members
gets one message on a publishing socket: ZeroMQ delivers the same bytes to the connections of all subscribers, with its own
threads as relays. No worker relays for another, so one that is slow, stopped or dead delays nobody. No socket, clock or thread
is used here.

Every worker's stream stays in order, because at any time all of it takes the same way. A worker begins with the socket on
which it said hello. When it first belongs to a large group, it is asked to subscribe, with an unguessable *ticket*. When the
ticket arrives, the dispatcher sends it a last message the old way, `Switch`; from then on everything for it is published,
under a *topic* of its own, or under that of a group once all its members have subscribed. The worker reads what is published
only after the `Switch`. When a connection breaks, its tickets come back, and its worker counts as lost: so no message is
missed silently.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from gt.wire import messages as m

MULTICAST_ABOVE: Final = 8
"""The size of the largest group whose members are sent messages individually."""
MAX_GROUPS: Final = 128
"""The most groups with a topic; the least recently used loses it."""
MAX_SIGHTED: Final = 1024
"""The most groups that are remembered because they got one message and may deserve a topic."""


class Accept(NamedTuple):
    """The connection that sent this ticket receives `topic` from now on. `switched` is the peer whose whole stream is
    published from now on, if this was its first ticket."""

    topic: bytes
    switched: bytes


class Withdraw(NamedTuple):
    """The connection that returned this ticket receives `topic` no longer."""

    topic: bytes


class Broken(NamedTuple):
    """A peer's connection broke, and messages published for it are lost."""

    peer: bytes


@dataclass(slots=True, eq=False)
class MulticastGroup:
    """Peers that receive the same messages under one topic. `missing` are those that have not subscribed yet."""

    members: tuple[bytes, ...]
    topic: bytes
    missing: set[bytes]


class Ticket(NamedTuple):
    """The purpose of a ticket: a peer, and the topic that it gives, a group's or (`group` None) the peer's own."""

    peer: bytes
    topic: bytes
    group: MulticastGroup | None


class Fanout:
    """The groups of one dispatcher, and which peers receive published messages.

    `address` is where peers subscribe; `new_ticket` makes 16 unguessable bytes. `out` collects messages for single peers,
    which the shell sends the way that `routes` says.
    """

    def __init__(
        self, address: str, new_ticket: Callable[[], bytes], *, above: int = MULTICAST_ABOVE, limit: int = MAX_GROUPS
    ):
        self.address = address
        self.new_ticket = new_ticket
        self.above = above
        self.limit = limit
        self.topics = 0
        self.asked: set[bytes] = set()
        """The peers that were asked to subscribe, whether or not they have."""
        self.own: dict[bytes, bytes] = {}
        """The own topics of the peers that have switched."""
        self.groups: OrderedDict[tuple[bytes, ...], MulticastGroup] = OrderedDict()
        self.sighted: set[tuple[bytes, ...]] = set()
        self.tickets: dict[bytes, Ticket] = {}
        self.heard: set[bytes] = set()
        """The tickets that have arrived."""
        self.returned: set[bytes] = set()
        """The tickets that peers were asked to return."""
        self.out: list[tuple[bytes, m.Message]] = []

    def routes(self, to: tuple[bytes, ...]) -> tuple[list[bytes], list[bytes] | tuple[bytes, ...]]:
        """The topics under which to publish a message for these peers, and the peers to send it to individually."""
        if len(to) > self.above:
            group = self.groups.get(to)
            if group is None:
                self._sight(to)
            else:
                self.groups.move_to_end(to)
                if not group.missing:
                    return [group.topic], ()
        own = self.own
        if not own:
            return [], to
        return [own[peer] for peer in to if peer in own], [peer for peer in to if peer not in own]

    def _sight(self, to: tuple[bytes, ...]) -> None:
        """A large group without a topic gets a message. The second time it gets a topic, since more messages are likely."""
        if to not in self.sighted:
            if len(self.sighted) >= MAX_SIGHTED:
                self.sighted.clear()
            self.sighted.add(to)
            return
        self.sighted.discard(to)
        while len(self.groups) >= self.limit:
            self._drop(self.groups.popitem(last=False)[1])
        group = self.groups[to] = MulticastGroup(to, self._topic(), set(to))
        for peer in to:
            if peer not in self.asked:
                self.asked.add(peer)
                self._ask(Ticket(peer, self._topic(), None))
            self._ask(Ticket(peer, group.topic, group))

    def _topic(self) -> bytes:
        self.topics += 1
        return self.topics.to_bytes(m.TOPIC_BYTES, "big")

    def _ask(self, what: Ticket) -> None:
        ticket = self.new_ticket()
        self.tickets[ticket] = what
        self.out.append((what.peer, m.Subscribe(self.address, ticket)))

    def _drop(self, group: MulticastGroup) -> None:
        """Take a group's topic away: its members are asked to return their tickets."""
        for ticket, what in list(self.tickets.items()):
            if what.group is group:
                self.returned.add(ticket)
                self.out.append((what.peer, m.Unsubscribe(ticket)))

    def subscribed(self, ticket: bytes) -> Accept | Broken | None:
        """A ticket has arrived. Returns what the shell must do."""
        what = self.tickets.get(ticket)
        if what is None or ticket in self.returned:
            return None
        if ticket in self.heard:
            return Broken(what.peer)  # it connected anew, and what was sent in between is lost
        self.heard.add(ticket)
        if what.group is None:
            self.own[what.peer] = what.topic
            return Accept(what.topic, what.peer)
        what.group.missing.discard(what.peer)
        return Accept(what.topic, b"")

    def unsubscribed(self, ticket: bytes) -> Withdraw | Broken | None:
        """A ticket was returned, on request or because its connection broke. Returns what the shell must do."""
        what = self.tickets.get(ticket)
        if what is None:
            return None
        if ticket not in self.returned:
            return Broken(what.peer)
        self._forget(ticket)
        return Withdraw(what.topic)

    def _forget(self, ticket: bytes) -> None:
        del self.tickets[ticket]
        self.heard.discard(ticket)
        self.returned.discard(ticket)

    def keep(self, peers: Collection[bytes]) -> None:
        """Forget all other peers than these, and the groups that they were in."""
        gone = self.asked - set(peers)
        if not gone:
            return
        self.asked -= gone
        for peer in gone:
            self.own.pop(peer, None)
        for ticket, what in list(self.tickets.items()):
            if what.peer in gone:
                self._forget(ticket)
        for group in [group for group in self.groups.values() if not gone.isdisjoint(group.members)]:
            del self.groups[group.members]
            self._drop(group)

    def check(self) -> None:
        """The invariants between calls."""
        assert self.own.keys() <= self.asked, "who has switched was asked to"
        assert self.heard <= self.tickets.keys()
        assert self.returned <= self.tickets.keys()
        for group in self.groups.values():
            assert group.missing <= set(group.members)
            ready = {what.peer for ticket, what in self.tickets.items() if what.group is group and ticket in self.heard}
            assert ready == set(group.members) - group.missing, "who is not missing has subscribed"
            assert self.asked.issuperset(group.members)
