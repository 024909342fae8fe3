"""Batching of a worker's reports about what it has finished. One `Done` covers all orders of a mesh up to one, so reports
are batched.

Each report wakes the dispatcher's only thread, and in a large mesh every member reports every plan. So a report may wait:
among few workers until the worker is idle, which also lets the answer to a fetch go first; among many for a time in proportion
to their number. That small puts are done waits a moment even where the worker is idle: as a rule a run of them follows, whose
report says so, too. No plan waits for it, because a mesh has several times more credits than a worker withholds. Pure state;
the time is an argument.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from gt.wire import messages as m

SMALL_MESH_WORKERS: Final = 8
"""The largest mesh whose workers report as soon as they are idle."""
MAX_UNREPORTED_PLANS: Final = 8
"""The number of plans after which a worker reports in any case: a quarter of a mesh's credits."""
REPORT_DELAY_SECONDS: Final = 0.002
"""The seconds after which a busy worker reports, or one that has done nothing but small puts since."""
SECONDS_PER_MEMBER: Final = 1 / 16_000
"""How long a worker of a larger mesh waits, times the number of members: together they send some 16,000 reports per second."""


class DoneReports:
    """For each mesh, the last finished order that was not reported. With `plans` 1, everything is reported at once."""

    def __init__(self, plans: int = 1) -> None:
        self.plans = plans
        self.last: dict[int, int] = {}
        """By mesh."""
        self.spent: dict[int, list[int]] = {}
        """By mesh, the nanoseconds of what has finished since the last report, if they are known."""
        self.count = 0
        self.only_small_puts = True
        """Whether all that is counted are puts whose values came with their messages."""
        self.members = 0
        """The size of the largest of these meshes."""
        self.since = 0.0

    def finished(
        self, order: int, mesh: int, members: int, now: float, nanoseconds: int = 0, *, small_put: bool = False
    ) -> list[m.Done]:
        """A plan or put has finished, in so many nanoseconds if they are known. Returns the reports to send now."""
        if not self.count:
            self.since = now
        self.last[mesh] = order
        self.spent.setdefault(mesh, []).append(nanoseconds)
        self.count += 1
        self.only_small_puts &= small_put
        self.members = max(self.members, members)
        return self.take() if self.count >= self.plans else []

    def due(self, now: float, *, idle: bool) -> list[m.Done]:
        """The reports to send now; `idle` tells whether there is no other work."""
        return self.take() if self.count and now >= self.since + self._patience(idle) else []

    def wait(self, now: float) -> float:
        """The seconds after which an idle worker has a report to send, if it has one."""
        return max(0.0, self.since + self._patience(idle=True) - now)

    def _patience(self, idle: bool) -> float:
        if self.members > SMALL_MESH_WORKERS:
            return self.members * SECONDS_PER_MEMBER
        return 0.0 if idle and not self.only_small_puts else REPORT_DELAY_SECONDS

    def take(self) -> list[m.Done]:
        """All reports that were not sent yet."""
        said = []
        for mesh, order in sorted(self.last.items(), key=itemgetter(1)):
            spent = self.spent[mesh]
            said.append(m.Done(order, spent if any(spent) else []))
        self.last, self.spent = {}, {}
        self.count = self.members = 0
        self.only_small_puts = True
        return said
