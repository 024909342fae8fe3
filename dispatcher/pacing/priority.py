"""The class of a session: how urgent its plans are beside others with an equal claim to the workers' time."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

INTERACTIVE_BURST: Final = 50_000_000
"""A session whose bursts of work take at most so many nanoseconds is interactive, if it said nothing of itself."""
BURSTS_TO_TELL: Final = 3
"""After so many of them in a row."""


class Priority(StrEnum):
    """What a session says of itself. `AUTO`: its behaviour tells whether it is interactive or normal."""

    AUTO = "auto"
    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BATCH = "batch"


AUTO, INTERACTIVE, NORMAL, BATCH = Priority
_URGENCY: Final = {BATCH: 0, NORMAL: 1, INTERACTIVE: 2}


class Entitlement(NamedTuple):
    """What a principal is granted of the workers' time."""

    weight: float = 1.0
    """Of its share beside others."""
    reserved: float = 0.0
    """The part of a worker's time that it gets at least, whatever others weigh."""
    most: Priority = INTERACTIVE
    """The most urgent class that its sessions may have."""


ORDINARY: Final = Entitlement()


def at_most(priority: Priority, most: Priority) -> Priority:
    """A class (not `AUTO`), or a less urgent one where it is too urgent."""
    return most if _URGENCY[priority] > _URGENCY[most] else priority


def most_urgent(priorities: Iterable[Priority]) -> Priority:
    """The most urgent of some classes, of which none is `AUTO`."""
    return max(priorities, key=_URGENCY.__getitem__)


class Behaviour:
    """What a session's releases tell about it: one that waits for each value leaves its workers idle again and again, and has
    only a little for them each time."""

    __slots__ = ("burst", "short")

    def __init__(self) -> None:
        self.burst = 0
        """The nanoseconds of the plans that were released since the session had nothing in flight."""
        self.short = 0
        """How many short bursts in a row there were before."""

    def released(self, nanoseconds: int, *, was_idle: bool) -> None:
        """A plan was released, while the session had nothing in flight (`was_idle`) or something."""
        if was_idle:
            self.short = min(self.short + 1, BURSTS_TO_TELL) if 0 < self.burst <= INTERACTIVE_BURST else 0
            self.burst = 0
        self.burst += nanoseconds

    @property
    def priority(self) -> Priority:
        """The class of a session that behaves so."""
        return INTERACTIVE if self.short >= BURSTS_TO_TELL and self.burst <= INTERACTIVE_BURST else NORMAL
