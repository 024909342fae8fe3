"""Whether a CPU worker is slowed down by something outside the service: other programs of its host, heat, or what a hypervisor
takes. Plans cannot tell the cause; but each is compared with the least time that it has ever taken there.

Only plans of at least `LEAST_PLAN_NANOSECONDS` count, since shorter ones differ by what is in the caches. A worker counts as
slowed down once its plans have taken `SLOWED` times as long for `SUSTAINED_SECONDS`, and until they have taken less than
`RECOVERED` times as long for as many seconds. What nobody has measured for `FORGOTTEN_SECONDS` is not known any more.

A scheduler spreads what a host has to do over its cores, and heat is of a whole processor. So an idle worker beside one that is
slowed down, on the same host, counts as slowed down too, unless another one there is measured to be less (`of_all`).

Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from typing import Final

LEAST_PLAN_NANOSECONDS: Final = 500_000
LEAST_PART: Final = 0.05
"""A look counts if plans took such a part of the time since the last one."""
LOOKS_AVERAGED: Final = 3
SLOWED: Final = 1.7
RECOVERED: Final = 1.3
SUSTAINED_SECONDS: Final = 5.0
FORGOTTEN_SECONDS: Final = 60.0


class WorkerSlowdown:
    """How many times as long plans take on one worker as at best."""

    def __init__(self) -> None:
        self.factor = 1.0
        """What it counts as: 1 unless it is slowed down."""
        self.ratio = 0.0
        """The average of what was measured, in which the last looks count most; 0 if nothing is known."""
        self.looked_at, self.measured_at = inf, -inf
        self.since = inf
        """Since when it is as it does not count yet: slowed down, or not any more."""

    def look(self, took: int, least: int, now: float) -> None:
        """Since the last look plans have taken so many nanoseconds that take so many at best."""
        passed, self.looked_at = max(0.0, now - self.looked_at), now
        if not least or took < LEAST_PART * min(passed, FORGOTTEN_SECONDS) * 1e9:
            if now - self.measured_at > FORGOTTEN_SECONDS:
                self.factor, self.ratio, self.since = 1.0, 0.0, inf
            return
        self.measured_at, found = now, took / least
        self.ratio += (found - self.ratio) / (LOOKS_AVERAGED if self.ratio else 1)
        if found < RECOVERED if self.factor > 1.0 else found >= SLOWED:
            self.since = min(self.since, now)
            if now - self.since >= SUSTAINED_SECONDS:
                self.since, self.factor = inf, 1.0 if self.factor > 1.0 else self.ratio
        else:
            self.since = inf
            if self.factor > 1.0:
                self.factor = max(self.ratio, RECOVERED)


def of_all(slowdowns: Mapping[int, WorkerSlowdown], hosts: Mapping[int, Hashable], now: float) -> dict[int, float]:
    """How many times as long a plan takes on each of these workers as at best, as far as is known: on one that has been idle for
    `SUSTAINED_SECONDS` as on the best one of its host that has not."""
    busy = {number for number, each in slowdowns.items() if now - each.measured_at < SUSTAINED_SECONDS}
    known: dict[Hashable, float] = {}
    for number in busy & hosts.keys():
        host = hosts[number]
        known[host] = min(known.get(host, inf), slowdowns[number].factor)
    found = {}
    for number, host in hosts.items():
        own = slowdowns[number].factor if number in slowdowns else 1.0
        found[number] = own if number in busy else known.get(host, own)
    return found
