"""What principals have used, by what each dispatcher of a service has counted since it started: the sums over all of them.

A dispatcher that is started again counts from nothing. Its counters begin with the first `Service` that says another start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gt.wire import telemetry as t

MAX_TOTALS: Final = 1024
"""Sums that are kept; what else was used counts as `OTHER`'s. A dispatcher keeps half as many."""
OTHER: Final = "(other)"
UsageKey = tuple[str, str]
"""A principal and a top-level signal ('': in none)."""


class UsageTotals:
    """The sums over all dispatchers that were heard of. They only grow."""

    def __init__(self) -> None:
        self.before: dict[UsageKey, dict[str, int]] = {}
        """What earlier dispatchers have counted."""
        self.now: dict[UsageKey, t.Used] = {}
        """What the present one has."""
        self.started: int | None = None

    def begins(self, started: int) -> None:
        """The dispatcher that is heard now has started at this time."""
        if self.started not in (None, started):
            counted, self.now = self.now, {}
            for key, used in counted.items():
                self._add(key, used)
        self.started = started

    def take(self, used: t.Used) -> None:
        """What the present dispatcher has counted so far for a principal and signal."""
        self.now[used.principal, used.signal] = used

    def sums(self, field: str) -> Iterator[tuple[UsageKey, int]]:
        """A field of `Used`, summed, by principal and signal; nothing where no dispatcher tells it."""
        for key in sorted(self.before.keys() | self.now.keys()):
            told = [self.before[key][field]] if field in self.before.get(key, ()) else []
            if key in self.now and getattr(self.now[key], field) >= 0:
                told.append(getattr(self.now[key], field))
            if told:
                yield key, sum(told)

    def _add(self, key: UsageKey, used: t.Used) -> None:
        if key not in self.before and len(self.before) >= MAX_TOTALS:
            key = (OTHER, OTHER)
        sums = self.before.setdefault(key, {})
        for field in COUNTED:
            if getattr(used, field) >= 0:
                sums[field] = sums.get(field, 0) + getattr(used, field)


COUNTED: Final = tuple(field for field in t.Used._fields if field not in ("time", "worker", "principal", "signal"))
"""The fields that are counters."""
