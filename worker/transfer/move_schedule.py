"""Who sends which portion of a value to whom in one move, and in which order contributions are added: pure functions.

Every rank derives its own side from the same arguments. A transfer is cut into pieces of limited size, so that one is reduced
while the next is prepared. A *portion* is a box of the result, made of the pieces that belong there; once made, it may be sent
on to further ranks. An algorithm only decides which pieces make a portion, and who gets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gt.sharding.collectives import chunks
from gt.sharding.partition import Box, BoxTransfer, extent


@dataclass(frozen=True, slots=True)
class ScheduledSend:
    """A box of the value before the move, sent to `targets` as piece `number`."""

    number: int
    part: Box
    targets: tuple[int, ...]


@dataclass(slots=True)
class ScheduledPortion:
    """A portion of the result: the contributions of `sources`, added in this order (this rank's own is what it holds).

    Once made, it is sent to `targets` as piece `number`.
    """

    part: Box
    sources: list[int]
    number: int = 0
    targets: tuple[int, ...] = ()


@dataclass(slots=True)
class MoveSchedule:
    """One rank's side of a move. `awaited` says to which portion the piece (source, number) belongs."""

    sent: list[ScheduledSend] = field(default_factory=list)
    made: list[ScheduledPortion] = field(default_factory=list)
    awaited: dict[tuple[int, int], int] = field(default_factory=dict)

    def make(self, rank: int, number: int, made: ScheduledPortion) -> None:
        """Add a portion whose foreign contributions come as piece `number`."""
        for source in made.sources:
            if source != rank:
                self.awaited[source, number] = len(self.made)
        self.made.append(made)


def cut(part: Box, count: int) -> Iterator[Box]:
    """At least `count` boxes (fewer if there are fewer elements) that tile `part`, each contiguous in row-major order."""
    if count <= 1 or not part or not math.prod(extent(part)):
        yield part
        return
    (start, stop), rest = part[0], part[1:]
    size = stop - start
    if size >= count or math.prod(extent(rest)) == 1:
        count = min(count, size)
        for at in range(count):
            yield ((start + at * size // count, start + (at + 1) * size // count), *rest)
        return
    inside = -(-count // size)
    for row in range(start, stop):
        for box in cut(rest, inside):
            yield ((row, row + 1), *box)


def pieces(part: Box, itemsize: int) -> Iterator[Box]:
    """The part of a transfer, cut into pieces."""
    return cut(part, chunks(math.prod(extent(part)) * itemsize))


def redistribution(sends: list[BoxTransfer], receives: list[BoxTransfer], rank: int, itemsize: int) -> MoveSchedule:
    """Everything in one step: each rank sends what others need of its part, and adds contributions in order of rank."""
    schedule = MoveSchedule()
    targets: dict[Box, list[int]] = {}
    for transfer in sends:
        if transfer.target != rank:
            targets.setdefault(transfer.part, []).append(transfer.target)
    for part, who in targets.items():
        for number, piece in enumerate(pieces(part, itemsize)):
            schedule.sent.append(ScheduledSend(number, piece, tuple(who)))
    # first pieces first, and every rank begins with the one behind it: else all would begin with the same
    schedule.sent.sort(key=lambda sent: (sent.number, sent.targets[0] < rank, sent.targets[0]))
    sources: dict[Box, list[int]] = {}
    for transfer in receives:
        sources.setdefault(transfer.part, []).append(transfer.source)
    for part, givers in sources.items():
        for number, piece in enumerate((part,) if givers == [rank] else pieces(part, itemsize)):
            schedule.make(rank, number, ScheduledPortion(piece, givers))
    return schedule


def _shares(part: Box, itemsize: int, parts: int) -> list[tuple[int, Box]]:
    """The pieces of a value, each with the position of the rank that reduces it."""
    count = chunks(math.prod(extent(part)) * itemsize)
    boxes = list(cut(part, -(-count // parts) * parts))
    return [(at * parts // len(boxes), box) for at, box in enumerate(boxes)]


def two_step(part: Box, itemsize: int, group: tuple[int, ...], rank: int) -> MoveSchedule:
    """Reduce-scatter, then all-gather: each rank reduces its share of all contributions, and sends the result to all others."""
    schedule = MoveSchedule()
    others = tuple(other for other in group if other != rank)
    for number, (share, box) in enumerate(_shares(part, itemsize, len(group))):
        owner = group[share]
        if owner == rank:
            schedule.make(rank, number, ScheduledPortion(box, list(group), number, others))
        else:
            schedule.sent.append(ScheduledSend(number, box, (owner,)))
            schedule.make(rank, number, ScheduledPortion(box, [owner]))
    return schedule


def ring(part: Box, itemsize: int, group: tuple[int, ...], rank: int) -> MoveSchedule:
    """Each share goes around once, adding a contribution at every rank, and a second time to distribute the sum."""
    schedule = MoveSchedule()
    here, size = group.index(rank), len(group)
    before, behind = group[here - 1], group[(here + 1) % size]
    shares = _shares(part, itemsize, size)
    for number, (share, box) in enumerate(shares):
        again = len(shares) + number
        if here == (share + 1) % size:
            schedule.sent.append(ScheduledSend(number, box, (behind,)))
        else:
            ends = here == share
            schedule.make(rank, number, ScheduledPortion(box, [before, rank], again if ends else number, (behind,)))
        if here != share:
            onwards = () if (here + 1) % size == share else (behind,)
            schedule.make(rank, again, ScheduledPortion(box, [before], again, onwards))
    return schedule


def tree(part: Box, itemsize: int, group: tuple[int, ...], rank: int) -> MoveSchedule:
    """Contributions go up a binomial tree, in which each rank adds those of its children to its own; the sum comes down again."""
    schedule = MoveSchedule()
    here = group.index(rank)
    parent = group[here & (here - 1)]
    reach = (here & -here) or len(group)
    children = []
    step = 1
    while step < reach and here + step < len(group):
        children.append(group[here + step])
        step *= 2
    boxes = list(pieces(part, itemsize))
    for number, box in enumerate(boxes):
        down = len(boxes) + number
        if here == 0:
            schedule.make(rank, number, ScheduledPortion(box, [rank, *children], down, tuple(children)))
            continue
        if children:
            schedule.make(rank, number, ScheduledPortion(box, [rank, *children], number, (parent,)))
        else:
            schedule.sent.append(ScheduledSend(number, box, (parent,)))
        schedule.make(rank, down, ScheduledPortion(box, [parent], down, tuple(children)))
    return schedule


def by_host(group: tuple[int, ...], hosts: Sequence[int]) -> list[tuple[int, ...]]:
    """The ranks of a group, host by host in the order of their first ranks; no `hosts` are one."""
    found: dict[int, list[int]] = {}
    for rank in group:
        found.setdefault(hosts[rank] if hosts else 0, []).append(rank)
    return [tuple(members) for members in found.values()]


def hierarchical(part: Box, itemsize: int, near: list[tuple[int, ...]], rank: int) -> MoveSchedule:
    """An all-reduce between the hosts that `near` lists with their ranks. Each piece has one owner on each host, to which the
    others there give their contributions, and one of the owners is its root. The other owners send their sums to the root,
    which returns the total to them, and they give it to the others of their hosts.

    Order of addition: the contributions of the root's host in order of rank, then the sums of the other hosts in order, each of
    them added in order of rank. Which host is the root follows from the number of the piece, so all hosts send equally much.
    """
    schedule = MoveSchedule()
    lanes = max(map(len, near))
    boxes = list(cut(part, -(-chunks(math.prod(extent(part)) * itemsize) // (lanes * len(near))) * lanes * len(near)))
    here = next(at for at, members in enumerate(near) if rank in members)
    for number, box in enumerate(boxes):
        lane, home = divmod(number * lanes * len(near) // len(boxes), len(near))
        owners = [members[lane * len(members) // lanes] for members in near]
        own, root, down = owners[here], owners[home], len(boxes) + number
        others = tuple(member for member in near[here] if member != own)
        if rank != own:
            schedule.sent.append(ScheduledSend(number, box, (own,)))
            schedule.make(rank, down, ScheduledPortion(box, [own]))
        elif rank == root:
            away = [owner for at, owner in enumerate(owners) if at != home]
            schedule.make(rank, number, ScheduledPortion(box, [*near[here], *away], down, (*away, *others)))
        else:
            if others:
                schedule.make(rank, number, ScheduledPortion(box, list(near[here]), number, (root,)))
            else:
                schedule.sent.append(ScheduledSend(number, box, (root,)))
            schedule.make(rank, down, ScheduledPortion(box, [root], down, others))
    return schedule


ALL_REDUCE: Final[dict[str, Callable[[Box, int, tuple[int, ...], int], MoveSchedule]]] = {
    "two-step": two_step,
    "ring": ring,
    "tree": tree,
}
"""The algorithms that need not know hosts, other than `direct`, which is the plain redistribution."""
