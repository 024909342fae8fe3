"""By which way each worker is told: one by one, or as a group by one message that is published.

Sending to one peer after the other costs the dispatcher's only thread microseconds for each. So above a few members a group
is told by one message on a socket that publishes: ZeroMQ hands the same bytes to the connections of all who subscribed,
and its own threads are the relays. No worker relays for another, so one that is slow, stopped or dead holds up nobody.
No socket, clock or thread in here.

Every worker's stream stays in one order, because at any time all of it goes one way. A worker begins with the socket that
it said hello on. The first time that it is in a large group it is asked to subscribe, by a *ticket* that nobody can guess;
when the ticket arrives, it is told `Switch` the old way, which is the last of that, and from then on everything for it is
published: under a *topic* of its own, or under that of a group once all members have subscribed to it. It reads what is
published only after the `Switch`. A connection that breaks is known by its tickets being given back, and its worker
counts as lost: nothing that it was sent is missed in silence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from gt import messages as m

ABOVE: Final = 8
"""Members of the largest group that is told one by one."""
MAX_GROUPS: Final = 128
"""Groups that have a topic; the least recently used goes first."""
MAX_SIGHTED: Final = 1024
"""Groups that were told something once, and may be worth a topic."""


class Accept(NamedTuple):
    """Whoever sent this ticket hears `topic` from now on; `switched` has all of its stream published now, if it is a peer."""

    topic: bytes
    switched: bytes


class Withdraw(NamedTuple):
    """Whoever gave this ticket back hears `topic` no longer."""

    topic: bytes


class Broken(NamedTuple):
    """A peer's connection is gone, and what was published for it with it."""

    peer: bytes


@dataclass(slots=True, eq=False)
class Group:
    """Peers that are told the same, under one topic. `missing` have yet to subscribe."""

    members: tuple[bytes, ...]
    topic: bytes
    missing: set[bytes]


class Ticket(NamedTuple):
    """What a ticket is for: a peer, and the group's topic that it hears, or its own (`group` None)."""

    peer: bytes
    topic: bytes
    group: Group | None


class Fanout:
    """The groups of one dispatcher, and which peers are told by publishing.

    `address` is where peers subscribe, `new_ticket` makes 16 bytes that nobody can guess. `out` holds messages for single
    peers, which the shell sends by the way that `routes` says.
    """

    def __init__(self, address: str, new_ticket: Callable[[], bytes], *, above: int = ABOVE, limit: int = MAX_GROUPS):
        self.address = address
        self.new_ticket = new_ticket
        self.above = above
        self.limit = limit
        self.topics = 0
        self.asked: set[bytes] = set()
        """Peers that were asked to subscribe, whether they have or not."""
        self.own: dict[bytes, bytes] = {}
        """The topics of their own of those that have switched."""
        self.groups: OrderedDict[tuple[bytes, ...], Group] = OrderedDict()
        self.sighted: set[tuple[bytes, ...]] = set()
        self.tickets: dict[bytes, Ticket] = {}
        self.heard: set[bytes] = set()
        """Tickets that arrived."""
        self.returned: set[bytes] = set()
        """Tickets that were asked back."""
        self.out: list[tuple[bytes, m.Message]] = []

    def routes(self, to: tuple[bytes, ...]) -> tuple[list[bytes], list[bytes] | tuple[bytes, ...]]:
        """(the topics under which to publish a message for these peers, the peers to whom to send it one by one)."""
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
        """A large group without a topic is told something: the second time it gets one, for it may be told more."""
        if to not in self.sighted:
            if len(self.sighted) >= MAX_SIGHTED:
                self.sighted.clear()
            self.sighted.add(to)
            return
        self.sighted.discard(to)
        while len(self.groups) >= self.limit:
            self._drop(self.groups.popitem(last=False)[1])
        group = self.groups[to] = Group(to, self._topic(), set(to))
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

    def _drop(self, group: Group) -> None:
        """A group has no topic any more: its members give their tickets back."""
        for ticket, what in list(self.tickets.items()):
            if what.group is group:
                self.returned.add(ticket)
                self.out.append((what.peer, m.Unsubscribe(ticket)))

    def subscribed(self, ticket: bytes) -> Accept | Broken | None:
        """A ticket has arrived: what to do."""
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
        """A ticket was given back, because it was asked for or because the connection is gone: what to do."""
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
        """Forget all peers but these, and the groups that others were in."""
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
