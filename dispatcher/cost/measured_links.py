"""The links between hosts that are being measured: meshes are not made before they are known, so that plans do not depend on
when workers joined.
"""

from __future__ import annotations

from typing import Final

from .hosts import HostPair, pair_of

MEASURING_SECONDS: Final = 5.0
"""How long meshes wait for a measurement; the worker may not be reachable. A link of 1 MB/s takes a second and a half."""


class MeasuredLinks:
    """The pairs of hosts whose links are known, and those that are waited for (`due`), each until a time."""

    def __init__(self) -> None:
        self.known: set[HostPair] = set()
        self.due: dict[HostPair, float] = {}

    def begin(self, one: str, other: str, now: float) -> None:
        """The link between two hosts is to be measured, unless it is known."""
        pair = pair_of(one, other)
        if pair not in self.known:
            self.due.setdefault(pair, now + MEASURING_SECONDS)

    def end(self, one: str, other: str) -> bool:
        """The link between two hosts was measured. Returns whether meshes wait no longer."""
        pair = pair_of(one, other)
        self.known.add(pair)
        return self.due.pop(pair, None) is not None and not self.due

    def overdue(self, now: float) -> list[HostPair]:
        """The links that are waited for no longer, because their measurements did not come."""
        late = [pair for pair, until in self.due.items() if now > until]
        for pair in late:
            del self.due[pair]
        return late

    def forget(self, host: str) -> bool:
        """The last worker of a host is gone. Returns whether meshes wait no longer."""
        waited = bool(self.due)
        self.known = {pair for pair in self.known if host not in pair}
        self.due = {pair: until for pair, until in self.due.items() if host not in pair}
        return waited and not self.due
