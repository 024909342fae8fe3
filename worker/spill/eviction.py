"""Which buffers stay on a device and which are evicted when its memory is limited. Bookkeeping only, without any memory.

There are three tiers: the device, pinned memory of the host (for GPUs only), and a file. The limit applies to one of them.

A *buffer* is memory that one or more values look at. Values are in *places*: the slots of the running program, and stored
tensors. Future reads are known, so the buffer that is read again last is evicted first (L. A. Belady, "A study of replacement
algorithms for a virtual-storage computer", 1966). Where buffers are of several principals, those of the one that has most above
its share go first (`Residency.owner`). No array and no file may be used here.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

ValuePlace = int | tuple[int, int]
"""A slot, or (client, tensor)."""
MemoryOwner = tuple[Hashable, float]
"""A principal, and what it weighs."""
NEVER_READ: Final = float("inf")
"""The time of the next read of a value whose next read is unknown."""


class OverLimit(MemoryError):
    """More must be in memory at once than the limit allows: `wanted` bytes more, besides `fixed` bytes that cannot be evicted."""

    def __init__(self, wanted: int, fixed: int, limit: int) -> None:
        super().__init__(f"{wanted:,} bytes are needed beside {fixed:,} that cannot go out, and {limit:,} is the limit")
        self.wanted, self.fixed, self.limit = wanted, fixed, limit


DEVICE_TIER: Final = 0
PINNED_TIER: Final = 1
FILE_TIER: Final = 2
"""The tiers."""


@dataclass(slots=True, eq=False)
class ResidentBuffer:
    """Memory of `nbytes` bytes in some `tier`; `places` are those whose values look at it."""

    nbytes: int
    tier: int
    places: set[ValuePlace] = field(default_factory=set)

    @property
    def inside(self) -> bool:
        """Whether it is on the device."""
        return self.tier == DEVICE_TIER


class Residency:
    """Buffers by arbitrary keys, of which at most `limit` bytes are to be inside."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.buffers: dict[Hashable, ResidentBuffer] = {}
        self.keys: dict[ValuePlace, Hashable] = {}
        self.held = [0, 0, 0]
        """The bytes in each tier."""

        self.owner: Callable[[ValuePlace], MemoryOwner] | None = None
        """Whose the value in a place is; None: all are one principal's."""
        self.asks: MemoryOwner = ("", 1.0)
        """Who needs room."""

    @property
    def used(self) -> int:
        """The bytes inside."""
        return self.held[DEVICE_TIER]

    def put(self, place: ValuePlace, key: Hashable, nbytes: int, tier: int = DEVICE_TIER) -> None:
        """From now on, the value in a place looks at this buffer and no other."""
        if self.keys.get(place, self) == key:
            return
        self.clear(place)
        buffer = self.buffers.get(key)
        if buffer is None:
            buffer = self.buffers[key] = ResidentBuffer(nbytes, tier)
            self.held[tier] += nbytes
        buffer.places.add(place)
        self.keys[place] = key

    def clear(self, place: ValuePlace) -> None:
        """A place holds no value any more. A buffer that no value looks at is forgotten."""
        key = self.keys.pop(place, None)
        if key is None:
            return
        buffer = self.buffers[key]
        buffer.places.discard(place)
        if not buffer.places:
            del self.buffers[key]
            self.held[buffer.tier] -= buffer.nbytes

    def turn(self, old: Hashable, new: Hashable, tier: int) -> None:
        """A buffer has moved to another tier, and has another key if it was evicted or restored.

        If a buffer is already known by that key, both are one now: the buffer had been restored before, for other values.
        """
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
        self, nbytes: int, pinned: Collection[Hashable], wanted: Callable[[ValuePlace], float], limit: int | None = None
    ) -> Iterator[Hashable]:
        """Yields the buffers to evict so that `nbytes` more fit, the one that is read again last first.

        Buffers in `pinned` stay; `wanted` gives the time of the next read of a place. The caller evicts each buffer (`turn`)
        before it asks for the next. Raises `OverLimit` before the first one if evicting everything would not be enough.
        """
        most = self.limit if limit is None else limit
        if self.used + nbytes <= most:
            return
        fixed = sum(self.buffers[key].nbytes for key in pinned if key in self.buffers and self.buffers[key].inside)
        if fixed + nbytes > most:
            raise OverLimit(nbytes, fixed, most)
        order = (key for _, key in self.last_first(DEVICE_TIER, pinned, wanted))
        for key in order if self.owner is None else self._above_share_first([*order], nbytes, most, self.owner):
            if self.used + nbytes <= most:
                return
            yield key

    def _above_share_first(
        self, order: list[Hashable], nbytes: int, most: int, owner: Callable[[ValuePlace], MemoryOwner]
    ) -> Iterator[Hashable]:
        """Yields the buffers of an order, first those of the principal that has most above its share of `most` bytes, as long as
        one has more than that. The `nbytes` for which there must be room count for whoever asks."""
        held: dict[Hashable, int] = {self.asks[0]: nbytes}
        weights = {self.asks[0]: self.asks[1]}
        whose: dict[Hashable, Hashable] = {}
        for key, buffer in self.buffers.items():
            if buffer.inside:
                who, weights[who] = owner(next(iter(buffer.places)))
                whose[key] = who
                held[who] = held.get(who, 0) + buffer.nbytes
        whole = sum(weights.values())
        share = {who: most * weight / whole for who, weight in weights.items()}
        queues: dict[Hashable, deque[tuple[int, Hashable, int]]] = {}
        for at, key in enumerate(order):
            queues.setdefault(whose[key], deque()).append((at, key, self.buffers[key].nbytes))
        while queues:
            above = [who for who in queues if held[who] > share[who]]
            if above:
                who = max(above, key=lambda each: held[each] - share[each])
            else:
                who = min(queues, key=lambda each: queues[each][0][0])
            _, key, freed = queues[who].popleft()
            held[who] -= freed
            if not queues[who]:
                del queues[who]
            yield key

    def give_way(
        self, nbytes: int, when: float, pinned: Collection[Hashable], wanted: Callable[[ValuePlace], float]
    ) -> list[Hashable]:
        """The buffers that may be evicted for `nbytes` that are read at time `when`: those that are read later, the last
        first. Empty if they are not enough."""
        found = []
        for at, key in self.last_first(DEVICE_TIER, pinned, wanted):
            if at <= when:
                return []
            found.append(key)
            nbytes -= self.buffers[key].nbytes
            if nbytes <= 0:
                return found
        return []

    def last_first(
        self, tier: int, but: Collection[Hashable], wanted: Callable[[ValuePlace], float]
    ) -> Iterator[tuple[float, Hashable]]:
        """For each buffer of a tier, the time of its next read and its key: the last first, of equal ones the largest."""
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
