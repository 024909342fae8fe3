"""The job scheduler: work that takes longer than a look-up is done in small turns, and programs take turns one after the
other.

Reading a config or a definition, planning, searching for a better plan and choosing strategies are *jobs*: iterators whose
every turn takes about equally long, a fraction of a millisecond; so is a long queue of messages. So a client that asks for much
delays only itself: if n principals ask, each gets an n-th of the dispatcher's single thread, however many programs and sessions
it has, and each of its programs an equal part of that. Messages that need no job (runs of known plans, fetches) are processed
as they come, between two turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gt.dispatcher.state.message_state import (
    WAITING_CONFIG,
    WAITING_DEFINITION,
    WAITING_PLAN,
    WAITING_SEARCH,
    WAITING_STRATEGY,
    WAITING_TURN,
    MessageState,
)

from .round_robin import RoundRobin

if TYPE_CHECKING:
    from gt.dispatcher.state.config_resolution import SharedComputation
    from gt.dispatcher.state.records import ClientRecord

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

    def compute(self, client: ClientRecord, computation: SharedComputation[Any]) -> MessageState:
        """Have a job of a client go on with a computation, for which it waits. A job that goes on with an earlier one ends the
        wait as well."""
        what = JOB_NAMES[WAITING_CONFIG]
        if not self.has(client.number, what):
            self.add(Job(client.program, client.number, what, computation.turns(), lambda _: None))
        return WAITING_CONFIG

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
