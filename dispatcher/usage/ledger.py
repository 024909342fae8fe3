"""The ledger: what each session has used since it was last written down, and what principals have used since the beginning.

Runs of a plan count in its tally; a job adds tallies up and divides them among signals. So a run costs the same however many
signals its plan has, and what is kept is bounded: `MAX_ROWS` sums, of which each principal has at most `MAX_SIGNALS`. What other
signals have used counts as that of `OTHER`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from .rows import UsageRow
from .tally import PlanTally

MAX_ROWS: Final = 512
"""The most sums that are kept, but for one of all others."""
MAX_SIGNALS: Final = 64
"""The most signals of one principal with sums of their own."""
OTHER: Final = "(other)"
"""Stands for all signals, or principals, for which there was no room."""
PARTS_PER_TURN: Final = 256
"""How many parts of plans are added up in one turn."""
MAX_SIGNAL_LENGTH: Final = 200
"""The most characters of a signal's name."""


class RowKey(NamedTuple):
    """Whose sum it is."""

    principal: str
    signal: str


class SessionAccount:
    """What one session has used since it was last written down."""

    __slots__ = (
        "began", "held_bytes", "is_open", "looked_at", "moved", "moved_at", "number", "principal", "program", "since", "sum",
        "tallies",
    )  # fmt: skip

    def __init__(self, principal: str = "", program: str = "", number: int = 0, now: float = 0.0) -> None:
        self.principal = principal
        self.program = program
        self.number = number
        """That of its client when it joined."""
        self.since = now
        """When it was last written down."""
        self.sum = UsageRow()
        self.tallies: list[PlanTally] = []
        """Those of plans that have used something which is not added up."""
        self.held_bytes = 0
        """At the last look at its tensors."""
        self.looked_at = now
        self.began = now
        self.moved = ""
        """From where to where the session has moved last, and why."""
        self.moved_at = now
        self.is_open = True


class Ledger:
    """All accounts and sums."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, UsageRow] = {}
        self.signals: dict[str, int] = {}
        """By principal: how many sums it has."""
        self.changed: dict[RowKey, None] = {}
        """The sums that have changed since watchers were told."""
        self.closed: deque[SessionAccount] = deque()
        """Accounts of sessions that have left, which are not written down."""

    def close(self, account: SessionAccount) -> None:
        """A session has left."""
        if account.is_open:
            account.is_open = False
            self.closed.append(account)

    def row(self, principal: str, signal: str) -> UsageRow:
        """The sum of a principal and signal, to which something is added."""
        key = RowKey(principal, signal[:MAX_SIGNAL_LENGTH])
        if key not in self.rows:
            full = len(self.rows) >= MAX_ROWS
            if full or self.signals.get(principal, 0) >= MAX_SIGNALS:
                key = RowKey(principal, OTHER)
                if full and key not in self.rows:
                    key = RowKey(OTHER, OTHER)
            if key not in self.rows:
                self.rows[key] = UsageRow()
                self.signals[key.principal] = self.signals.get(key.principal, 0) + 1
        self.changed[key] = None
        return self.rows[key]

    def add(self, account: SessionAccount, used: UsageRow, signal: str = "") -> None:
        """Add what a session has used besides running plans."""
        account.sum.add(used)
        self.row(account.principal, signal).add(used)

    def put(self, account: SessionAccount, nbytes: int) -> None:
        """A session has put so many bytes."""
        account.sum.put_bytes += nbytes
        self.row(account.principal, "").put_bytes += nbytes

    def fetched(self, account: SessionAccount, nbytes: int) -> None:
        """A session has fetched so many bytes."""
        account.sum.fetched_bytes += nbytes
        self.row(account.principal, "").fetched_bytes += nbytes

    def held(self, account: SessionAccount, nbytes: int, now: float) -> None:
        """A session is seen to hold so many bytes, and counts as having held what it had at the last look until now."""
        used = UsageRow()
        used.held_byte_seconds = round(account.held_bytes * max(0.0, now - account.looked_at))
        account.held_bytes, account.looked_at = nbytes, now
        self.add(account, used)

    def add_up(self, account: SessionAccount) -> Iterator[None]:
        """Add up what runs of a session's plans have used, in turns."""
        left = PARTS_PER_TURN
        while account.tallies:
            tally = account.tallies.pop()
            self._add_tally(account, tally)
            left -= len(tally.parts)
            if left < 0:
                left = PARTS_PER_TURN
                yield

    def _add_tally(self, account: SessionAccount, tally: PlanTally) -> None:
        """Divide what runs of a plan have used among its signals, to the last nanosecond."""
        runs, spent, predicted = tally.runs, tally.spent, tally.predicted
        tally.runs = tally.spent = tally.predicted = 0
        tally.is_noted = False
        upto, last = 0.0, len(tally.parts) - 1
        given = guessed = 0
        for at, part in enumerate(tally.parts):
            upto += part.share
            used = UsageRow()
            used.device_ns = (spent if at == last else min(spent, round(spent * upto))) - given
            used.predicted_ns = (predicted if at == last else min(predicted, round(predicted * upto))) - guessed
            given += used.device_ns
            guessed += used.predicted_ns
            used.runs = runs if at == last else 0
            used.instructions, used.moved_bytes = runs * part.instructions, runs * part.moved_bytes
            self.add(account, used, part.signal)

    def check(self) -> None:
        """The invariants."""
        assert len(self.rows) <= MAX_ROWS + 1
        counts: dict[str, int] = {}
        for key in self.rows:
            counts[key.principal] = counts.get(key.principal, 0) + 1
        assert counts == self.signals
        assert all(count <= MAX_SIGNALS + 1 for count in counts.values())
        assert self.changed.keys() <= self.rows.keys()
