"""What runs of one plan have used since it was last added up. Nothing is divided among signals on the way of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .ledger import SessionAccount


class SignalPart(NamedTuple):
    """What one run of a plan has of a top-level signal ('': of none): instructions, bytes moved between workers, and the part of
    the time that is expected, as a share of the whole."""

    signal: str
    instructions: int
    moved_bytes: int
    share: float


UNKNOWN_PARTS: Final = (SignalPart("", 0, 0, 1.0),)
"""Of a plan of which nothing is known."""


class PlanTally:
    """What runs of a plan have used: how many `runs`; `spent` nanoseconds, of all workers together, and those of them that nobody
    has measured (`predicted`). Its `account` is that of whose plan it is, once it has run; `is_noted` says whether the account
    knows that there is something to add up."""

    __slots__ = ("account", "is_noted", "parts", "predicted", "runs", "spent")

    def __init__(self, parts: tuple[SignalPart, ...] = UNKNOWN_PARTS) -> None:
        self.parts = parts
        self.runs = self.spent = self.predicted = 0
        self.is_noted = False
        self.account: SessionAccount | None = None

    def ran(self, account: SessionAccount) -> None:
        """A run was issued."""
        self.runs += 1
        if not self.is_noted:
            self.account, self.is_noted = account, True
            account.tallies.append(self)

    def measured(self, nanoseconds: int) -> None:
        """A worker says that it has spent so much on a run."""
        self.spent += nanoseconds
        if not self.is_noted:
            self._note()

    def guessed(self, nanoseconds: int) -> None:
        """Workers have spent about so much on a run, together, which nobody has measured."""
        self.predicted += nanoseconds
        self.measured(nanoseconds)

    def _note(self) -> None:
        if self.account is not None:
            self.is_noted = True
            self.account.tallies.append(self)
