"""Where a session stands in the pacing of its workers' time: its share now, what is in flight before it, and who is first.

It reads the pacer and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .cells import Cell, Lane
from .pacer import Pacer

MAX_WORKERS: Final = 64
"""The most workers that are looked at."""
MAX_GROUPS: Final = 4
"""The most groups of workers, that serve the same sessions, that are looked at."""
MAX_FIRST: Final = 64
"""The most sessions that wait of which it is found out whether they are first."""


class WorkersStanding(NamedTuple):
    """What is so on some workers, on each of them."""

    workers: tuple[int, ...]
    share: float
    """The part of their time that is the session's while all go on that do now."""
    seconds: float
    """Of plans in flight, as predicted."""
    flights: tuple[tuple[int, int, float], ...]
    """Of each session with plans in flight, the most first: its number, how many, and their seconds."""
    waiting: int
    """How many sessions wait for their turn."""


class SessionStanding(NamedTuple):
    """Where one session stands."""

    waits: float | None
    """For how many seconds it has waited for its turn; None: it does not."""
    first: tuple[int, ...]
    """The sessions, on some of its workers, that have their turn before it."""
    workers: tuple[WorkersStanding, ...]


def standing(pacer: Pacer, session: int, mesh: int, members: Sequence[int], now: float) -> SessionStanding:
    """Where a session stands on the workers of its mesh."""
    lane, known = pacer.lanes[mesh], pacer.sessions[session]
    groups: dict[Cell, list[int]] = {}
    for worker in members[:MAX_WORKERS]:
        groups.setdefault(pacer.cells.of[worker], []).append(worker)
    found = tuple(_on(cell, tuple(workers), lane) for cell, workers in [*groups.items()][:MAX_GROUPS])
    if known.waits is None:
        return SessionStanding(None, (), found)
    return SessionStanding(now - known.since, tuple(pacer.first(session, now, MAX_FIRST)), found)


def _on(cell: Cell, workers: tuple[int, ...], lane: Lane) -> WorkersStanding:
    flights: dict[int, tuple[int, int]] = {}
    for each in cell.lanes:
        if each.plans:
            plans, nanoseconds = flights.get(each.session, (0, 0))
            flights[each.session] = plans + each.plans, nanoseconds + each.nanoseconds
    most = sorted(
        ((number, plans, spent / 1e9) for number, (plans, spent) in flights.items()), key=lambda each: -each[2]
    )
    return WorkersStanding(
        workers, share_now(cell, lane), cell.nanoseconds / 1e9, tuple(most[:MAX_FIRST]), cell.waiting
    )


def share_now(cell: Cell, lane: Lane) -> float:
    """The part of a worker's time that is a mesh's, if it has something to run, beside all that have something now."""
    part = 1.0
    for share in cell.shares.path(lane.key):
        assert share.parent is not None, "the whole is nobody's"
        beside = sum(each.rate for each in share.parent.parts if each.active and each is not share)
        part *= share.rate / (share.rate + beside)
    return part
