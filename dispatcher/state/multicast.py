"""How each worker receives its messages: sent individually, or published once for a whole group.

Sending to one peer after the other costs the dispatcher's only thread some microseconds each. So a group above a few members
gets one message on a publishing socket: ZeroMQ delivers the same bytes to the connections of all subscribers, with its own
threads as relays. No worker relays for another, so one that is slow, stopped or dead delays nobody. No socket, clock or thread
is used here.

A worker begins with its reliable stream, the one on which it said hello. When it first belongs to a large group, it is asked to
subscribe, with an unguessable *ticket*. When the ticket arrives, the dispatcher sends it a last message the old way, `Switch`;
from then on everything for it is published, under a *topic* of its own, or under that of a group once all its members have
subscribed. When the connection to the publishing socket breaks, the worker closes it and says `Lapsed` on its stream. The
dispatcher sends there what was published in vain, then `Unswitch`, and everything that follows, until the worker has
subscribed again. A worker that has not noticed is told by `Lapse`.

**Every message arrives once and in order.** All publications of the socket are numbered together, and are kept until the
workers concerned have acknowledged them (`Heard`, `Lapsed`).

* At any time all that is sent to a worker takes the same way; so it is enough that no way overtakes the other when it changes.
* From the stream to the socket: the worker reads what is published only after the `Switch`, the last word of its stream.
* From the socket to the stream: what follows is sent when `Lapsed` has come, and then the worker reads the socket no more. Its
  one connection kept the order, so what it has heard is a beginning of what was published for it, up to the number in `Lapsed`.
  The dispatcher sends exactly the rest, before anything new.
* What belongs to a connection that has ended changes nothing: the worker takes no notice of `Subscribe`, `Unsubscribe`,
  `Switch` and `Lapse` between its `Lapsed` and the `Unswitch`, because all of these were sent before its `Lapsed` was known;
  and the dispatcher forgets the worker's tickets when that comes.

What is kept is bounded as in streams: by the credits of those who cause it. A worker that acknowledges nothing for long holds
up only what was published for itself or for a group of which it is a member.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire.reliable_stream import Frames

MULTICAST_ABOVE: Final = 8
"""The size of the largest group whose members are sent messages individually."""
MAX_GROUPS: Final = 128
"""The most groups with a topic; the least recently used loses it."""
MAX_SIGHTED: Final = 1024
"""The most groups that are remembered because they got one message and may deserve a topic."""
MAX_WAIT_TICKS: Final = 64
"""The most ticks (seconds) after which a peer whose connection has ended is asked to subscribe again: one at first, and twice as
many after each connection that lasted for less than this."""
TRIM_BYTES: Final = 1 << 24
"""When more is kept, what was acknowledged since is not left until the next tick."""
_PREFIX: Final = Struct(">QQ")
"""What stands before the first frame of a published message: topic and number."""


class Accept(NamedTuple):
    """The connection that sent this ticket receives `topic` from now on. `switched` is the peer whose whole stream is
    published from now on, if this was its first ticket."""

    topic: bytes
    switched: bytes


class Withdraw(NamedTuple):
    """The connection that returned this ticket receives `topic` no longer."""

    topic: bytes


class Broken(NamedTuple):
    """A peer's connection has ended; it is to be told so by `Lapse`, on its stream."""

    peer: bytes


@dataclass(slots=True, eq=False)
class MulticastGroup:
    """Peers that receive the same messages under one topic. `missing` are those that have not subscribed. A peer's own topic is
    that of a group of one."""

    members: tuple[bytes, ...]
    topic: int
    missing: set[bytes]
    log: deque[tuple[int, int, Frames]] = field(default_factory=deque)
    """(number, bytes, frames) of the messages that some member may not have heard."""


