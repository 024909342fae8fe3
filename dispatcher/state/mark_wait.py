"""Time limits of marks: how long the dispatcher waits for workers to write, or to restore, their parts of a mark.

Each of them may take as long as a slow disk would, counted from when it has finished all plans and puts that it got before, and
anew whenever it has come further with files of marks: on a host that is short of cores, or behind the marks of many sessions,
that may take much longer. Once its files are done, the answer waits for the end of the plan that it computes, and so does the
service. Whoever stands still for so long may live, and still never answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from gt.wire.messages import FileProgress

if TYPE_CHECKING:
    from .plan_cache import Entry
    from .shared_state import DispatcherState

LEAST_SECONDS: Final = 60.0
"""Everybody may take so long, and longer for many bytes."""
NO_PROGRESS: Final = FileProgress(0, idle=False)
"""Of those who have said nothing of it."""
SLOW_BYTES_PER_SECOND: Final = 8 << 20
"""The rate of a slow disk."""

ADDED_PER_TICK: Final = 4096
"""How many tensors are added up in one event, to say how long they may take."""


class Overdue(NamedTuple):
    """Who has not answered, by number, within so many seconds."""

    who: int
    seconds: float


class _Standstill(NamedTuple):
    """What was last seen of somebody who has yet to answer, and since when nothing else was."""

    since: float
    """In seconds on the shell's clock."""
    progress: FileProgress
    finished: int
    """The last plan or put that it has finished, if its files are done."""


class MarkWait:
    """A wait for those who were told of a mark with this tensor `table` when `order` was the last order."""

    __slots__ = ("_entries", "_left", "_nbytes", "order", "seconds", "seen")

    def __init__(self, order: int, table: Mapping[int, Entry]) -> None:
        self.order = order
        self._entries = iter(table.values())
        self._left = len(table)
        """How many tensors have not been added up yet."""
        self._nbytes = 0
        self.seen: dict[int, _Standstill] = {}
        """What was seen of each since it has nothing else to do before."""
        self.seconds = 0.0
        """How long each may take; 0 while nobody has taken long enough to ask."""

    def overdue(self, waiting: Iterable[int], service: DispatcherState) -> Overdue | None:
        """One of those who have yet to answer, if it should have by now."""
        for who in waiting:
            if who not in self.seen and service.owes(who, self.order):
                continue
            progress = service.file_progress.get(who, NO_PROGRESS)
            computes = progress.idle and service.owes(who, service.order)
            finished = service.last_finished(who) if computes else 0
            before = self.seen.get(who)
            if before is None or progress != before.progress or (computes and finished == before.finished):
                self.seen[who] = _Standstill(service.now, progress, finished)
            elif service.now - before.since > LEAST_SECONDS:
                if self._left > 0:
                    self._add_up()
                if self._left > 0:
                    return None  # the next call goes on
                self.seconds = LEAST_SECONDS + self._nbytes / SLOW_BYTES_PER_SECOND
                if service.now - before.since > self.seconds:
                    return Overdue(who, self.seconds)
        return None

    def _add_up(self) -> None:
        """Add up the bytes of some more tensors."""
        kinds = Counter(islice(self._entries, ADDED_PER_TICK))
        self._nbytes += sum(count * entry.spec.nbytes for entry, count in kinds.items() if entry.fault is None)
        self._left -= ADDED_PER_TICK
