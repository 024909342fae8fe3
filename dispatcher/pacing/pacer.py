"""The pacer: which session's plan is released to its workers next, and when.

Workers run what they are sent in one order, so whoever comes late waits for all that is in flight then. So only some
milliseconds of predicted run time are in flight on a worker that several sessions use (`DEPTH_NANOSECONDS`), at least one
plan; what else sessions have to run waits in their queues at the dispatcher. A worker that one session uses alone has more
in flight (`LONE_DEPTH_NANOSECONDS`), so that it never waits for the dispatcher.

When there is room, the session that the policy ranks first has a turn (`policy.py`: who is furthest behind its fair share):
it releases plans of `TURN_NANOSECONDS`, or one.

A plan for several workers is released when each of them has room. Until then no session that ranks after it has a turn on
any of them, so it is not overtaken for ever. Its number in the one order of all plans is given when it is released, so
nothing that waits here can deadlock: what is in flight needs nothing of it.

Time decides nothing but the order between sessions. Everything is a number or a name; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from .cells import Cell, Cells, Flight, Lane
from .paced_session import PacedSession
from .policy import INTERACTIVE_CREDIT, FairPolicy, PacingPolicy
from .priority import INTERACTIVE, ORDINARY, Entitlement, Priority
from .run_time import RunTime
from .soonest_end import USE_SECONDS, note_use

DEPTH_NANOSECONDS: Final = 5_000_000
"""The nanoseconds in flight on a worker up to which a further plan is released."""
LONE_DEPTH_NANOSECONDS: Final = 20_000_000
"""The same for a worker that one session uses alone, where two plans are in flight at least."""
SHARED_SECONDS: Final = 1.0
"""So long after another session has released a plan there, a worker does not count as one session's alone."""
TURN_NANOSECONDS: Final = 1_000_000
"""The nanoseconds of plans that a session releases in one turn, if they are short."""


