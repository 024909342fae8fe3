"""Limits that no principal can use up, nor a program its principal's part: each may hold nine tenths of what the others leave.

A limit on things that are held at one time (`refusal`) is a number that all share. A limit on how often something happens
(`RateLimit`) is one for each principal, and a smaller one for each of its programs. So whoever opens sessions without end
leaves room for others, and a runaway program leaves room for its owner's other programs.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final

from gt.wire.principals import ProgramIdentity

MAX_PROGRAMS: Final = 4096
"""The most principals, and the most programs, whose recent events are counted."""


def allowance(limit: int, others: int) -> int:
    """How many of `limit` things one may hold when the others hold so many: all that is left but a tenth."""
    left = max(0, limit - others)
    return left - left // 10


def refusal(limit: int, holders: Collection[ProgramIdentity], program: ProgramIdentity) -> str | None:
    """Who holds too many of `limit` things for `program` to get one more: 'everybody', 'this user' or 'this program'; None:
    there is room. `holders` has one entry for each thing."""
    if len(holders) >= limit:
        return "everybody"
    principal = own = 0
    for each in holders:
        if each.principal == program.principal:
            principal += 1
            own += each == program
    share = allowance(limit, len(holders) - principal)
    if principal >= share:
        return "this user"
    if own >= allowance(share, principal - own):
        return "this program"
    return None


def equal_part(most: int, total: int, among: int) -> int:
    """How many bytes, at most `most`, one of so many sessions of a principal may have of `total`."""
    return min(most, total // max(1, among))


class RateLimit:
    """A rate limit for each key: `burst` events at once, then `a_second` per second. The time is an argument."""

    def __init__(self, burst: int, a_second: float) -> None:
        self.burst = burst
        self.a_second = a_second
        self.spent: dict[Hashable, tuple[float, float]] = {}
        """For each key, what it has used up and when that was counted; it recovers with time. A missing key has used nothing."""

    def wait(self, whose: Hashable, now: float, reserved: int = 0) -> float:
        """The seconds until the event may happen while `reserved` of the burst are kept for others; 0 if it may happen now."""
        return max(0.0, (self.used(whose, now) + 1 - (self.burst - reserved)) / self.a_second)

    def take(self, whose: Hashable, now: float) -> None:
        """Count an event."""
        if len(self.spent) >= MAX_PROGRAMS:
            self.spent = {each: spent for each, spent in self.spent.items() if self.used(each, now) > 0}
        if len(self.spent) >= MAX_PROGRAMS:
            del self.spent[next(iter(self.spent))]
        self.spent[whose] = self.used(whose, now) + 1, now

    def used(self, whose: Hashable, now: float) -> float:
        """What a key has used up of its burst and not recovered."""
        spent, since = self.spent.get(whose, (0.0, now))
        return max(0.0, spent - (now - since) * self.a_second)
