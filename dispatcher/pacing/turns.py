"""Who has the next turn, of all sessions that wait: by fair shares (`FairTurns`), or by the ranks of a policy (`RankedTurns`).

A plan for several workers begins on all of them at once. While one of them has no room, the others are kept free for it, but
for plans that are over by then as far as is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from .cells import Cell, Lane
from .paced_session import PacedSession
from .policy import PacingPolicy
from .waiting_line import INTERACTIVE_CREDIT

if TYPE_CHECKING:
    from .pacer import Pacer

GANG_TURN_NANOSECONDS: Final = 50_000_000
"""So many nanoseconds of plans a session on several workers goes on before others with a claim that is better by less: these
workers had to be free at once."""
MAX_FILLS: Final = 8
"""The most sessions that are looked at for a plan that is over in time, on a worker that is kept free."""
MAX_PASSED: Final = 32
"""The most sessions on several workers that are passed over on one of them because their claim is not good enough elsewhere."""


class KeptFree:
    """The workers that are kept free in one look, each with the time from when on they are needed."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.since: dict[Cell, float] = {}

    def keep(self, lane: Lane) -> None:
        """Keep all workers of a mesh free until they have done what is in flight."""
        starts = max(self.now, *(cell.ends for cell in lane.cells))
        for cell in lane.cells:
            self.since[cell] = min(starts, self.since.get(cell, starts))

    def allow(self, session: PacedSession, lane: Lane) -> bool:
        """Whether the next plan of a session is over before its workers are needed."""
        if not self.since:
            return True
        return all(
            max(cell.ends, self.now) + session.expected / 1e9 <= self.since[cell]
            for cell in lane.cells
            if cell in self.since
        )


class LookedAt:
    """The workers where something has changed, and those that had room left for whoever waited still."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.touched: dict[Cell, None] = {}
        self.roomy: dict[Cell, None] = {}

    def touch(self, cells: Iterable[Cell]) -> None:
        """They are looked at next time."""
        self.touched.update(dict.fromkeys(cells))

    def looks_at(self, cells: Iterable[Cell]) -> bool:
        """Whether one of them is looked at next time."""
        return any(cell in self.touched or cell in self.roomy for cell in cells)

    def take(self) -> dict[Cell, None]:
        """Those that are to be looked at now."""
        cells = dict.fromkeys(cell for cell in (*self.roomy, *self.touched) if cell.lanes)
        self.roomy, self.touched = {}, {}
        return cells

    def leave(self, cells: Iterable[Cell], now: float) -> None:
        """They have been looked at."""
        for cell in cells:
            if cell.lanes and cell.waiting and self.pacer.has_room_on(cell, now, cell.waiting - 1):
                self.roomy[cell] = None


class Turns(ABC):
    """Which sessions have their turns now."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.cells = LookedAt(pacer)

    @abstractmethod
    def next(self, now: float) -> Iterator[PacedSession]:
        """The sessions that have their turns at `now`, in seconds, the first one first. What the caller does with each counts for
        the others."""

    def touch(self, cells: Iterable[Cell]) -> None:
        """Note that something has changed on these workers: what is in flight, or who waits."""
        self.cells.touch(cells)

    def looks_at(self, cells: Iterable[Cell]) -> bool:
        """Whether one of these workers is looked at next time."""
        return self.cells.looks_at(cells)


class RankedTurns(Turns):
    """By the ranks of a policy. At most so many that wait on a worker are ranked (`most`), those that have waited longest."""

    def __init__(self, pacer: Pacer, policy: PacingPolicy, most: int | None = None) -> None:
        super().__init__(pacer)
        self.policy = policy
        self.most = most

    def next(self, now: float) -> Iterator[PacedSession]:
        """Those with the least ranks. A mesh of several workers keeps them free if none of them is another's before."""
        cells = self.cells.take()
        whole = True
        try:
            for session in self._ranked(cells, now):
                whole = False
                yield session
                whole = True
        finally:
            self.cells.leave(cells, now)
            if not whole:
                self.cells.touch(cells)

    def _among(self, cells: Iterable[Cell], now: float) -> dict[int, PacedSession]:
        """The sessions that are ranked."""
        pacer = self.pacer
        if self.most is None or len(pacer.waiting) <= self.most:
            return pacer.waiting
        found: dict[int, PacedSession] = {}
        for cell in cells:
            if pacer.has_room_on(cell, now, cell.waiting - 1):
                for lane in islice(chain(cell.prompt.lanes, cell.late.lanes), self.most):
                    found[lane.session] = pacer.sessions[lane.session]
        return found

    def _ranked(self, cells: Iterable[Cell], now: float) -> Iterator[PacedSession]:
        pacer, among = self.pacer, self._among(cells, now)
        rank = self.policy.ranks(among, now)
        heap = [(rank(session), number, session) for number, session in among.items()]
        heapify(heap)
        kept = KeptFree(now)
        while heap:
            before, number, session = heap[0]
            lane = session.waits
            if lane is None:
                heappop(heap)
                continue
            after = rank(session)
            if after > before:  # others of its principal have had their turns
                heapreplace(heap, (after, number, session))
                continue
            heappop(heap)
            if kept.allow(session, lane) and pacer.has_room(lane, now):
                yield session
                if session.waits is not None:
                    heappush(heap, (rank(session), number, session))
            elif len(lane.cells) == 1 or kept.since.keys().isdisjoint(lane.cells):
                kept.keep(lane)