class Pacer:
    """Decides when plans of all sessions are released."""

    def __init__(self, policy: PacingPolicy | None = None) -> None:
        self.policy = FairPolicy() if policy is None else policy
        """Says who is first among those that wait."""
        self.cells = Cells()
        self.lanes: dict[int, Lane] = {}
        """By mesh."""
        self.sessions: dict[int, PacedSession] = {}
        self.waiting: dict[int, PacedSession] = {}
        """Those that wait for their turn, by number."""
        self.principals: Mapping[Hashable, Entitlement] = {}
        """What principals are granted, but those that have the `default`."""
        self.default = ORDINARY
        self.due = False
        """Whether there may be room for a session that waits."""
        self.turn: PacedSession | None = None
        """Whose turn it is."""
        self.left = 0
        """How many nanoseconds of it are left."""

    # sessions and their meshes

    def add_mesh(
        self,
        mesh: int,
        members: Iterable[int],
        session: int,
        principal: Hashable,
        program: Hashable,
        now: float = 0.0,
    ) -> None:
        """A session uses a mesh from now on."""
        known = self.sessions.get(session)
        if known is None:
            entitlement = self.principals.get(principal, self.default)
            known = self.sessions[session] = PacedSession(session, (principal, program), entitlement)
        lane = self.lanes[mesh] = Lane(mesh, session, (principal, program, mesh))
        lane.used, lane.used_at = USE_SECONDS, now
        known.lanes.append(lane)
        self.cells.add(lane, members, self._weights(known), known.entitlement.reserved)
        lane.members = sum(cell.size for cell in lane.cells)

    def drop_mesh(self, mesh: int) -> None:
        """A session uses a mesh no longer; what is in flight there counts as finished."""
        lane = self.lanes.pop(mesh)
        for flight in lane.flights:
            lane.over(flight)
        known = self.sessions[lane.session]
        known.lanes.remove(lane)
        known.flights -= lane.plans
        if known.waits is lane:
            self._waits_no_more(known)
        self.cells.drop(lane)
        if not known.lanes:
            del self.sessions[lane.session]
        self.due = bool(self.waiting)

    def declare(self, session: int, priority: Priority, weight: float) -> None:
        """What a session says of itself. A program has the largest weight of its sessions."""
        known = self.sessions.get(session)
        if known is None:
            return
        known.priority, known.weight = priority, weight
        self._entitle(known)

    def entitle(self, principals: Mapping[Hashable, Entitlement], default: Entitlement = ORDINARY) -> None:
        """What principals are granted from now on. Sessions that are there follow when they are told (`follow`)."""
        self.principals, self.default = principals, default

    def follow(self, session: int) -> None:
        """A session has from now on what its principal is granted."""
        known = self.sessions.get(session)
        if known is not None:
            known.entitlement = self.principals.get(known.key[0], self.default)
            self._entitle(known)

    def _entitle(self, session: PacedSession) -> None:
        """Give the shares of a session their weights."""
        weights = self._weights(session)
        for lane in session.lanes:
            for cell in lane.cells:
                cell.shares.entitle(lane.key, weights, session.entitlement.reserved)
        self.due = bool(self.waiting)

    def kind(self, session: int) -> str:
        """The class of a session, as it said or behaves; '' before it has a mesh."""
        known = self.sessions.get(session)
        return "" if known is None else str(known.kind)

    def _weights(self, session: PacedSession) -> tuple[float, float, float]:
        same = [each.weight for each in self.sessions.values() if each.key == session.key]
        return session.entitlement.weight, max(same), session.weight

    # releasing

    def admits(self, mesh: int, now: float) -> bool:
        """Whether the next plan of a mesh may be released now. If not, its session waits for its turn."""
        lane = self.lanes[mesh]
        session = self.sessions[lane.session]
        if session is self.turn:
            first = self.left > 0
        else:
            first = session.waits is None and not (self.waiting and any(cell.waiting for cell in lane.cells))
        if first and self._has_room(lane, now):
            return True
        if session.waits is None:
            session.waits, session.since = lane, now
            session.was_idle = not session.flights
            self.waiting[session.number] = session
            lane.begin()
            for cell in lane.cells:
                cell.waiting += 1
            self.due = True
        return False

    def released(self, mesh: int, order: int, run_time: RunTime | None, now: float) -> None:
        """Something was sent to a mesh: a plan, or (without a run time) what is not paced."""
        lane = self.lanes[mesh]
        if run_time is None:
            lane.flights.append(Flight(order, None, 0))
            return
        nanoseconds = run_time.nanoseconds
        lane.flights.append(Flight(order, run_time, nanoseconds))
        session = self.sessions[lane.session]
        was_idle = session.was_idle if session is self.turn else not session.flights
        session.behaviour.released(nanoseconds, was_idle=was_idle)
        session.was_idle = False
        session.flights += 1
        session.last = nanoseconds
        session.spent += nanoseconds
        lane.plans += 1
        lane.nanoseconds += nanoseconds
        note_use(lane, nanoseconds, now)
        if not lane.active:
            lane.begin()
        if session is self.turn:
            self.left -= nanoseconds
        credit = INTERACTIVE_CREDIT if session.kind is INTERACTIVE else 0
        for cell in lane.cells:
            cell.plans += 1
            cell.nanoseconds += nanoseconds
            if len(cell.lanes) > 1:
                if cell.owner != lane.session:
                    cell.owner, cell.shared_until = lane.session, now + SHARED_SECONDS
                cell.shares.charge(lane.key, nanoseconds, credit)

    def measured(self, mesh: int, order: int, nanoseconds: Sequence[int]) -> None:
        """A worker has run the last things sent to a mesh up to an order, in so many nanoseconds each (0: nobody knows)."""
        lane = self.lanes.get(mesh)
        if lane is None or order <= lane.reported:
            return
        new = [flight for flight in lane.flights if lane.reported < flight.order <= order]
        lane.reported = order
        for flight, each in zip(reversed(new), reversed(nanoseconds), strict=False):
            if flight.run_time is None or each <= 0:
                continue
            flight.run_time.measured(each)
            flight.run_time.tally.measured(each)
            for cell in lane.cells:
                if len(cell.lanes) > 1:
                    cell.shares.correct(lane.key, each - flight.nanoseconds)

    def also_measured(self, mesh: int, order: int, nanoseconds: Sequence[int]) -> None:
        """Another worker of a mesh than the one whose measurements predict has run the last things up to an order."""
        new = [flight.run_time for flight in self.lanes[mesh].flights if flight.order <= order]
        for run_time, each in zip(reversed(new), reversed(nanoseconds), strict=False):
            if run_time is not None and each > 0:
                run_time.tally.measured(each)

    def finished(self, mesh: int, count: int) -> None:
        """All workers of a mesh have done the first things in flight, so many."""
        lane = self.lanes[mesh]
        plans = nanoseconds = 0
        for _ in range(count):
            flight = lane.flights.popleft()
            plans += lane.over(flight)
            nanoseconds += flight.nanoseconds
        if plans:
            lane.plans -= plans
            lane.nanoseconds -= nanoseconds
            session = self.sessions[lane.session]
            session.flights -= plans
            for cell in lane.cells:
                cell.plans -= plans
                cell.nanoseconds -= nanoseconds
            self._look_at_activity(lane)
            self.due = bool(self.waiting)

    def turns(self, now: float, most: int) -> Iterator[int]:
        """The sessions whose turn has come, at most so many. The caller lets each release its plans before it takes the next;
        it may be `due` again afterwards."""
        while self.due and most > 0:
            self.due = False
            for session in self._candidates(now):
                if most <= 0:
                    self.due = True
                    return
                most -= 1
                lane = self._waits_no_more(session)
                self.turn, self.left = session, TURN_NANOSECONDS
                yield session.number
                self.turn = None
                self._look_at_activity(lane)
                self.due = bool(self.waiting)

    def first(self, session: int, now: float, most: int) -> list[int]:
        """The sessions that have their turns before one that waits, and need a worker of its; at most so many are looked at."""
        known = self.sessions[session]
        assert known.waits is not None, "it waits for its turn"
        beside = [
            each
            for each in self.waiting.values()
            if each.waits and not {*each.waits.cells}.isdisjoint(known.waits.cells)
        ]
        rank = self.policy.ranks(self.waiting, now)
        mine = rank(known)
        return [each.number for each in beside[:most] if each is not known and rank(each) < mine]

    def _candidates(self, now: float) -> Iterator[PacedSession]:
        """The sessions that have their turn now, the first one first. What the caller does with each counts for the others."""
        rank = self.policy.ranks(self.waiting, now)
        heap = [(rank(session), number, session) for number, session in self.waiting.items()]
        heapify(heap)
        reserved: set[Cell] = set()
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
            if reserved.isdisjoint(lane.cells) and self._has_room(lane, now):
                yield session
                if session.waits is not None:
                    heappush(heap, (rank(session), number, session))
            else:
                reserved.update(lane.cells)

    def _has_room(self, lane: Lane, now: float) -> bool:
        """Whether each worker of a mesh has room for one more plan."""
        for cell in lane.cells:
            if cell.nanoseconds < DEPTH_NANOSECONDS:
                continue
            others = cell.waiting - (self.sessions[lane.session].waits is lane)
            shared = len(cell.lanes) > 1 and (others > 0 or cell.shared_until > now)
            if shared or (cell.nanoseconds >= LONE_DEPTH_NANOSECONDS and cell.plans > 1):
                return False
        return True

    def _waits_no_more(self, session: PacedSession) -> Lane:
        """A session waits for its turn no longer. Returns the mesh for which it did."""
        lane, session.waits = session.waits, None
        del self.waiting[session.number]
        assert lane is not None, "it has waited for a mesh"
        for cell in lane.cells:
            cell.waiting -= 1
        return lane

    def _look_at_activity(self, lane: Lane) -> None:
        """Note if a mesh has nothing waiting or in flight any more."""
        if not lane.plans and lane.mesh in self.lanes and self.sessions[lane.session].waits is not lane:
            lane.end()

    def check(self) -> None:
        """The invariants between events."""
        self.cells.check()
        assert self.turn is None, "a turn ends with its event"
        assert self.waiting.keys() == {each.number for each in self.sessions.values() if each.waits is not None}
        for lane in self.lanes.values():
            session = self.sessions[lane.session]
            assert lane.nanoseconds == sum(flight.nanoseconds for flight in lane.flights)
            assert lane.plans == sum(flight.run_time is not None for flight in lane.flights)
            assert lane.active == (lane.plans > 0 or session.waits is lane)
        for session in self.sessions.values():
            assert session.flights == sum(lane.plans for lane in session.lanes)
            assert session.waits is None or session.waits in session.lanes
        for cell in {*self.cells.of.values()}:
            assert cell.waiting == sum(self.sessions[lane.session].waits is lane for lane in cell.lanes)
        if self.waiting and not self.due:
            assert any(cell.plans for each in self.waiting.values() if each.waits for cell in each.waits.cells), (
                "whoever waits for a turn waits for a plan in flight"
            )
