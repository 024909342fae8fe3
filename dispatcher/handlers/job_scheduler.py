"""The job scheduler: work that takes longer than a look-up is done in small turns, and programs take turns one after the
other.

Reading a config or a definition, planning, searching for a better plan and choosing strategies are *jobs*: iterators whose
every turn takes about equally long, a fraction of a millisecond; so is a long queue of messages. So a client that asks for much
delays only itself: if n principals ask, each gets an n-th of the dispatcher's single thread, however many programs and sessions
it has, and each of its programs an equal part of that. Messages that need no job (runs of known plans, fetches) are processed
as they come, between two turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sized
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Generic, TypeVar

from gt.dispatcher.state.message_state import (
    WAITING_CONFIG,
    WAITING_DEFINITION,
    WAITING_PLAN,
    WAITING_SEARCH,
    WAITING_STRATEGY,
    WAITING_TURN,
)
from gt.wire.principals import ProgramIdentity

T = TypeVar("T")
JOB_NAMES: Final = {
    WAITING_TURN: "what is queued",
    WAITING_CONFIG: "a config",
    WAITING_DEFINITION: "a definition",
    WAITING_STRATEGY: "strategies",
    WAITING_PLAN: "a plan",
    WAITING_SEARCH: "a better plan",
}
"""The name of the job that ends a wait (`Job.what`)."""
SERVICE: Final = -1
"""The program and client of a job that works for no session."""


@dataclass(slots=True, eq=False)
class Job:
    """A long task. `done` receives the iterator's last value; `program` and `client` are those that it works for."""

    program: Hashable
    client: int
    what: str
    turns: Iterator[Any]
    done: Callable[[Any], None]
    last: Any = None


class RoundRobin(Generic[T]):
    """A round-robin queue: principals take turns, so do the programs of each principal, and the items of each program. Those
    without items are left out. An owner that is no `ProgramIdentity` is a principal of its own."""

    def __init__(self) -> None:
        self.order: deque[Hashable] = deque()
        """The principals."""
        self.programs: dict[Hashable, deque[Hashable]] = {}
        """The owners of each principal."""
        self.owned: dict[Hashable, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self.order)

    def add(self, owner: Hashable, thing: T) -> None:
        """Add an item behind the others of its owner."""
        if owner not in self.owned:
            self.owned[owner] = deque()
            principal = _principal_of(owner)
            if principal not in self.programs:
                self.programs[principal] = deque()
                self.order.append(principal)
            self.programs[principal].append(owner)
        self.owned[owner].append(thing)

    def remove(self, owner: Hashable, thing: T) -> None:
        """Remove an item."""
        own = self.owned[owner]
        own.remove(thing)
        if own:
            return
        del self.owned[owner]
        principal = _principal_of(owner)
        programs = self.programs[principal]
        programs.remove(owner)
        if not programs:
            del self.programs[principal]
            self.order.remove(principal)

    def owners(self) -> list[Hashable]:
        """The owners, in the order of their turns: one of each principal, then a second one of each, and so on."""
        rounds = zip_longest(*(self.programs[principal] for principal in self.order), fillvalue=_NOBODY)
        return [owner for turn in rounds for owner in turn if owner is not _NOBODY]

    def first(self, owner: Hashable) -> T:
        """The owner's item whose turn it is."""
        return self.owned[owner][0]

    def later(self, owner: Hashable) -> None:
        """Put an owner behind all others of its principal, if it has any item left, and its principal behind all others."""
        principal = _principal_of(owner)
        if owner in self.owned:
            self.programs[principal].remove(owner)
            self.programs[principal].append(owner)
        if principal in self.programs:
            self.order.remove(principal)
            self.order.append(principal)

    def next(self, rests: Callable[[Hashable], bool] = lambda principal: False) -> T:
        """The item whose turn it is: of the next principal that does not rest, if there is one. Then it is the next principal's
        turn, and later that of this one's next program and item."""
        for _ in self.programs:
            if not rests(self.order[0]):
                break
            self.order.rotate(-1)
        programs = self.programs[self.order[0]]
        own = self.owned[programs[0]]
        for ring in (self.order, programs, own):
            ring.rotate(-1)
        return own[-1]

    def check(self) -> None:
        """The invariants."""
        assert sorted(map(repr, self.order)) == sorted(map(repr, self.programs))
        owners = [owner for programs in self.programs.values() for owner in programs]
        assert sorted(map(repr, owners)) == sorted(map(repr, self.owned))
        assert all(self.owned.values())
        assert all(self.programs.values())


_NOBODY: Final = object()


def _principal_of(owner: Hashable) -> Hashable:
    return owner.principal if isinstance(owner, ProgramIdentity) else owner


class JobScheduler:
    """All jobs: a ring of principals, each with a ring of its programs and their jobs. Errors of jobs are given to `failed`. A
    principal that `rests` has no turn while another one has a job."""

    def __init__(
        self, failed: Callable[[Job, Exception], None], rests: Callable[[Hashable], bool] = lambda principal: False
    ) -> None:
        self.failed = failed
        self.rests = rests
        self.served = 0
        """The client whose job had the last turn."""
        self.ring: RoundRobin[Job] = RoundRobin()
        self.clients: dict[int, list[Job]] = {}
        """The same jobs by client; no list is empty."""

    def __bool__(self) -> bool:
        return bool(self.ring)

    def add(self, job: Job) -> None:
        """Add a job behind the others of its program."""
        self.ring.add(job.program, job)
        self.clients.setdefault(job.client, []).append(job)

    def work_off(self, what: str, left: Sized, turns: Callable[[], Iterator[None]]) -> None:
        """Have a job of the service do what is left, in turns, if anything is and no such job does so already."""
        if left and not self.has(SERVICE, what):
            self.add(Job(SERVICE, SERVICE, what, turns(), lambda _: None))

    def of(self, client: int) -> list[Job]:
        """A client's jobs, the oldest first."""
        return self.clients.get(client, [])

    def has(self, client: int, what: str) -> bool:
        """Whether a client has a job of a kind."""
        return any(job.what == what for job in self.of(client))

    def drop(self, client: int) -> None:
        """Drop the jobs of a client."""
        for job in self.clients.pop(client, ()):
            self.ring.remove(job.program, job)

    @property
    def ready(self) -> bool:
        """Whether there is a job of a principal that does not rest."""
        return any(not self.rests(principal) for principal in self.ring.order)

    def work(self) -> Job | None:
        """Do one turn: the next job of the next program. Returns the job if it has finished."""
        job = self.ring.next(self.rests)
        self.served = job.client
        try:
            job.last = next(job.turns)
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 — whatever it is, only this job has it
            self.failed(job, error)
            job.last = None
        else:
            return None
        self.ring.remove(job.program, job)
        mine = self.clients[job.client]
        mine.remove(job)
        if not mine:
            del self.clients[job.client]
        job.done(job.last)
        return job

    def check(self) -> None:
        """The invariants between turns."""
        self.ring.check()
        everybody = [id(job) for jobs in self.ring.owned.values() for job in jobs]
        assert sorted(everybody) == sorted(id(job) for jobs in self.clients.values() for job in jobs)


def errors_as_results(begin: Callable[[], Generator[None, None, Any]]) -> Iterator[Any]:
    """The turns of a job that somebody waits for. The last value is its result, or the error with which it ended."""
    try:
        found = yield from begin()
    except Exception as error:  # noqa: BLE001 — whoever waits is told, and nobody else
        found = error
    yield found
