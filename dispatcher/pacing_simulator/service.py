"""A service in virtual time: the real pacer between simulated programs and workers, with a policy of one's choice."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from gt.dispatcher.pacing.pacer import Pacer
from gt.dispatcher.pacing.policy import PacingPolicy
from gt.dispatcher.pacing.run_time import RunTime

from .programs import PLANS_AHEAD, SimulatedProgram, Step

WAY_SECONDS: Final = 100e-6
"""The seconds of a message between the dispatcher and a worker or client."""
TURNS_PER_EVENT: Final = 4
"""How many sessions have their turns in one event, as in the dispatcher's core."""


class Head(NamedTuple):
    """What is known of the next plan of a session that waits."""

    asked: float
    nanoseconds: int
    """Its predicted run time."""


Heads = Callable[[int], Head]
"""By session."""


class Request(NamedTuple):
    """What a program has waited for: a value, a burst, a job. `alone` is the least time it can take."""

    seconds: float
    alone: float
    done: bool = True


class SimulatedSession:
    """What a program has asked for."""

    __slots__ = ("alone", "began", "finished", "inflight", "next", "program", "queue", "requests", "steps", "times")

    def __init__(self, program: SimulatedProgram) -> None:
        self.program = program
        self.steps: Iterator[Step] = program.steps()
        self.next = next(self.steps, None)
        """The plan that it asks for next."""
        self.queue: deque[tuple[float, Step]] = deque()
        """The plans that wait at the dispatcher, with the times at which they were asked for."""
        self.inflight = 0
        self.finished = 0
        self.began = self.alone = 0.0
        """When it asked for the first plan of its request, and how long all of them take."""
        self.requests: list[Request] = []
        self.times: dict[int, RunTime] = {}
        """By plan."""

    def run_time(self, step: Step) -> RunTime:
        """What is known of the run time of a plan."""
        return self.times.setdefault(step.plan, RunTime())


class SimulatedService:
    """Some workers and programs, and a policy between them."""

    def __init__(
        self, programs: Sequence[SimulatedProgram], workers: int, policy: Callable[[Heads], PacingPolicy | None]
    ) -> None:
        self.pacer = Pacer(policy(self.head))
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = itertools.count()
        self.orders = itertools.count(1)
        self.sessions = {program.number: SimulatedSession(program) for program in programs}
        self.free = [0.0] * workers
        """When each worker has done all that it was sent."""
        self.spans: list[tuple[int, float, float, int]] = []
        """What has run: the worker, from when until when, and of which session."""
        for session in self.sessions.values():
            self._at(session.program.begins, self._join, session)

    def head(self, number: int) -> Head:
        """What is known of the next plan of a session that waits."""
        session = self.sessions[number]
        asked, step = session.queue[0]
        return Head(asked, session.run_time(step).nanoseconds)

    def run(self, until: float) -> None:
        """Go on until a time, or until all programs have ended."""
        while self.events and self.events[0][0] <= until:
            self.step()
        self.now = until

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, what, about = heappop(self.events)
        what(*about)
        while self.pacer.due:
            for number in self.pacer.turns(self.now, TURNS_PER_EVENT):
                self._pump(self.sessions[number])

    def _at(self, when: float, what: Callable[..., None], *about: Any) -> None:
        heappush(self.events, (when, next(self.count), what, about))

    def _join(self, session: SimulatedSession) -> None:
        program = session.program
        self.pacer.add_mesh(program.number, program.members, program.number, program.principal, program.number)
        self.pacer.declare(program.number, program.priority, program.weight)
        self._go_on(session)

    def _go_on(self, session: SimulatedSession) -> None:
        """Let a program ask for what it may ask for now."""
        while (step := session.next) is not None:
            asked = len(session.queue) + session.inflight
            if asked >= (PLANS_AHEAD if step.pause is None else 1):
                break
            if step.pause is not None:
                session.next = step._replace(pause=None)
                self._at(self.now + step.pause, self._begin, session)
                return
            session.queue.append((self.now, step))
            session.alone += step.seconds
            session.next = next(session.steps, None)
        self._pump(session)

    def _begin(self, session: SimulatedSession) -> None:
        """A program begins a request."""
        session.began, session.alone = self.now, 0.0
        self._go_on(session)

    def _pump(self, session: SimulatedSession) -> None:
        """Release what may be released of a session."""
        number, members = session.program.number, session.program.members
        while session.queue and self.pacer.admits(number, self.now, self.head(number).nanoseconds):
            asked, step = session.queue.popleft()
            order = next(self.orders)
            self.pacer.released(number, order, session.run_time(step), self.now)
            starts = max(self.now + WAY_SECONDS, *(self.free[member] for member in members))
            ends = starts + step.seconds
            for member in members:
                self.free[member] = ends
                self.spans.append((member, starts, ends, number))
            session.inflight += 1
            self._at(ends + WAY_SECONDS, self._done, session, order, asked, step)

    def _done(self, session: SimulatedSession, order: int, asked: float, step: Step) -> None:
        """The workers of a plan have reported that it is done."""
        program = session.program
        self.pacer.measured(program.number, order, [round(step.seconds * 1e9)])
        self.pacer.finished(program.number, 1)
        session.inflight -= 1
        session.finished += 1
        idle = not session.inflight and not session.queue
        if program.hungry:
            session.requests.append(Request(self.now - asked, step.seconds))
        elif idle and (session.next is None or session.next.pause is not None):
            session.requests.append(Request(self.now - session.began, session.alone))
        self._go_on(session)

    # what came of it

    def requests(self) -> dict[str, list[Request]]:
        """By kind of program, what was waited for; what is not done at the end counts with what it has waited so far."""
        found: dict[str, list[Request]] = defaultdict(list)
        for session in self.sessions.values():
            mine = found[session.program.kind]
            mine += session.requests
            if session.program.hungry:
                mine += [Request(self.now - asked, step.seconds, done=False) for asked, step in session.queue]
            elif session.queue or session.inflight:
                mine.append(Request(self.now - session.began, session.alone, done=False))
        return found

    def shares(self, *, hungry: bool) -> dict[int, dict[Hashable, float]]:
        """By worker and principal, the seconds that were computed until now, of all programs or of those that are `hungry`."""
        found: dict[int, dict[Hashable, float]] = defaultdict(lambda: defaultdict(float))
        for worker, begin, end, number in self.spans:
            program = self.sessions[number].program
            if program.hungry or not hungry:
                found[worker][program.principal] += max(0.0, min(end, self.now) - begin)
        return found
