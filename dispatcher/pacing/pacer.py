"""The pacer: which session's plan is released to its workers next, and when.

Workers run what they are sent in one order, so whoever comes late waits for all that is in flight then. So only some
milliseconds of predicted run time are in flight on a worker that several sessions use (`DEPTH_NANOSECONDS`), at least one
plan; what else sessions have to run waits in their queues at the dispatcher. A worker that one session uses alone has more
in flight (`LONE_DEPTH_NANOSECONDS`), so that it never waits for the dispatcher.

When there is room, whoever is furthest behind its fair share has a turn (`turns.py`): it releases plans of
`TURN_NANOSECONDS`, or one.

A plan for several workers is released when each of them has room. Its number in the one order of all plans is given then, so
nothing that waits here can deadlock: what is in flight needs nothing of it.

Time decides nothing but the order between sessions. Everything is a number or a name; the clock is an argument.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from .cells import Cell, Cells, Flight, Lane
from .paced_session import PacedSession
from .policy import PacingPolicy
from .priority import BATCH, INTERACTIVE, ORDINARY, Entitlement, Priority
from .run_time import RunTime
from .slowdown import LEAST_PLAN_NANOSECONDS
from .soonest_end import USE_SECONDS, note_use
from .turns import GANG_TURN_NANOSECONDS, FairTurns, RankedTurns, Turns
from .waiting_line import INTERACTIVE_CREDIT

DEPTH_NANOSECONDS: Final = 5_000_000
"""The nanoseconds in flight on a worker up to which a further plan is released."""
LONE_DEPTH_NANOSECONDS: Final = 20_000_000
"""The same for a worker that one session uses alone, where two plans are in flight at least."""
SHARED_SECONDS: Final = 1.0
"""So long after another session has released a plan there, a worker does not count as one session's alone."""
TURN_NANOSECONDS: Final = 1_000_000
"""The nanoseconds of plans that a session releases in one turn, if they are short."""
BATCH_PATIENCE: Final = 1.0
"""The seconds after which a batch session that waits has its turn like others."""
MAX_RANKED: Final = 64
"""The most sessions that wait on a worker which a service's policy ranks in one event."""
PATIENT_AT_ONCE: Final = 64
"""The most batch sessions that have waited for so long that are looked at in one event."""