class Ticket(NamedTuple):
    """The purpose of a ticket: a peer, and the group whose topic it gives. `own`: it is the peer's own."""

    peer: bytes
    group: MulticastGroup
    own: bool


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
        self.number = 0
        """That of the last publication."""
        self.asked: set[bytes] = set()
        """The peers that were asked to subscribe, whether or not they have."""
        self.own: dict[bytes, MulticastGroup] = {}
        """The own topics of the peers that have switched."""
        self.heard: dict[bytes, int] = {}
        """The number up to which each of these has all that was published for it."""
        self.lapsing: set[bytes] = set()
        """Those of them that are told that their connection has ended."""
        self.waiting: dict[bytes, int] = {}
        """The peers that are to be asked again, and in how many ticks."""
        self.waits: dict[bytes, int] = {}
        """How many ticks a peer waited the last time."""
        self.ticks = 0
        self.switched_at: dict[bytes, int] = {}
        """The tick at which a peer has switched last."""
        self.groups: OrderedDict[tuple[bytes, ...], MulticastGroup] = OrderedDict()
        self.dropped: list[MulticastGroup] = []
        """Groups that have lost their topic, while members may not have heard all that was published under it."""
        self.sighted: set[tuple[bytes, ...]] = set()
        self.tickets: dict[bytes, Ticket] = {}
        self.arrived: set[bytes] = set()
        """The tickets that have arrived."""
        self.returned: set[bytes] = set()
        """The tickets that peers were asked to return."""
        self.kept_bytes = 0
        """The bytes of all logs."""
        self.trim_at = TRIM_BYTES
        self.out: list[tuple[bytes, m.Message]] = []

    def routes(self, to: tuple[bytes, ...], frames: Frames) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The ways of a message for these peers: what to put before its first frame each time that it is published, and the
        peers to send it to individually."""
        if len(to) > self.above:
            group = self.groups.get(to)
            if group is None:
                self._sight(to)
            else:
                self.groups.move_to_end(to)
                if not group.missing:
                    return (self._publish(group, frames),), ()
        own = self.own
        if not own:
            return (), to
        return [self._publish(own[peer], frames) for peer in to if peer in own], [
            peer for peer in to if peer not in own
        ]

    def _publish(self, group: MulticastGroup, frames: Frames) -> bytes:
        self.number = number = self.number + 1
        size = len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        group.log.append((number, size, frames))
        self.kept_bytes += size
        return _PREFIX.pack(group.topic, number)

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
        group = self.groups[to] = self._group(to)
        for peer in to:
            if peer not in self.waiting:
                self._ask(peer, group)

    def _group(self, members: tuple[bytes, ...]) -> MulticastGroup:
        self.topics += 1
        return MulticastGroup(members, self.topics, set(members))

    def _ask(self, peer: bytes, group: MulticastGroup) -> None:
        """Ask a peer to subscribe to a group, and before the first one to what is its own."""
        if peer not in self.asked:
            self.asked.add(peer)
            self._send_ticket(Ticket(peer, self._group((peer,)), own=True))
        self._send_ticket(Ticket(peer, group, own=False))

    def _send_ticket(self, what: Ticket) -> None:
        ticket = self.new_ticket()
        self.tickets[ticket] = what
        self.out.append((what.peer, m.Subscribe(self.address, ticket)))

    def _drop(self, group: MulticastGroup) -> None:
        """Take a group's topic away: its members are asked to return their tickets."""
        if group.log:
            self.dropped.append(group)
        for ticket, what in list(self.tickets.items()):
            if what.group is group:
                self.returned.add(ticket)
                self.out.append((what.peer, m.Unsubscribe(ticket)))

    def subscribed(self, ticket: bytes) -> Accept | Broken | None:
        """A ticket has arrived. Returns what the shell must do."""
        what = self.tickets.get(ticket)
        if what is None or ticket in self.returned:
            return None
        if ticket in self.arrived:
            return self._broken(what.peer)  # it connected anew, and what was sent in between is lost
        self.arrived.add(ticket)
        what.group.missing.discard(what.peer)
        if not what.own:
            return Accept(_topic(what.group), b"")
        self.own[what.peer] = what.group
        self.heard[what.peer] = self.number
        self.switched_at[what.peer] = self.ticks
        return Accept(_topic(what.group), what.peer)

    def unsubscribed(self, ticket: bytes) -> Withdraw | Broken | None:
        """A ticket was returned, on request or because its connection broke. Returns what the shell must do."""
        what = self.tickets.get(ticket)
        if what is None:
            return None
        if ticket not in self.returned:
            return self._broken(what.peer)
        self._forget(ticket)
        return Withdraw(_topic(what.group))

    def _broken(self, peer: bytes) -> Broken | None:
        if peer in self.lapsing:
            return None
        self.lapsing.add(peer)
        return Broken(peer)

    def _forget(self, ticket: bytes) -> None:
        del self.tickets[ticket]
        self.arrived.discard(ticket)
        self.returned.discard(ticket)

    def acknowledge(self, peer: bytes, number: int) -> None:
        """A peer says what it has heard. Raises `ProtocolError` if so much was never published."""
        if number > self.number:
            raise ProtocolError(f"publication {number} is acknowledged, and there were {self.number}")
        if peer in self.heard:
            self.heard[peer] = max(self.heard[peer], number)
            if self.kept_bytes > self.trim_at:
                self._trim()

    def lapsed(self, peer: bytes, number: int) -> list[Frames]:
        """A peer has closed its connection, and heard what was published up to this number. Returns the messages that it
        missed, to be sent individually before `Unswitch` and all others. Raises `ProtocolError` like `acknowledge`."""
        self.acknowledge(peer, number)
        missed: list[tuple[int, Frames]] = []
        own, heard = self.own.pop(peer, None), self.heard.pop(peer, self.number)
        for group in (*self.groups.values(), *self.dropped, *([own] if own is not None else [])):
            if peer in group.members:
                missed += [(each, frames) for each, _, frames in group.log if each > heard]
                group.missing.add(peer)
        if own is not None:
            self.kept_bytes -= sum(size for _, size, _ in own.log)
        for ticket in [ticket for ticket, what in self.tickets.items() if what.peer == peer]:
            self._forget(ticket)
        self.asked.discard(peer)
        self.lapsing.discard(peer)
        lasted = self.ticks - self.switched_at.pop(peer, self.ticks)
        wait = 1 if lasted >= MAX_WAIT_TICKS else min(2 * self.waits.get(peer, 0) or 1, MAX_WAIT_TICKS)
        self.waiting[peer] = self.waits[peer] = wait
        return [frames for _, frames in sorted(missed, key=itemgetter(0))]

    def tick(self) -> None:
        """About a second has passed: forget what all have heard, and ask those to subscribe again whose turn it is."""
        self.ticks += 1
        self._trim()
        if not self.waiting:
            return
        due = {peer for peer, ticks in self.waiting.items() if ticks <= 1}
        self.waiting = {peer: ticks - 1 for peer, ticks in self.waiting.items() if ticks > 1}
        if due:
            for group in self.groups.values():
                for peer in group.members:
                    if peer in due:
                        self._ask(peer, group)

    def _trim(self) -> None:
        """Forget what every member has heard, or was sent individually since."""
        heard, everything = self.heard, self.number
        for group in (*self.groups.values(), *self.dropped, *self.own.values()):
            if group.log:
                known = min((heard[peer] for peer in group.members if peer in heard), default=everything)
                while group.log and group.log[0][0] <= known:
                    self.kept_bytes -= group.log.popleft()[1]
        self.dropped = [group for group in self.dropped if group.log]
        self.trim_at = max(TRIM_BYTES, 2 * self.kept_bytes)

    def keep(self, peers: Collection[bytes]) -> None:
        """Forget all other peers than these, and the groups that they were in."""
        gone = (self.asked | self.waits.keys()) - set(peers)
        if not gone:
            return
        self.asked -= gone
        self.lapsing -= gone
        for peer in gone:
            own = self.own.pop(peer, None)
            if own is not None:
                self.kept_bytes -= sum(size for _, size, _ in own.log)
            for known in (self.heard, self.waiting, self.waits, self.switched_at):
                known.pop(peer, None)
        for ticket, what in list(self.tickets.items()):
            if what.peer in gone:
                self._forget(ticket)
        for group in [group for group in self.groups.values() if not gone.isdisjoint(group.members)]:
            del self.groups[group.members]
            self._drop(group)

    def check(self) -> None:
        """The invariants between calls."""
        assert self.own.keys() == self.heard.keys() == self.switched_at.keys()
        assert self.own.keys() <= self.asked, "who has switched was asked to"
        assert self.asked.isdisjoint(self.waiting), "who has to wait was not asked yet"
        assert self.waiting.keys() <= self.waits.keys()
        assert self.arrived <= self.tickets.keys()
        assert self.returned <= self.tickets.keys()
        for group in self.groups.values():
            assert group.missing <= set(group.members)
            ready = {
                what.peer for ticket, what in self.tickets.items() if what.group is group and ticket in self.arrived
            }
            assert ready == set(group.members) - group.missing, "who is not missing has subscribed"
            assert (self.asked | self.waiting.keys()).issuperset(group.members)
        logs = [group.log for group in (*self.groups.values(), *self.dropped, *self.own.values())]
        assert self.kept_bytes == sum(size for log in logs for _, size, _ in log)
        numbers = [[number for number, _, _ in log] for log in logs]
        assert all(log == sorted(log) for log in numbers), "a log is in order"
        every = [number for log in numbers for number in log]
        assert len(every) == len(set(every)), "nothing is kept twice"
        assert max(every, default=0) <= self.number


def _topic(group: MulticastGroup) -> bytes:
    return group.topic.to_bytes(m.TOPIC_BYTES, "big")
