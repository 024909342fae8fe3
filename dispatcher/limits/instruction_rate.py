"""The rate at which a principal issues instructions: a bucket of tokens for each principal that has a limit.

A run may be issued while there is any token, and takes as many as it has instructions, so that the longest run is possible at
any rate; what is missing then is paid off before the next one. In any span of time a principal issues at most its rate times
that, one `BURST_SECONDS` more, and a run. Whoever waits is served in turn. No clock is used here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Final

BURST_SECONDS: Final = 1.0
"""A principal that has issued nothing for so long may issue as much at once."""
LUMP_SECONDS: Final = 0.01
"""Whoever waits goes on when there are tokens of so long, or at once when asked meanwhile."""
MAX_IDLE_BUCKETS: Final = 1024
"""Beyond so many buckets, those that are full are forgotten."""


class _Bucket:
    """The tokens of one principal at a time, and the sessions that wait for some."""

    __slots__ = ("at", "rate", "tokens", "waiting")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.tokens = rate * BURST_SECONDS
        self.at = now
        self.waiting: deque[int] = deque()

    def fill(self, now: float) -> float:
        """Add what time has brought. Returns what there is."""
        self.tokens = min(self.rate * BURST_SECONDS, self.tokens + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)
        return self.tokens

    @property
    def due(self) -> float:
        """When those that wait may go on."""
        if not self.waiting:
            return inf
        return self.at + max(0.0, min(1.0, self.rate * LUMP_SECONDS) - self.tokens) / self.rate


class InstructionRates:
    """The buckets of all principals. `rate_of` says how many instructions a second one may issue; None: there is no limit."""

    def __init__(self, rate_of: Callable[[str], float | None] = lambda principal: None) -> None:
        self.rate_of = rate_of
        self.limited = False
        """Whether anybody may have a limit: while nobody has, nothing is asked here."""
        self.buckets: dict[str, _Bucket] = {}
        self.waits: dict[int, str] = {}
        """The sessions that wait, each with its principal."""
        self.due = inf
        """When one of them may go on."""
        self.turn = -1
        """The session that goes on now."""

    def change(self, rate_of: Callable[[str], float | None], *, limited: bool, now: float) -> None:
        """There are other limits from now on. All that wait ask again."""
        self.rate_of, self.limited = rate_of, limited
        for principal, bucket in self.buckets.items():
            bucket.fill(now)
            rate = rate_of(principal)
            if rate is not None:
                bucket.tokens = min(bucket.tokens * rate / bucket.rate, rate * BURST_SECONDS)
                bucket.rate = rate
        self.due = now if self.waits else inf

    def admits(self, principal: str, session: int, now: float) -> bool:
        """Whether a session may issue a run now. If not, it waits."""
        rate = self.rate_of(principal)
        if rate is None:
            return True
        bucket = self.buckets.get(principal)
        if bucket is None:
            bucket = self.buckets[principal] = self._new(rate, now)
        if bucket.fill(now) > 0 and (not bucket.waiting or session == self.turn):
            return True
        if session not in self.waits:
            self.waits[session] = principal
            bucket.waiting.append(session)
        self.due = min(self.due, bucket.due)
        return False

    def spend(self, principal: str, instructions: int) -> None:
        """A session of a principal, which was admitted, has issued a run of so many instructions."""
        bucket = self.buckets.get(principal)
        if bucket is not None:
            bucket.tokens -= instructions

    def turns(self, now: float, most: int) -> Iterator[int]:
        """The sessions that may go on now, at most so many. The caller lets each issue what it can before it takes the next."""
        for principal, bucket in [*self.buckets.items()]:
            rounds = len(bucket.waiting)
            free = self.rate_of(principal) is None
            while rounds > 0 and most > 0 and bucket.waiting and (free or bucket.fill(now) > 0):
                rounds, most = rounds - 1, most - 1
                self.turn = bucket.waiting.popleft()
                del self.waits[self.turn]
                yield self.turn
                self.turn = -1
            if free and not bucket.waiting:
                del self.buckets[principal]
        self.due = min((bucket.due for bucket in self.buckets.values()), default=inf)
        if most <= 0 and self.waits:
            self.due = now

    def due_of(self, principal: str) -> float:
        """When those of a principal that wait may go on."""
        bucket = self.buckets.get(principal)
        return inf if bucket is None else bucket.due

    def forget(self, session: int) -> None:
        """A session has ended."""
        principal = self.waits.pop(session, None)
        if principal is not None:
            self.buckets[principal].waiting.remove(session)

    def _new(self, rate: float, now: float) -> _Bucket:
        if len(self.buckets) >= MAX_IDLE_BUCKETS:
            full = [
                name
                for name, each in self.buckets.items()
                if not each.waiting and each.fill(now) >= each.rate * BURST_SECONDS
            ]
            for name in full:
                del self.buckets[name]
        return _Bucket(rate, now)

    def check(self) -> None:
        """The invariants between events."""
        assert self.turn == -1, "a turn ends with its event"
        waiting = [(session, name) for name, bucket in self.buckets.items() for session in bucket.waiting]
        assert sorted(waiting) == sorted(self.waits.items())
        assert not self.waits or self.due < inf, "whoever waits goes on by and by"
