"""Which memory stays on a device and which goes out, when only so much may stay: the books, without any memory in them.

There are three tiers: the device, pinned memory of the host (of GPUs alone), and the file. A limit is on one of them.

A *buffer* is memory that one or more values look at. Values are in *places*: the slots of the program under way, and the
tensors in store. What runs next is known, so what goes out first is the buffer that is wanted again last (L. A. Belady, "A
study of replacement algorithms for a virtual-storage computer", 1966). No array may be in here, and no file.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

Place = int | tuple[int, int]
"""A slot, or (client, tensor)."""
NEVER: Final = float("inf")
"""When a value is wanted next of which nobody knows."""


class Full(MemoryError):
    """What must be there at once is more than may be: `wanted` bytes more, beside `fixed` that cannot go out."""

    def __init__(self, wanted: int, fixed: int, limit: int) -> None:
        super().__init__(f"{wanted:,} bytes are needed beside {fixed:,} that cannot go out, and {limit:,} is the limit")
        self.wanted, self.fixed, self.limit = wanted, fixed, limit


INSIDE: Final = 0
PINNED: Final = 1
FILE: Final = 2
"""The tiers."""


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory of `nbytes` in some `tier`; `places` are where its values are."""

    nbytes: int
    tier: int
    places: set[Place] = field(default_factory=set)

    @property
    def inside(self) -> bool:
        """Whether it is on the device."""
        return self.tier == INSIDE


class Residency:
    """Buffers by whatever key they are given, of which at most `limit` bytes are to be inside."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.buffers: dict[Hashable, Buffer] = {}
        self.keys: dict[Place, Hashable] = {}
        self.held = [0, 0, 0]
        """Bytes in each tier."""

    @property
    def used(self) -> int:
        """Bytes inside."""
        return self.held[INSIDE]

    def put(self, place: Place, key: Hashable, nbytes: int, tier: int = INSIDE) -> None:
        """The value in a place looks at this buffer from now on, and at no other."""
        if self.keys.get(place, self) == key:
            return
        self.clear(place)
        buffer = self.buffers.get(key)
        if buffer is None:
            buffer = self.buffers[key] = Buffer(nbytes, tier)
            self.held[tier] += nbytes
        buffer.places.add(place)
        self.keys[place] = key

    def clear(self, place: Place) -> None:
        """No value is in a place any more. What nobody looks at is gone."""
        key = self.keys.pop(place, None)
        if key is None:
            return
        buffer = self.buffers[key]
        buffer.places.discard(place)
        if not buffer.places:
            del self.buffers[key]
            self.held[buffer.tier] -= buffer.nbytes

    def turn(self, old: Hashable, new: Hashable, tier: int) -> None:
        """A buffer has gone to another tier, and has another key there if it went out or came in. Where one is known by that key
        they are one now: what came in was in already, for others who had looked at it before."""
        buffer = self.buffers.pop(old)
        known = self.buffers.get(new)
        self.held[buffer.tier] -= buffer.nbytes
        for place in buffer.places:
            self.keys[place] = new
        if known is not None:
            assert known.tier == tier != buffer.tier, "a buffer turned into itself"
            known.places |= buffer.places
            return
        self.buffers[new] = buffer
        buffer.tier = tier
        self.held[tier] += buffer.nbytes

    def victims(
        self, nbytes: int, pinned: Collection[Hashable], wanted: Callable[[Place], float], limit: int | None = None
    ) -> Iterator[Hashable]:
        """Which buffers have to go out so that there is room for so many bytes more, the one that is wanted last first.

        `pinned` stay; `wanted` says of a place when its value is read next. Whoever is told moves it out (`turn`) before it
        asks for the next. Raises `Full` when all that may go out is not enough, and then nothing was named.
        """
        most = self.limit if limit is None else limit
        if self.used + nbytes <= most:
            return
        fixed = sum(self.buffers[key].nbytes for key in pinned if key in self.buffers and self.buffers[key].inside)
        if fixed + nbytes > most:
            raise Full(nbytes, fixed, most)
        for _, key in self.last_first(INSIDE, pinned, wanted):
            if self.used + nbytes <= most:
                return
            yield key

    def give_way(
        self, nbytes: int, when: float, pinned: Collection[Hashable], wanted: Callable[[Place], float]
    ) -> list[Hashable]:
        """Which buffers may go out for so many bytes that are read at `when`: such as are wanted later, the last first. None
        where these are not enough."""
        found = []
        for at, key in self.last_first(INSIDE, pinned, wanted):
            if at <= when:
                return []
            found.append(key)
            nbytes -= self.buffers[key].nbytes
            if nbytes <= 0:
                return found
        return []

    def last_first(
        self, tier: int, but: Collection[Hashable], wanted: Callable[[Place], float]
    ) -> Iterator[tuple[float, Hashable]]:
        """When each buffer of a tier is wanted next, and its key: what is wanted last first, of equal ones the largest."""
        free = [(key, buffer) for key, buffer in self.buffers.items() if buffer.tier == tier and key not in but]
        order = [
            (-min(map(wanted, buffer.places)), -buffer.nbytes, at)
            for at, (_, buffer) in enumerate(free)
            if buffer.nbytes
        ]
        heapq.heapify(order)
        while order:
            when, _, at = heapq.heappop(order)
            yield -when, free[at][0]

    def check(self) -> None:
        """The invariants: sums are right, and every place is where its buffer says."""
        for tier, held in enumerate(self.held):
            assert held == sum(buffer.nbytes for buffer in self.buffers.values() if buffer.tier == tier)
        assert all(buffer.places for buffer in self.buffers.values())
        assert {place: key for key, buffer in self.buffers.items() for place in buffer.places} == self.keys
