"""What a worker has finished and not said yet: `Done` speaks for all orders of its mesh up to one, so a few go as one word.

Each word costs the dispatcher's only thread a wake-up, and of a large mesh every member says one for every plan. So a word
may wait: among few workers until there is nothing else to do, which also lets an answer to a fetch go first, and among
many for a time in proportion to their number. No plan waits for it: a mesh has several times more credits than a worker
keeps to itself. Pure state; the time is an argument.
"""

from __future__ import annotations

from typing import Final

from gt import messages as m

FEW: Final = 8
"""Members of the largest mesh whose workers say at once what they have finished when they have nothing else to do."""
PLANS: Final = 8
"""Plans after which it is said in any case; a quarter of the credits that a mesh has."""
SECONDS: Final = 0.01
"""After which it is said though there is more to do."""
SECONDS_A_MEMBER: Final = 1 / 16_000
"""For which it is kept in a mesh of more than a few, times its members: all of them together say some 16,000 words a second."""


class Reports:
    """The last order that was finished of each mesh, where that has not been said. `plans` 1: all is said at once."""

    def __init__(self, plans: int = 1) -> None:
        self.plans = plans
        self.last: dict[int, int] = {}
        """By mesh."""
        self.count = 0
        self.members = 0
        """Of the largest of these meshes."""
        self.since = 0.0

    def finished(self, order: int, mesh: int, members: int, now: float) -> list[m.Done]:
        """A plan or put has left this worker; what to say of it now."""
        if not self.count:
            self.since = now
        self.last[mesh] = order
        self.count += 1
        self.members = max(self.members, members)
        return self.take() if self.count >= self.plans else []

    def due(self, now: float, *, idle: bool) -> list[m.Done]:
        """What to say now, when there is something else to do or not."""
        return self.take() if self.count and now >= self.since + self._patience(idle) else []

    def wait(self, now: float) -> float | None:
        """Seconds after which an idle worker has something to say; None if it has not."""
        return max(0.0, self.since + self._patience(idle=True) - now) if self.count else None

    def _patience(self, idle: bool) -> float:
        if self.members > FEW:
            return self.members * SECONDS_A_MEMBER
        return 0.0 if idle else SECONDS

    def take(self) -> list[m.Done]:
        """All that was not said yet."""
        said = [m.Done(order) for order in sorted(self.last.values())]
        self.last = {}
        self.count = self.members = 0
        return said
