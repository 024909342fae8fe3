"""Which ranges of one long memory are in use. The memory itself is in `pool.py`.

A range that comes back stays *warm*, with its pages allocated, for the next request of its size: touching a page for the first
time costs as much as copying it many times. What was warm for long, or is too much, becomes *cold*: its pages are given up,
and it is merged with its neighbours. Sizes are rounded, so that nearly equal ones share ranges.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from typing import Final

PAGE_BYTES: Final = 4096
COLD_AFTER_SECONDS: Final = 10.0
"""The seconds after which an unused range becomes cold."""


class Ranges:
    """The ranges of `span` bytes, of which at most `limit` have pages; at most `kept` bytes of unused ranges are warm."""

    def __init__(self, span: int, limit: int, kept: int) -> None:
        self.span, self.limit, self.kept = span, limit, kept
        self.used: dict[int, int] = {}
        """Offset → size of each range in use."""
        self.warm: dict[int, tuple[int, float]] = {}
        """Offset → size of each unused warm range, and since when; the one that came back first is first."""
        self.sizes: dict[int, list[int]] = {}
        """Size → warm ranges, the last freed last, because it may still be in a cache."""
        self.cold: list[tuple[int, int]] = [(0, span)]
        """(start, stop) of everything else, in order; no two are adjacent."""
        self.cooled: list[tuple[int, int]] = []
        """(offset, size) of ranges that became cold, whose pages are still to be given up."""
        self.used_bytes = self.warm_bytes = 0
        self.now = 0.0

    def take(self, nbytes: int) -> tuple[int, bool] | None:
        """The offset of a range of so many bytes, and whether it is warm; None if there is no room."""
        size = round_to_pages(nbytes)
        waiting = self.sizes.get(size)
        if waiting:
            offset = waiting.pop()
            self._no_longer_warm(offset)
            self._use(offset, size)
            return offset, True
        if self.used_bytes + size > self.limit:
            return None
        while self.used_bytes + self.warm_bytes + size > self.limit:
            self._cool(next(iter(self.warm)))
        at = self._fit(size)
        while at is None and self.warm:
            self._cool(next(iter(self.warm)))
            at = self._fit(size)
        if at is None:
            return None
        self._use(at, size)
        return at, False

    def warm_of(self, nbytes: int) -> int:
        """How many warm ranges there are for so many bytes."""
        return len(self.sizes.get(round_to_pages(nbytes), ()))

    def back(self, offset: int) -> None:
        """Return a range that nobody uses any more."""
        size = self.used.pop(offset)
        self.used_bytes -= size
        self.warm[offset] = size, self.now
        self.sizes.setdefault(size, []).append(offset)
        self.warm_bytes += size
        while self.warm_bytes > self.kept:
            self._cool(next(iter(self.warm)))

    def trim(self, now: float) -> None:
        """Cool ranges that were not used for a while. `now` is in seconds, from any steady clock."""
        self.now = now
        for offset in [offset for offset, (_, since) in self.warm.items() if now - since >= COLD_AFTER_SECONDS]:
            self._cool(offset)

    def cool_all(self) -> None:
        """Cool all unused ranges."""
        for offset in list(self.warm):
            self._cool(offset)

    def check(self) -> None:
        """The invariants: the ranges tile the span, and the sums are right."""
        tiles = [(offset, offset + size) for offset, size in self.used.items()]
        tiles += [(offset, offset + size) for offset, (size, _) in self.warm.items()]
        tiles = sorted(tiles + self.cold)
        assert tiles[0][0] == 0
        assert tiles[-1][1] == self.span
        assert all(a[1] == b[0] for a, b in itertools.pairwise(tiles))
        assert all(a[1] < b[0] for a, b in itertools.pairwise(self.cold)), "cold neighbours are one"
        assert self.used_bytes == sum(self.used.values())
        assert self.warm_bytes == sum(size for size, _ in self.warm.values()) <= self.kept
        assert self.used_bytes + self.warm_bytes <= self.limit
        assert sorted(self.warm) == sorted(offset for offsets in self.sizes.values() for offset in offsets)

    def _use(self, offset: int, size: int) -> None:
        self.used[offset] = size
        self.used_bytes += size

    def _no_longer_warm(self, offset: int) -> int:
        size, _ = self.warm.pop(offset)
        self.warm_bytes -= size
        if not self.sizes[size]:
            del self.sizes[size]
        return size

    def _cool(self, offset: int) -> None:
        size, _ = self.warm[offset]
        self.sizes[size].remove(offset)
        self._no_longer_warm(offset)
        self.cooled.append((offset, size))
        start, stop = offset, offset + size
        at = bisect_left(self.cold, (start, stop))
        if at < len(self.cold) and self.cold[at][0] == stop:
            stop = self.cold.pop(at)[1]
        if at and self.cold[at - 1][1] == start:
            at -= 1
            start = self.cold.pop(at)[0]
        self.cold.insert(at, (start, stop))

    def _fit(self, size: int) -> int | None:
        """Take the first cold gap of this size; None if there is none."""
        for at, (start, stop) in enumerate(self.cold):
            if start + size <= stop:
                self.cold[at : at + 1] = [(start + size, stop)] if start + size < stop else []
                return start
        return None


def round_to_pages(nbytes: int) -> int:
    """A size in whole pages that holds so many bytes: at most a 64th and a page more."""
    step = max(1 << max(0, nbytes.bit_length() - 7), PAGE_BYTES)
    return -(-nbytes // step) * step
