"""Whose turn it is: what takes longer than a look-up is done in small turns, and programs get turns one after the other.

Reading a definition, planning, searching for a better plan and choosing strategies are *jobs*: iterators, every turn of which
takes about as long as any other's, a fraction of a millisecond. So whoever asks for much waits for itself: with n programs that
ask, each gets an n-th of the dispatcher's one thread, however many sessions it has. What needs no job (a run whose plan is
known, a fetch) is acted on as it comes, between two turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
LONGEST: Final = 256
"""Characters of a name by which programs are told apart."""


@dataclass(slots=True, eq=False)
class Job:
    """Something long; `done` gets what came last. `program` and `client`: whose it is."""

    program: Hashable
    client: int
    what: str
    turns: Iterator[Any]
    done: Callable[[Any], None]
    last: Any = None


class Ring(Generic[T]):
    """Things of several owners: owners take turns, and of each its things. No owner in here has nothing."""

    def __init__(self) -> None:
        self.order: deque[Hashable] = deque()
        self.owned: dict[Hashable, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self.order)

    def add(self, owner: Hashable, thing: T) -> None:
        """One more, last of its owner's."""
        if owner not in self.owned:
            self.owned[owner] = deque()
            self.order.append(owner)
        self.owned[owner].append(thing)

    def remove(self, owner: Hashable, thing: T) -> None:
        """One less."""
        own = self.owned[owner]
        own.remove(thing)
        if not own:
            del self.owned[owner]
            self.order.remove(owner)

    def owners(self) -> list[Hashable]:
        """Whose turn it is, and then."""
        return list(self.order)

    def first(self, owner: Hashable) -> T:
        """Of an owner's things the one whose turn it is."""
        return self.owned[owner][0]

    def later(self, owner: Hashable) -> None:
        """An owner has had its turn, if it has anything left."""
        if owner in self.owned:
            self.order.remove(owner)
            self.order.append(owner)

    def next(self) -> T:
        """The thing whose turn it is; then it is the next owner's, and later the next thing's of this one."""
        own = self.owned[self.order[0]]
        self.order.rotate(-1)
        own.rotate(-1)
        return own[-1]

    def check(self) -> None:
        """The invariants."""
        assert sorted(map(repr, self.order)) == sorted(map(repr, self.owned))
        assert all(self.owned.values())


class Turns:
    """All jobs: a ring of programs, each with a ring of its jobs. `log` is told of errors."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.log = log
        self.ring: Ring[Job] = Ring()
        self.clients: dict[int, list[Job]] = {}
        """The same by client, which may look for its own; none is empty."""

    def __bool__(self) -> bool:
        return bool(self.ring)

    def add(self, job: Job) -> None:
        """One more, last of its program's."""
        self.ring.add(job.program, job)
        self.clients.setdefault(job.client, []).append(job)

    def of(self, client: int) -> list[Job]:
        """A client's jobs, the oldest first."""
        return self.clients.get(client, [])

    def has(self, client: int, what: str) -> bool:
        """Whether a client has a job of a kind."""
        return any(job.what == what for job in self.of(client))

    def drop(self, client: int) -> None:
        """Nobody needs what a client's jobs would find."""
        for job in self.clients.pop(client, ()):
            self.ring.remove(job.program, job)

    def work(self) -> Job | None:
        """One turn of one job: the next program's next. The job if it is over."""
        job = self.ring.next()
        try:
            job.last = next(job.turns)
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 — no better plan is no loss, and strategies are settled all the same
            text = f"working out {job.what} for client {job.client}: {type(error).__name__}: {error}"
            self.log("error", text, client=job.client)
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


def answered(begin: Callable[[], Generator[None, None, Any]]) -> Iterator[Any]:
    """The turns of what somebody waits for: last comes its result, or the error with which it ended."""
    try:
        found = yield from begin()
    except Exception as error:  # noqa: BLE001 — whoever waits is told, and nobody else
        found = error
    yield found


def program_of(identity: bytes, facts: dict[str, Any]) -> Hashable:
    """What sessions of one program have in common, by what they say; a session that says nothing is a program of its own."""
    names = [facts.get("host"), facts.get("namespace")]
    pid = facts.get("pid")
    if type(pid) is not int or not all(type(name) is str and len(name) <= LONGEST for name in names):
        return identity
    return (*names, pid)
