"""How long the service waits for those who write or restore their parts of a mark: each of them may take as long as a slow disk
would, counted from when it has finished all plans and puts that it got before. Then it may live, and still never answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .plan_cache import Entry
    from .shared_state import DispatcherState

LEAST_SECONDS: Final = 60.0
"""Everybody may take so long, and longer for many bytes."""
SLOW_BYTES_PER_SECOND: Final = 8 << 20
"""The rate of a slow disk."""

ADDED_PER_TICK: Final = 4096
"""How many tensors are added up in one event, to say how long they may take."""


class Overdue(NamedTuple):
    """Who has not answered, by number, within so many seconds."""

    who: int
    seconds: float


class MarkWait:
    """A wait for those who were told of a mark with this tensor `table` when `order` was the last order."""

    __slots__ = ("_entries", "_left", "_nbytes", "order", "seconds", "since")

    def __init__(self, order: int, table: Mapping[int, Entry]) -> None:
        self.order = order
        self._entries = iter(table.values())
        self._left = len(table)
        """How many tensors have not been added up yet."""
        self._nbytes = 0
        self.since: dict[int, float] = {}
        """When each was first seen to have nothing else to do before, in seconds on the shell's clock."""
        self.seconds = 0.0
        """How long each may take; 0 while nobody has taken long enough to ask."""

    def overdue(self, waiting: Iterable[int], service: DispatcherState) -> Overdue | None:
        """One of those who have yet to answer, if it should have by now."""
        for who in waiting:
            if who not in self.since:
                if not service.owes(who, self.order):
                    self.since[who] = service.now
            elif service.now - self.since[who] > LEAST_SECONDS:
                if self._left > 0:
                    self._add_up()
                if self._left > 0:
                    return None  # the next call goes on
                self.seconds = LEAST_SECONDS + self._nbytes / SLOW_BYTES_PER_SECOND
                if service.now - self.since[who] > self.seconds:
                    return Overdue(who, self.seconds)
        return None

    def _add_up(self) -> None:
        """Add up the bytes of some more tensors."""
        kinds = Counter(islice(self._entries, ADDED_PER_TICK))
        self._nbytes += sum(count * entry.spec.nbytes for entry, count in kinds.items() if entry.fault is None)
        self._left -= ADDED_PER_TICK
