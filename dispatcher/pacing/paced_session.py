"""What the pacer knows of a session, by which a policy decides whose turn is next."""

from __future__ import annotations

from collections.abc import Hashable

from .cells import Lane
from .priority import AUTO, INTERACTIVE, ORDINARY, Behaviour, Entitlement, Priority, at_most


class PacedSession:
    """What the pacer knows of a session."""

    __slots__ = (
        "behaviour", "entitlement", "expected", "flights", "key", "lanes", "last", "late", "number", "plan", "priority",
        "since", "spent", "waits", "was_idle", "weight",
    )  # fmt: skip

    def __init__(self, number: int, key: tuple[Hashable, Hashable], entitlement: Entitlement = ORDINARY) -> None:
        self.number = number
        self.entitlement = entitlement
        """What its principal is granted."""
        self.key = key
        """Its principal and its program."""
        self.weight = 1.0
        self.priority: Priority = AUTO
        self.plan: Priority | None = None
        """The class of its next plan, if that has one of its own."""
        self.behaviour = Behaviour()
        self.lanes: list[Lane] = []
        self.flights = 0
        """How many plans it has in flight."""
        self.waits: Lane | None = None
        """The mesh for which it has a plan that waits for its turn."""
        self.since = 0.0
        """Since when, in seconds."""
        self.late = False
        """Whether it waits until nobody else does."""
        self.expected = 0
        """The predicted nanoseconds of that plan."""
        self.was_idle = False
        """Whether it had nothing in flight then."""
        self.last = 0
        """The predicted nanoseconds of the plan that was released last."""
        self.spent = 0
        """Those of all its plans."""

    @property
    def kind(self) -> Priority:
        """The class of its next plan: that of the plan, or what the session said, or how it behaves, if it may have that."""
        found = self.plan or (self.behaviour.priority if self.priority is AUTO else self.priority)
        most = self.entitlement.most
        return found if most is INTERACTIVE else at_most(found, most)
