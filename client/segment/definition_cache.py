"""The definition cache: which segments the dispatcher knows, by number.

The dispatcher caches segments and evicts none by itself: the client decides what is in that cache, and keeps it bounded.
This module is state only; `client/segment/builder.py` sends the `Define` and `Drop` messages.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, Final

MAX_DEFINITIONS: Final = 1024
"""The most definitions that a client keeps at the dispatcher."""
MAX_DEFINED_INSTRUCTIONS: Final = 1 << 16
"""The most instructions in all of them together."""
MAX_SEEN_HASHES: Final = 1 << 14
"""The most hashes that are kept to tell why a segment was not known."""


class Definition:
    """A segment that the dispatcher knows by a number."""

    __slots__ = ("follower", "key", "length", "number", "record")

    def __init__(self, number: int, key: Any, length: int) -> None:
        self.number = number
        self.key = key
        self.length = length
        self.follower = 0
        """The number of the definition that came after it the last time."""
        self.record: list[tuple[Any, ...]] = []
        """The instructions, for `gt.why`."""


class Definitions:
    """The client's account of the dispatcher's cache, bounded in segments and instructions, least recently used out first.

    A segment's key is (its record as a tuple, which results were alive). In a loop the same segments follow each other, so
    `find` first compares the key with the one that came next the last time: comparing two records is three times as fast as
    hashing one.
    """

    def __init__(self, segments: int = MAX_DEFINITIONS, instructions: int = MAX_DEFINED_INSTRUCTIONS) -> None:
        self.segments = segments
        self.instructions = instructions
        self.known: dict[Any, Definition] = {}
        """By key."""
        self.recent: OrderedDict[int, Definition] = OrderedDict()
        """By number, the least recently used first."""
        self.last: Definition | None = None
        self.defined = 0
        self.made = 0
        self.hits = 0
        self.misses: Counter[str] = Counter()
        """How often a segment had to be defined because its instructions were `new`, because only the `lifetimes` of its
        values differed from a known one, or because it had been `dropped` to make room."""
        self.seen: dict[int, None] = {}
        """Hashes of the keys that were defined, and of their instructions alone; used as an ordered set."""

    def forget(self) -> None:
        """Empty the cache, because the dispatcher has forgotten it. Numbers are not used again."""
        self.known.clear()
        self.recent.clear()
        self.last = None
        self.defined = 0

    def find(self, key: Any) -> int | None:
        """The number under which the dispatcher knows the segment with this key, None if it does not."""
        last = self.last
        found = None if last is None else self.recent.get(last.follower)
        if found is None or found.key != key:
            found = self.known.get(key)
            if found is None:
                return None
            if last is not None:
                last.follower = found.number
        self.hits += 1
        self.last = found
        self.recent.move_to_end(found.number)
        return found.number

    def add(self, key: Any, length: int) -> tuple[int, list[int]]:
        """A new number for a segment of `length` instructions, and the numbers that the dispatcher must drop to make room."""
        dropped = []
        while self.recent and (len(self.recent) >= self.segments or self.defined + length > self.instructions):
            number, other = self.recent.popitem(last=False)
            del self.known[other.key]
            self.defined -= other.length
            dropped.append(number)
        whole, instructions = hash(key), hash(key[0])
        self.misses["dropped" if whole in self.seen else "lifetimes" if instructions in self.seen else "new"] += 1
        if len(self.seen) >= MAX_SEEN_HASHES:
            self.seen.clear()
        self.seen[whole] = self.seen[instructions] = None
        self.made += 1
        self.defined += length
        made = Definition(self.made, key, length)
        self.known[key] = self.recent[self.made] = made
        if self.last is not None:
            self.last.follower = made.number
        self.last = made
        return self.made, dropped
