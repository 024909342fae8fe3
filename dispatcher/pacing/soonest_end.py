"""On which worker a session's work would end soonest: what is in flight there, and the share of its time that the session would
get.

Who uses a worker how much is told by the last seconds. A session that has just come counts as one that always has work, so that
several that come at once are spread; one that is idle counts little.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from math import exp
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .cells import Lane
    from .pacer import Pacer

USE_SECONDS: Final = 2.0
"""Over which seconds use is averaged, with less weight for what is longer ago."""
FORGOTTEN_SECONDS: Final = 10.0
"""After so long without use a session counts as idle."""
STRAIN: Final = 4.0
LEAST_DEMAND: Final = 0.1
"""What an idle session counts: it may begin again."""


class WorkerOffer(NamedTuple):
    """What is known of a worker besides its sessions."""

    pace: float
    """Its speed, in any unit that is the same for all."""
    seconds: float = 0.0
    """What it takes until the session's data is there."""
    strained: bool = False
    """Whether it is short of memory, or slowed down because it is hot: then all takes `STRAIN` times as long."""


def soonest(
    pacer: Pacer, principal: Hashable, session: int, offers: Mapping[int, WorkerOffer], now: float
) -> list[int]:
    """The workers in the order in which a second of work of a session on the fastest of them would end, alone on it."""
    fastest = max((offer.pace for offer in offers.values()), default=1.0)
    stretches: dict[int, tuple[float, float]] = {}
    ends: dict[int, tuple[float, int]] = {}
    for worker, offer in offers.items():
        cell = pacer.cells.of.get(worker)
        if cell is None:
            wait, stretch = 0.0, 1.0
        else:
            found = stretches.get(id(cell))
            if found is None:
                found = stretches[id(cell)] = (
                    cell.nanoseconds / 1e9,
                    _stretch(pacer, cell.lanes, principal, session, now),
                )
            wait, stretch = found
        strain = STRAIN if offer.strained else 1.0
        ends[worker] = wait + offer.seconds + strain * stretch * fastest / offer.pace, worker
    return sorted(offers, key=ends.__getitem__)


def _stretch(pacer: Pacer, lanes: Iterable[Lane], principal: Hashable, session: int, now: float) -> float:
    """How much longer work takes on a worker than if a session had it alone: the inverse of its share, which is first that of its
    principal and then one among those of the principal's sessions."""
    own, others, weights = 0.0, dict[Hashable, float](), dict[Hashable, float]()
    for lane in lanes:
        if lane.session == session:
            continue
        whose = lane.key[0]
        demand = demand_of(lane, now)
        if whose == principal:
            own += demand
        else:
            others[whose] = others.get(whose, 0.0) + demand
            weights[whose] = pacer.principals.get(whose, pacer.default).weight
    weight = pacer.principals.get(principal, pacer.default).weight
    rest = sum(weights[whose] * min(1.0, demand) for whose, demand in others.items())
    return (1.0 + rest / weight) * (1.0 + own)


def demand_of(lane: Lane, now: float) -> float:
    """How much of a worker's time a session would use if it had it alone, from 0 to 1, as far as is known."""
    if lane.active:
        return 1.0
    idle = now - lane.used_at
    if idle > FORGOTTEN_SECONDS:
        return LEAST_DEMAND
    return min(1.0, max(LEAST_DEMAND, lane.used * exp(-idle / USE_SECONDS) / USE_SECONDS))


def note_use(lane: Lane, nanoseconds: int, now: float) -> None:
    """Note that a session uses the workers of a mesh for so long."""
    lane.used = lane.used * exp((lane.used_at - now) / USE_SECONDS) + nanoseconds / 1e9
    lane.used_at = now
