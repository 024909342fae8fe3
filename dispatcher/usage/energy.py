"""Whose the energy of a device is: what it took since it was last asked, divided among sessions by their time on it.

A report counts when plans have finished since the one before; until then what the device takes waits, because a long plan is
known only when it is over. What it takes while nothing runs is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

MAX_PERIOD_SECONDS: Final = 30.0
"""Of a longer time between two reports nobody knows what the power was."""


class BusyMesh(NamedTuple):
    """A mesh to which the device belongs: its number, the nanoseconds that plans on it have taken in all, and whether one is in
    flight."""

    mesh: int
    nanoseconds: int
    in_flight: bool


class EnergyMeter:
    """One device."""

    def __init__(self) -> None:
        self.heard: float | None = None
        """When it last told its power."""
        self.millijoules = 0.0
        """What it took since sessions were last charged."""
        self.seconds = 0.0
        """In so long a time."""
        self.seen: dict[int, int] = {}
        """By mesh, the nanoseconds up to which sessions were charged."""

    def hear(self, milliwatts: int, now: float, meshes: Iterable[BusyMesh]) -> Iterator[tuple[int, int]]:
        """The device takes so much power now (below 0: nobody knows). Returns what to charge: meshes, and millijoules."""
        since, self.heard = self.heard, now
        known = [*meshes]
        fresh = {
            each.mesh: each.nanoseconds - self.seen.get(each.mesh, each.nanoseconds if since is None else 0)
            for each in known
        }
        self.seen = {each.mesh: each.nanoseconds for each in known}
        if milliwatts < 0 or since is None or not 0 < now - since <= MAX_PERIOD_SECONDS:
            self.millijoules = self.seconds = 0.0
            return
        self.millijoules += milliwatts * (now - since)
        self.seconds += now - since
        busy = sum(fresh.values())
        if busy <= 0:
            if not any(each.in_flight for each in known):
                self.millijoules = self.seconds = 0.0
            return
        whole = max(float(busy), self.seconds * 1e9)
        for mesh, nanoseconds in fresh.items():
            if nanoseconds > 0:
                yield mesh, round(self.millijoules * nanoseconds / whole)
        self.millijoules = self.seconds = 0.0
