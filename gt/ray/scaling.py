"""How many workers a service on Ray has: a decision from what its dispatcher reports. Pure: the time goes in.

More workers come when a program asks for them, and when sessions wait for their share of workers that are busy. A worker beyond
the least number is given back when one has been idle for long; it is always one that was added, since only that frees a bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .bundles import ServiceSize

PRESSURE_SECONDS: Final = 3.0
"""Over so many seconds the number of waiting sessions is averaged."""
BUSY_SHARE: Final = 0.7
"""From this share of their time in use on, on average, workers are too few for sessions that wait."""
IDLE_SHARE: Final = 0.02
"""Up to this share of its time in use a worker is idle."""


class WorkerUse(NamedTuple):
    """One worker that serves: the name of its actor, whether it may be given back, and the share of the last second in use."""

    name: str
    added: bool
    used: float


class ServiceLoad(NamedTuple):
    """What the dispatcher reports: its workers, how many more are `starting`, and how many sessions wait for a share of their
    time."""

    workers: tuple[WorkerUse, ...] = ()
    starting: int = 0
    waiting: int = 0

    @property
    def total(self) -> int:
        """The workers that are there or come."""
        return len(self.workers) + self.starting


class AddWorkers(NamedTuple):
    """So many more workers are to be started, and why."""

    more: int
    reason: str


class GiveBack(NamedTuple):
    """A worker is to be drained and given back, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class Scaler:
    """The decisions of one service."""

    size: ServiceSize
    asked: int = 0
    """How many workers a program has asked for, until they are there."""
    pressure: float = 0.0
    """The number of waiting sessions, averaged."""
    looked_at: float | None = None
    idle_since: dict[str, float] = field(default_factory=dict)
    """By worker: since when it is idle."""
    quiet_until: float = 0.0
    """Until when nothing is decided, because the last decision came to nothing."""

    def ask(self, workers: int) -> str:
        """A program asks for so many workers. Returns why it cannot have them; empty if it can."""
        if workers > self.size.most:
            return (
                f"the service on this Ray cluster has at most {self.size.most}, and {workers} workers were asked for: end it "
                f"with `gt down`, and start it with `gt up --on ray --max {workers}`"
            )
        self.asked = max(self.asked, workers)
        self.idle_since.clear()  # what was idle until now is wanted
        self.quiet_until = 0.0
        return ""

    def pause(self, now: float, seconds: float) -> None:
        """What was decided could not be done: decide nothing for a while."""
        self.quiet_until = now + seconds
        self.asked = 0

    def decide(self, now: float, load: ServiceLoad) -> AddWorkers | GiveBack | None:
        """What is to be done, if anything."""
        self._note(now, load)
        if load.total >= self.asked:
            self.asked = 0
        if now < self.quiet_until:
            return None
        if load.total < self.asked:
            return AddWorkers(self.asked - load.total, f"a program asks for {self.asked} workers")
        used = sum(worker.used for worker in load.workers) / max(1, len(load.workers))
        if self.pressure >= 0.5 and used >= BUSY_SHARE and not load.starting and load.total < self.size.most:
            more = min(self.size.most - load.total, max(1, round(self.pressure)))
            waiting = f"{load.waiting} {'session waits' if load.waiting == 1 else 'sessions wait'}"
            self.pressure = 0.0  # what comes is waited for before more are added
            return AddWorkers(more, f"{waiting}, and workers are busy for {used:.0%} of the time")
        if load.total > self.size.least and not load.starting:
            return self._idle(now, load)
        return None

    def _note(self, now: float, load: ServiceLoad) -> None:
        """Average how many wait, and note who is idle."""
        passed = 0.0 if self.looked_at is None else now - self.looked_at
        self.looked_at = now
        self.pressure += (load.waiting - self.pressure) * min(1.0, passed / PRESSURE_SECONDS)
        idle = {worker.name for worker in load.workers if worker.used <= IDLE_SHARE}
        self.idle_since = {name: self.idle_since.get(name, now) for name in idle}

    def _idle(self, now: float, load: ServiceLoad) -> GiveBack | None:
        """The worker to give back, if one has been idle for long: an added one that is idle, or else the least used one, whose
        sessions go on with one that is idle."""
        since = [began for began in self.idle_since.values() if now - began >= self.size.idle_seconds]
        added = [worker for worker in load.workers if worker.added]
        if not since or not added:
            return None
        worker = min(added, key=lambda each: (self.idle_since.get(each.name, now), each.used))
        return GiveBack(worker.name, f"a worker is idle for {now - min(since):.0f} s")
