"""The predicted run time of a plan: what the cost model says at first, then what workers have measured."""

from __future__ import annotations

from typing import Final

from gt.dispatcher.usage.tally import UNKNOWN_PARTS, PlanTally, SignalPart

UNKNOWN_NANOSECONDS: Final = 5_000_000
"""The nanoseconds of a plan of which nothing is known."""

LEAST_NANOSECONDS: Final = 1_000
"""The nanoseconds of the shortest plan."""


class RunTime:
    """How long a plan is expected to take on each of its workers, in nanoseconds.

    That is the shorter one of the last two measurements: the first run of a plan also compiles it, and any run may be held up
    by something else on its machine, but hardly two in a row.
    """

    __slots__ = ("before", "least", "nanoseconds", "tally")

    def __init__(self, expected: int = UNKNOWN_NANOSECONDS, parts: tuple[SignalPart, ...] = UNKNOWN_PARTS) -> None:
        self.nanoseconds = max(LEAST_NANOSECONDS, expected)
        self.before = 0
        """The last measurement; 0 if there is none."""
        self.least = 0
        """The least of all measurements; 0 if there is none."""
        self.tally = PlanTally(parts)
        """What its runs have used."""

    def measured(self, nanoseconds: int) -> None:
        """A worker has run the plan once."""
        self.nanoseconds = max(LEAST_NANOSECONDS, min(nanoseconds, self.before or nanoseconds))
        self.before = nanoseconds
        if not self.least or nanoseconds < self.least:
            self.least = nanoseconds
