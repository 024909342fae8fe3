"""The audit trail: who has ordered what, and what came of it, as records that the shell writes to a file.

What is refused is recorded too. Somebody who may not order anything could fill the file so, and push out what others did: of the
refusals of one principal only so many in a minute have records of their own, and the next record says how many had none.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

MAX_REFUSALS: Final = 20
"""The most refusals of one principal in a minute that are recorded one by one."""
REFUSALS_SECONDS: Final = 60.0
MAX_PRINCIPALS: Final = 256
"""Of how many principals refusals are counted; those of others count together."""
MAX_RECORDS: Final = 1024
"""The most records that wait for the shell; of older ones nothing is left but their number."""
MAX_TEXT_LENGTH: Final = 500
"""The most characters of what an order or a refusal says."""


class AuditRecord(NamedTuple):
    """One order. `who` is the principal, `process` the program at the other end as far as it is known."""

    who: str
    process: str
    action: str
    subject: str
    value: str
    outcome: str
    """'done', 'refused' or 'failed'."""
    text: str
    """Why it was refused, or has failed."""
    untold: int = 0
    """How many refusals of this principal before it have no record."""


class _Refusals:
    """The refusals of one principal in the present minute."""

    __slots__ = ("count", "since", "untold")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = self.untold = 0


class AuditTrail:
    """The records that the shell has yet to write."""

    def __init__(self) -> None:
        self.records: deque[AuditRecord] = deque()
        self.refusals: dict[str, _Refusals] = {}
        self.lost = 0
        """How many records the shell did not take in time."""

    def note(self, record: AuditRecord, now: float) -> bool:
        """Record an order, unless it is one of too many refusals. Returns whether it was recorded."""
        refusals = self._of(record.who, now)
        if record.outcome == "refused":
            refusals.count += 1
            if refusals.count > MAX_REFUSALS:
                refusals.untold += 1
                return False
        untold, refusals.untold = refusals.untold, 0
        cut = {name: value[:MAX_TEXT_LENGTH] for name, value in record._asdict().items() if isinstance(value, str)}
        fields: dict[str, Any] = {**cut, "untold": untold}
        self.records.append(AuditRecord(**fields))
        while len(self.records) > MAX_RECORDS:
            self.records.popleft()
            self.lost += 1
        return True

    def take(self) -> list[AuditRecord]:
        """What is to be written."""
        records = [*self.records]
        self.records.clear()
        return records

    def _of(self, who: str, now: float) -> _Refusals:
        """The refusals of a principal. Those that have no record are not forgotten before one says so."""
        found = self.refusals.get(who)
        if found is None:
            if len(self.refusals) >= MAX_PRINCIPALS:
                self.refusals = {
                    name: each
                    for name, each in self.refusals.items()
                    if each.untold or now - each.since < REFUSALS_SECONDS
                }
            who = who if len(self.refusals) < MAX_PRINCIPALS else ""
            found = self.refusals.setdefault(who, _Refusals(now))
        if now - found.since >= REFUSALS_SECONDS:
            found.since, found.count = now, 0
        return found
