"""Workers and sessions in virtual time, between which a pacer decides: for tests of what sessions get, and how late."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.pacing.pacer import Pacer
from gt.dispatcher.pacing.priority import AUTO, Entitlement, Priority
from gt.dispatcher.pacing.run_time import RunTime

WAY = 100e-6
"""The seconds of a message between the dispatcher and a worker or client."""
MOST_TURNS = 8
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
    ready: bool = True
    """Whether it has a plan for the pacer."""
    asked: float = 0.0
    seconds: float = 0.0
    """Of its workers, in all."""
    runs: int = 0
    waits: list[float] = field(default_factory=list)
    """How long each of its plans took from when it was asked for until its value was there."""
    times: dict[float, RunTime] = field(default_factory=dict)


class PacedWorkers:
    """A service of some workers."""

    def __init__(self, workers: int) -> None:
        self.pacer = Pacer()
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = itertools.count()
        self.orders = itertools.count(1)
        self.checks = itertools.count()
        self.programs: dict[int, Program] = {}
        self.free = [0.0] * workers
        """When each worker has done all that it has."""
        self.left: dict[int, int] = {}
        """How many workers have yet to run a plan, by order."""
        self.busy: dict[int, float] = defaultdict(float)

    def entitle(self, principal: str, entitlement: Entitlement) -> None:
        """A principal is granted this from now on."""
        self.pacer.entitle({**self.pacer.principals, principal: entitlement})
        for number in self.programs:
            self.pacer.follow(number)

    def add(self, program: Program, *, weight: float = 1.0, priority: Priority = AUTO, at: float = 0.0) -> Program:
        """A session begins at a time."""
        self.programs[program.number] = program
        self.at(at, self._join, program, weight, priority)
        return program

    def _join(self, program: Program, weight: float, priority: Priority) -> None:
        self.pacer.add_mesh(
            program.number, program.members, program.number, program.principal, program.name or program.number
        )
        self.pacer.declare(program.number, priority, weight)
        self._ask(program)

    def leave(self, program: Program) -> None:
        """A session ends."""
        self.pacer.drop_mesh(program.number)
        del self.programs[program.number]
        self._turns()

    def at(self, when: float, what: Callable[..., None], *about: Any) -> None:
        heapq.heappush(self.events, (when, next(self.count), what, about))

    def run(self, until: float) -> None:
        """Go on until a time."""
        while self.events and self.events[0][0] <= until:
            self.now, _, what, about = heapq.heappop(self.events)
            what(*about)
            if not next(self.checks) % CHECKED_EVENTS:
                self.pacer.check()
        self.now = until

    def _ask(self, program: Program) -> None:
        if program.number not in self.programs:
            return
        program.asked, program.ready = self.now, True
        self._pump(program)
        self._turns()

    def _pump(self, program: Program) -> None:
        while program.ready and self.pacer.admits(program.number, self.now):
            self._release(program)

    def _turns(self) -> None:
        while self.pacer.due:
            for number in self.pacer.turns(self.now, MOST_TURNS):
                self._pump(self.programs[number])

    def _release(self, program: Program) -> None:
        seconds, order = next(program.plans), next(self.orders)
        known = program.times.setdefault(seconds, RunTime())
        self.pacer.released(program.number, order, known, self.now)
        starts = max(self.now + WAY, *(self.free[member] for member in program.members))
        for member in program.members:
            self.free[member] = starts + seconds
            self.busy[member] += seconds
        self.at(starts + seconds + WAY, self._done, program, order, seconds, self.now)
        program.ready = program.thinks is None

    def _done(self, program: Program, order: int, seconds: float, _since: float) -> None:
        if program.number not in self.programs:
            return
        self.pacer.measured(program.number, order, [int(seconds * 1e9)])
        self.pacer.finished(program.number, 1)
        program.seconds += seconds * len(program.members)
        program.runs += 1
        program.waits.append(self.now + WAY - program.asked)
        self._turns()
        if program.thinks is not None:
            self.at(self.now + 2 * WAY + program.thinks(), self._ask, program)
