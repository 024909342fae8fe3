"""The simulated service of `dispatcher/pacing_simulator`, as tests of the pacer need it.

Programs come and leave while it runs, or get another entitlement, and the pacer's invariants are looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.pacing.priority import AUTO, Entitlement, Priority
from gt.dispatcher.pacing_simulator.policies import POLICIES
from gt.dispatcher.pacing_simulator.programs import SimulatedProgram, Step
from gt.dispatcher.pacing_simulator.service import WAY_SECONDS, SimulatedService, SimulatedSession

CHECKED_EVENTS = 16
"""After so many events the invariants are looked at."""


@dataclass(eq=False)
class Program:
    """A session with plans of these seconds, one after the other. With `thinks`, it waits for each plan and then so long (in
    seconds); without, there is always another one."""

    number: int
    members: tuple[int, ...]
    plans: Iterator[float]
    principal: str = "somebody"
    name: str = ""
    thinks: Callable[[], float] | None = None
    service: SimulatedService | None = None

    def steps(self) -> Iterator[Step]:
        """What it asks for. Plans that take equally long are one and the same."""
        known: dict[float, int] = {}
        for count, seconds in enumerate(self.plans):
            pause = None if self.thinks is None else 2 * WAY_SECONDS + self.thinks() if count else 0.0
            yield Step(known.setdefault(seconds, len(known)), seconds, pause)

    @property
    def session(self) -> SimulatedSession:
        assert self.service is not None, "it was added to a service"
        return self.service.sessions[self.number]

    @property
    def seconds(self) -> float:
        """What its workers have computed for it, all together."""
        assert self.service is not None, "it was added to a service"
        now = self.service.now
        return sum(max(0.0, min(end, now) - begin) for _, begin, end, of in self.service.spans if of == self.number)

    @property
    def runs(self) -> int:
        """Its plans that are done."""
        return self.session.finished

    @property
    def waits(self) -> list[float]:
        """How long each plan for which it waits took from when it was asked for until its value was there."""
        return [request.seconds + WAY_SECONDS for request in self.session.requests]


class PacedWorkers(SimulatedService):
    """A service of some workers, with the fair policy."""

    def __init__(self, workers: int) -> None:
        super().__init__((), workers, POLICIES["fair"])
        self.programs: dict[int, Program] = {}
        self.checks = itertools.count()
        self.at = self._at

    def entitle(self, principal: str, entitlement: Entitlement) -> None:
        """A principal is granted this from now on."""
        self.pacer.entitle({**self.pacer.principals, principal: entitlement})
        for number in self.programs:
            self.pacer.follow(number)

    def add(self, program: Program, *, weight: float = 1.0, priority: Priority = AUTO, at: float = 0.0) -> Program:
        """A session begins at a time."""
        number = program.number
        made = SimulatedProgram(number, "", program.principal, program.members, program.steps, at, priority, weight)
        self.programs[number], self.sessions[number], program.service = program, SimulatedSession(made), self
        self.at(at, self._join, self.sessions[number])
        return program

    def leave(self, program: Program) -> None:
        """A session ends, whatever it has under way."""
        self.pacer.drop_mesh(program.number)
        del self.programs[program.number]

    def step(self) -> None:
        super().step()
        if not next(self.checks) % CHECKED_EVENTS:
            self.pacer.check()

    def _join(self, session: SimulatedSession) -> None:
        number = session.program.number
        of = self.programs[number]
        self.pacer.add_mesh(number, of.members, number, of.principal, of.name or number)
        self.pacer.declare(number, session.program.priority, session.program.weight)
        self._go_on(session)

    def _begin(self, session: SimulatedSession) -> None:
        if session.program.number in self.programs:
            super()._begin(session)

    def _done(self, session: SimulatedSession, *about: Any) -> None:
        if session.program.number in self.programs:
            super()._done(session, *about)