class Pacer:
    """Decides when plans of all sessions are released: by fair shares, or by a policy."""

    def __init__(self, policy: PacingPolicy | None = None) -> None:
        self.turns_of: Turns = FairTurns(self) if policy is None else RankedTurns(self, policy)
        """Says who is first among those that wait."""
        self.cells = Cells()
        self.lanes: dict[int, Lane] = {}
        """By mesh."""
        self.sessions: dict[int, PacedSession] = {}
        self.waiting: dict[int, PacedSession] = {}
        """Those that wait for their turn, by number."""
        self.patient: deque[tuple[float, PacedSession]] = deque()
        """The batch sessions that wait or have waited, with the times since when."""
        self.principals: Mapping[Hashable, Entitlement] = {}
        """What principals are granted, but those that have the `default`."""
        self.default = ORDINARY
        self.due = False
        """Whether there may be room for a session that waits."""
        self.turn: PacedSession | None = None
        """Whose turn it is."""
        self.left = 0
        """How many nanoseconds of it are left."""

    def choose(self, policy: PacingPolicy) -> None:
        """Go by a policy, from before the first session on."""
        self.turns_of = RankedTurns(self, policy, MAX_RANKED)

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
        self._touch(lane)

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
        self._touch(lane)
        self.cells.drop(lane)
        if not known.lanes:
            del self.sessions[lane.session]

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
        if session.waits is not None:
            self._stand_anew(session)
        self.due = bool(self.waiting)

    def _stand_anew(self, session: PacedSession) -> None:
        """A session that waits stands in its lines by what it is now."""
        lane = self._leave(session)
        self._enter(session, lane, late=session.late and session.kind is BATCH)
        self._touch(lane)

    def kind(self, session: int) -> str:
        """The class of a session, as its next plan has it, or as it said or behaves; '' before it has a mesh."""
        known = self.sessions.get(session)
        return "" if known is None else str(known.kind)

    def _weights(self, session: PacedSession) -> tuple[float, float, float]:
        same = [each.weight for each in self.sessions.values() if each.key == session.key]
        return session.entitlement.weight, max(same), session.weight

    # releasing

    def admits(self, mesh: int, now: float, expected: int = 0, priority: Priority | None = None) -> bool:
        """Whether the next plan of a mesh, of so many nanoseconds (0: as the last one) and of a class (None: its session's), may
        be released now. If not, its session waits for its turn."""
        lane = self.lanes[mesh]
        session = self.sessions[lane.session]
        if session.plan is not priority:
            session.plan = priority
            if session.waits is not None:  # for a plan that is not to be released any more
                self._stand_anew(session)
        if session is self.turn:
            first = self.left > 0
        else:
            first = session.waits is None and not (self.waiting and any(cell.waiting for cell in lane.cells))
        if first and self.has_room(lane, now):
            return True
        if session.waits is None:
            session.since = now
            session.expected = expected or session.last
            session.was_idle = not session.flights
            self.waiting[session.number] = session
            lane.begin()
            late = session.kind is BATCH
            if late:
                self.patient.append((now, session))
            self._enter(session, lane, late=late)
            self._touch(lane)
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
        if lane.turn_left:
            lane.turn_left -= nanoseconds
        credit = INTERACTIVE_CREDIT if session.kind is INTERACTIVE else 0
        for cell in lane.cells:
            cell.plans += 1
            cell.nanoseconds += nanoseconds
            cell.ends = max(cell.ends, now) + nanoseconds / 1e9
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
            least = flight.run_time.least
            if lane.members == 1 and least >= LEAST_PLAN_NANOSECONDS:
                lane.took += each
                lane.least += least
            for cell in lane.cells:
                if len(cell.lanes) > 1:
                    path = cell.shares.correct(lane.key, each - flight.nanoseconds)
                    if cell.waiting and each < flight.nanoseconds:
                        cell.prompt.moved_back(path)
                        cell.late.moved_back(path)

    def also_measured(self, mesh: int, order: int, nanoseconds: Sequence[int]) -> None:
        """Another worker of a mesh than the one whose measurements predict has run the last things up to an order."""
        new = [flight.run_time for flight in self.lanes[mesh].flights if flight.order <= order]
        for run_time, each in zip(reversed(new), reversed(nanoseconds), strict=False):
            if run_time is not None and each > 0:
                run_time.tally.measured(each)

    def answers(self, mesh: int, nanoseconds: int) -> None:
        """Workers of a mesh are asked for something that takes each of them so long, at once and besides plans."""
        lane = self.lanes.get(mesh)
        if lane is None:
            return
        for cell in lane.cells:
            if len(cell.lanes) > 1:
                cell.shares.correct(lane.key, nanoseconds)

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
            self._touch(lane)

    def turns(self, now: float, most: int) -> Iterator[int]:
        """The sessions whose turn has come, at most so many. The caller lets each release its plans before it takes the next;
        it may be `due` again afterwards."""
        while self.due and most > 0:
            self.due = False
            self._look_at_patience(now)
            for session in self.turns_of.next(now):
                if most <= 0:
                    self.due = True
                    return
                most -= 1
                lane = self._waits_no_more(session)
                self.turn, self.left = session, TURN_NANOSECONDS
                if len(lane.cells) > 1 and lane.turn_left <= 0:
                    lane.turn_left = GANG_TURN_NANOSECONDS
                yield session.number
                self.turn = None
                self._look_at_activity(lane)
                self.due = bool(self.waiting)

    def first(self, session: int, now: float, most: int) -> list[int]:
        """The sessions that have their turns before one that waits, on a worker of its, by fair shares; at most so many are
        looked at."""
        known = self.sessions[session]
        assert known.waits is not None, "it waits for its turn"
        found: dict[int, None] = {}
        for cell in known.waits.cells:
            mine = (cell.late if known.late else cell.prompt).order(known.waits)
            for line in (cell.prompt, cell.late) if known.late else (cell.prompt,):
                for lane in itertools.islice(line.lanes, most):
                    if line.order(lane) < mine or (known.late and line is cell.prompt):
                        found[lane.session] = None
        return [*found][:most]

    def is_beside_others(self, mesh: int) -> bool:
        """Whether others have plans in flight, or wait, on a worker of a mesh."""
        lane = self.lanes[mesh]
        waits = self.sessions[lane.session].waits is lane
        return any(cell.plans > lane.plans or cell.waiting > waits for cell in lane.cells)

    def has_room(self, lane: Lane, now: float) -> bool:
        """Whether each worker of a mesh has room for one more plan."""
        waits = self.sessions[lane.session].waits is lane
        return all(self.has_room_on(cell, now, cell.waiting - waits) for cell in lane.cells)

    def has_room_on(self, cell: Cell, now: float, others: int) -> bool:
        """Whether workers have room for one more plan of one session, where so many others wait."""
        if cell.nanoseconds < DEPTH_NANOSECONDS:
            return True
        shared = len(cell.lanes) > 1 and (others > 0 or cell.shared_until > now)
        return not (shared or (cell.nanoseconds >= LONE_DEPTH_NANOSECONDS and cell.plans > 1))

    def _touch(self, lane: Lane) -> None:
        """Something has changed on the workers of a mesh."""
        if self.waiting:
            self.due = True
            self.turns_of.touch(lane.cells)

    def _enter(self, session: PacedSession, lane: Lane, *, late: bool) -> None:
        """A session stands in the lines of the workers for which it waits."""
        session.waits, session.late = lane, late
        urgent = session.kind is INTERACTIVE
        for cell in lane.cells:
            cell.waiting += 1
            (cell.late if late else cell.prompt).add(lane, cell.shares.path(lane.key), urgent=urgent)

    def _leave(self, session: PacedSession) -> Lane:
        """A session stands in no line any more. Returns the mesh for which it has waited."""
        lane, session.waits = session.waits, None
        assert lane is not None, "it has waited for a mesh"
        for cell in lane.cells:
            cell.waiting -= 1
            (cell.late if session.late else cell.prompt).remove(lane)
        return lane

    def _look_at_patience(self, now: float) -> None:
        """Batch sessions that have waited for long enough wait like others from now on."""
        patient = self.patient
        for _ in range(PATIENT_AT_ONCE):
            if not patient or now - patient[0][0] < BATCH_PATIENCE:
                return
            since, session = patient.popleft()
            if session.waits is not None and session.late and session.since == since:
                lane = self._leave(session)
                self._enter(session, lane, late=False)
                self._touch(lane)
        self.due = True

    def _waits_no_more(self, session: PacedSession) -> Lane:
        """A session waits for its turn no longer. Returns the mesh for which it did."""
        del self.waiting[session.number]
        return self._leave(session)

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
            waiting = {lane for lane in cell.lanes if self.sessions[lane.session].waits is lane}
            assert cell.waiting == len(waiting) == len(cell.prompt.lanes) + len(cell.late.lanes)
            assert waiting == {*cell.prompt.lanes, *cell.late.lanes}
        for session in self.waiting.values():
            assert session.waits is not None
            cells = session.waits.cells
            if all(cell.nanoseconds < DEPTH_NANOSECONDS for cell in cells):
                assert self.turns_of.looks_at(cells), "who has room is looked at"
        if self.waiting and not self.due:
            assert any(cell.plans for each in self.waiting.values() if each.waits for cell in each.waits.cells), (
                "whoever waits for a turn waits for a plan in flight"
            )
