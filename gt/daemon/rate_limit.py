"""Limits on how often something happens, by whoever does it. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MAX_KEYS: Final = 4096
"""The most keys whose recent events are counted."""


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
        if len(self.spent) >= MAX_KEYS:
            self.spent = {each: spent for each, spent in self.spent.items() if self.used(each, now) > 0}
        if len(self.spent) >= MAX_KEYS:
            del self.spent[next(iter(self.spent))]
        self.spent[whose] = self.used(whose, now) + 1, now

    def used(self, whose: Hashable, now: float) -> float:
        """What a key has used up of its burst and not recovered."""
        spent, since = self.spent.get(whose, (0.0, now))
        return max(0.0, spent - (now - since) * self.a_second)