class FairTurns(Turns):
    """By fair shares: on each worker whoever is furthest behind (`waiting_line.py`), batch sessions last.

    A session on several workers has its turn when its principal is furthest behind on all of them, or when what it is behind
    the other programs of its principal makes up for that: these may always have their turns on one worker each, so that the
    principal is hardly ever behind on all at once. Then its workers are kept free for it, and it goes on for
    `GANG_TURN_NANOSECONDS`. Before that it keeps nothing free, and is never further behind on the others of its workers than an
    interactive session may be before.

    Only workers where something has changed are looked at, and those that had room left.
    """

    def next(self, now: float) -> Iterator[PacedSession]:
        """On each worker after the other, who is first there."""
        cells = self.cells.take()
        left = dict(cells)
        kept, passed = KeptFree(now), dict[Lane, None]()
        try:
            for cell in cells:
                yield from self._on(cell, kept, passed)
                del left[cell]
        finally:
            self.cells.touch(left)
            for cell in dict.fromkeys(chain(cells, *(lane.cells for lane in passed))):
                cell.prompt.show()
                cell.late.show()
            self.cells.leave(cells, now)

    def _on(self, cell: Cell, kept: KeptFree, passed: dict[Lane, None]) -> Iterator[PacedSession]:
        """Who has a turn on a worker, while it has room."""
        fills = gangs = 0
        while (lane := cell.prompt.head() or cell.late.head()) is not None:
            session = self.pacer.sessions[lane.session]
            line = cell.late if session.late else cell.prompt
            if not self.pacer.has_room_on(cell, kept.now, cell.waiting - 1):
                return
            if len(lane.cells) == 1:
                if kept.allow(session, lane):
                    yield session
                    continue
                fills += 1
                if fills > MAX_FILLS:
                    return
            elif lane not in passed:
                gangs += 1
                if gangs <= MAX_PASSED and not self._may_go(session, lane):
                    passed[lane] = None
                    continue
                if kept.allow(session, lane) and self.pacer.has_room(lane, kept.now):
                    yield session
                    continue
                passed[lane] = None
                if kept.since.keys().isdisjoint(lane.cells):
                    kept.keep(lane)
            line.hide(lane)

    def _may_go(self, session: PacedSession, lane: Lane) -> bool:
        """Whether the claim of a session on several workers is good enough on all of them. If not, it does not count for others
        either in this look, as each of two might wait for the other one; and what it could have had of the workers where it is,
        it cannot save up."""
        ahead = [cell for cell in lane.cells if not self._claims(session, lane, cell)]
        if not ahead:
            return True
        for cell in lane.cells:
            line = cell.late if session.late else cell.prompt
            if lane not in line.hidden:
                line.hide(lane)
            if cell not in ahead:
                cell.shares.forfeit(lane.key, INTERACTIVE_CREDIT)
        return False

    def _claims(self, session: PacedSession, lane: Lane, cell: Cell) -> bool:
        """Whether the claim of a session is good enough on one of its workers."""
        if session.late and cell.prompt.head() is not None:
            return False
        principal, program, own = cell.shares.path(lane.key)
        behind = max(0.0, principal.clock - program.virtual) * program.rate
        behind += max(0.0, program.clock - own.virtual) * own.rate
        line = cell.late if session.late else cell.prompt
        return line.lead(principal) * principal.rate <= behind + max(0, lane.turn_left)
