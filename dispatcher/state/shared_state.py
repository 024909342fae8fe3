"""The state that the dispatcher's handlers share: the peers, what is in flight in which order, and the messages to send."""

from __future__ import annotations

import itertools
import math
import sys
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gt.bounds import MAX_IDS
from gt.dispatcher.cost.measured_links import MeasuredLinks
from gt.dispatcher.limits.instruction_rate import InstructionRates
from gt.dispatcher.limits.limit_table import UNLIMITED_TABLE, LimitTable
from gt.dispatcher.limits.session_queue import SessionQueue
from gt.dispatcher.pacing.pacer import Pacer
from gt.dispatcher.pacing.priority import Entitlement, Priority
from gt.dispatcher.pacing.thread_shares import NOBODY, ThreadShares
from gt.dispatcher.usage.ledger import Ledger
from gt.sharding.placement import Mesh
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.principals import ALL_ROLES, Origin

from .disposal import DISPOSED_PER_TURN, Disposable, LooseParts, freed_in_turns, length_of
from .events import Send
from .message_state import WAITING_SHARE
from .numbers import Numbers, first_numbers
from .plan_cache import SavedPlan
from .records import MOST_IN_FLIGHT, ClientRecord, MeshRecord, WorkerRecord
from .standby_copies import Replacement, StandbyCopies
from .worker_duty import (
    IN_SERVICE,
    LEAVING,
    SPARE,
    WorkerDuty,
    WorkersBefore,
    duty_of_new,
    kind_of,
    next_spare,
    process_key,
    reads_files_of,
)

if TYPE_CHECKING:
    from gt.dispatcher.pacing.run_time import RunTime
    from gt.dispatcher.publishing.held_version import HeldVersion
    from gt.dispatcher.telemetry.recorder import DispatcherRecorder
    from gt.sharding.config import Config

    from .mark_bytes import SessionCard

CREDITS_AT_ONCE: Final = 8
"""Credits are given to a busy client in lumps of this size, because each message wakes both ends."""
CREDIT_DELAY_SECONDS: Final = 0.005
"""The seconds for which fewer credits wait where a client has just got a value that it waits for, and goes on."""
MESH_CREDITS: Final = MOST_IN_FLIGHT
"""The most plans and puts of one mesh in flight, if there is room for so many."""
LEAST_CREDITS: Final = 2
WORKER_CREDITS: Final = 256
"""The most plans and puts in flight on a worker, of all meshes, on average; each mesh gets at least `LEAST_CREDITS`."""
MAX_KNOWN_BUGS: Final = 100
"""The most places of which tracebacks are logged."""
MAX_BUG_CHARACTERS: Final = 500
"""The most characters of an unexpected exception's text that are logged and sent."""
MAX_FREED_AT_ONCE: Final = 512
"""The most instructions of definitions and plans, or entries of a table, that are freed in the event that drops them."""
MAX_TO_COMPILE: Final = 64
"""A worker that has this many instructions to compile is sent no further new plan: everybody's plans wait behind them."""
MAX_TO_COMPILE_ALONE: Final = 512
"""The same where only one session uses the worker, which is never to be without work while a report is on its way."""


@dataclass(slots=True)
class Counters:
    """Counts of events since the start."""

    runs: int = 0
    instructions: int = 0
    plans: int = 0
    refused: int = 0
    poisoned: int = 0
    fetches: int = 0
    puts: int = 0
    plan_hits: int = 0
    """Of sessions that have ended, as the next one."""
    plans_improved: int = 0
    marks: int = 0
    recoveries: int = 0
    """How often a session went back and on."""
    moves: int = 0
    """How often a running session went on on another worker, because it was faster there."""
    plans_refused: int = 0
    """Runs that were not issued, because workers had ended while they computed them."""
    internal_errors: int = 0
    """Exceptions that should not be: bugs of the dispatcher."""


class DispatcherState:
    """The state of one dispatcher. Every plan and put gets the next number of one global order, and is sent to all members of
    its mesh at once or to none."""

    def __init__(
        self, config: Config | None, workers_expected: int, log: Callable[..., None], numbers: Numbers | None = None
    ) -> None:
        numbers = numbers or first_numbers()
        self.config = config
        self.workers_expected = workers_expected
        """How many workers must be in service before a session gets any."""
        self.complete = False
        """Whether all workers that were expected at the start have been there, or are waited for no longer."""
        self.kept_spares = 0
        """How many spares the service is to have: the most that there were at one time."""
        self.left_before: set[int] = set()
        """The processes of workers that the dispatcher before was draining, and which have yet to join, by their keys."""
        self.resumed: list[WorkerRecord] = []
        """Those of them that have joined, and whose drains are to go on."""
        self.expected_since = 0.0
        """Since when the dispatcher has waited for them, on the shell's clock."""
        self._log = log
        self.recording: DispatcherRecorder | None = None
        """The recorder of events for watchers."""
        self.now = 0.0
        """The time of the event being processed, in seconds on the shell's clock."""
        self.address = ""
        self.version = ""
        self.clients: dict[bytes, ClientRecord] = {}
        self.workers: dict[bytes, WorkerRecord] = {}
        self.by_number: dict[int, ClientRecord] = {}
        self.meshes: dict[int, MeshRecord] = {}
        self.meshes_of: dict[int, list[MeshRecord]] = {}
        """The same by client; no list is empty."""
        self.session_numbers = numbers.sessions
        self.mesh_numbers = numbers.meshes
        self.plan_numbers = itertools.count(1)
        self.order = numbers.order
        self.issued: dict[int, MeshRecord] = {}
        """The orders in flight, each with its mesh."""
        self.compiles = True
        """Whether there are workers that compile plans."""
        self.load = 0
        """The number of workers with something in flight, summed over all meshes: a worker of two meshes counts twice."""
        self.credits = MESH_CREDITS
        """How many plans and puts one mesh may have in flight now."""
        self.delays_credits = False
        """Whether credits may wait: whoever calls the core does so when it has something to do by itself (`wakes_at`)."""
        self.late_credits: dict[int, ClientRecord] = {}
        """By number, the clients whose credits wait a moment."""
        self.credits_due = math.inf
        """When they are given."""
        self.pacer = Pacer()
        """Says when plans are released."""
        self.thread = ThreadShares()
        """Says whose work the dispatcher does."""
        self.served: Hashable = NOBODY
        """For which principal the event being processed is, if it is known."""
        self.limits = UNLIMITED_TABLE
        """What an operator grants each principal."""
        self.queued: SessionQueue[tuple[m.Hello, Origin]] = SessionQueue()
        """The clients whose sessions wait, because their principals have as many as they may."""
        self.rates = InstructionRates()
        """How many instructions principals may issue."""
        self.ledger = Ledger()
        """What principals have used."""
        self.counters = Counters()
        self.ending: dict[bytes, str] = {}
        """Peers whose sessions end after the event being processed, mostly because of a bug, and what they are told."""
        self.known_bugs: set[tuple[str, str, int]] = set()
        """Where unexpected exceptions have come from: each is logged once with its traceback."""
        self.out: list[Send] = []
        self.disposed: list[Disposable] = []
        """What is not needed any more and is freed in turns, because there is much of it."""
        self.away: dict[bytes, list[SessionCard]] = {}
        """Sessions of the dispatcher before, which may come back, by their keys."""
        self.unsaved: list[ClientRecord] = []
        """Sessions of which something has changed that the next dispatcher is to know, and is not saved yet: how their meshes are
        shaped, what operators have ordered, how often they went back."""
        self.held: dict[tuple[str, str, str], HeldVersion] = {}
        """What workers keep in memory of what is published, by its place, name and part files."""
        self.file_progress: dict[int, m.FileProgress] = {}
        """How far those have come with files of marks who have said so, by the numbers of `MarkHandler` (`handlers/marks.py`)."""
        self.measured = MeasuredLinks()
        """Which links between hosts were measured, and which are being measured."""
        self.standby = StandbyCopies()
        self.replaced: Replacement | None = None
        """Once another dispatcher has taken the place of this one, which does nothing any more."""

    @property
    def is_short(self) -> bool:
        """Whether workers are expected that have not joined."""
        return self.workers_expected > 0 and len(self.in_service) < self.workers_expected

    @property
    def is_gathering(self) -> bool:
        """Whether new meshes wait: for workers that are expected, or for measurements of links between hosts."""
        return self.is_short or bool(self.measured.due)

    @property
    def in_service(self) -> list[WorkerRecord]:
        """The workers on which sessions may compute."""
        return [worker for worker in self.workers.values() if worker.duty is IN_SERVICE]

    @property
    def spares(self) -> int:
        """How many workers wait for a place in service."""
        return sum(worker.duty is SPARE for worker in self.workers.values())

    def ready(self, client: ClientRecord) -> bool:
        """Whether a session need not wait for workers: it has some, all expected ones have joined and links are known, or it has
        no mark, was alone on a worker and finds an idle one."""
        recovery = client.recovery
        return (
            client.planner is not None
            or not self.is_gathering
            or (not recovery.marks and self._has_idle_worker(recovery.alone_on))
        )

    def _has_idle_worker(self, kind: tuple[str, str] | None) -> bool:
        """Whether there is a worker that no session uses, and all are of this kind: a CPU gives other bits than the GPU that
        returns."""
        workers, cells = self.in_service, self.pacer.cells.of
        if kind is None or any(kind_of(worker) != kind for worker in workers):
            return False
        return any(worker.number not in cells or not cells[worker.number].lanes for worker in workers)

    def admit(self, worker: WorkerRecord) -> None:
        """Give a worker that joins its duty, and note who is not expected any more."""
        spares, short = self.spares, self.is_short
        if (key := process_key(worker.facts)) in self.left_before:
            self.left_before.discard(key)
            self.workers[worker.identity] = worker
            worker.duty = LEAVING
            self.resumed.append(worker)
            return
        worker.duty = duty_of_new(
            asks=worker.facts.get("spare") is True,
            spares=spares,
            kept=self.kept_spares,
            short=short,
            complete=self.complete,
        )
        self.workers[worker.identity] = worker
        if worker.duty is SPARE:
            self.kept_spares = max(self.kept_spares, spares + 1)
        self.note_complete()

    def note_complete(self) -> None:
        """Wait for no more workers if all are here: who is lost later is not waited for."""
        if not self.is_short:
            self.expect_nobody()

    def goes_on(self, before: WorkersBefore) -> None:
        """Take over what the dispatcher before has noted of its workers."""
        self.kept_spares, self.left_before = before.spares, {*before.leaving}

    def workers_now(self) -> WorkersBefore:
        """What the next dispatcher is to know of the workers."""
        leaving = {process_key(worker.facts) for worker in self.workers.values() if worker.duty is LEAVING}
        service = max(len(self.in_service), self.workers_expected)
        return WorkersBefore(service, self.kept_spares, frozenset(leaving | self.left_before) - {0})

    def expect_nobody(self) -> None:
        """Wait for no more workers."""
        self.workers_expected, self.complete = 0, True

    def stop_waiting(self) -> None:
        """Wait for no more workers: spares take the places of those that have not come."""
        for _ in range(self.workers_expected - len(self.in_service)):
            spare = next_spare(self.workers.values())
            if spare is not None:
                self.put_in_service(spare, "others have not come")
        self.expect_nobody()

    def replace(self, gone: WorkerRecord, *, returns: bool = False) -> WorkerRecord | None:
        """Put a spare in the place of a worker that is in service no longer. Returns the spare, if there is one. If the worker
        `returns`, that is better than a spare which cannot read its files, as one on another machine."""
        near = [worker for worker in self.workers.values() if reads_files_of(gone, worker)]
        found = next_spare(near) or (None if returns else next_spare(self.workers.values()))
        if found is not None:
            self.put_in_service(found, f"it takes the place of worker {gone.number}")
        return found

    def put_in_service(self, spare: WorkerRecord, why: str) -> None:
        """Let sessions use a worker that has waited."""
        self.assign(spare, IN_SERVICE)
        self.log("info", f"worker {spare.number}, a spare, is in service: {why}", "spare", worker=spare.number)

    def assign(self, worker: WorkerRecord, duty: WorkerDuty) -> None:
        """Give a worker another duty."""
        worker.duty = duty
        if self.recording is not None:
            self.recording.duty_changed(worker)

    def any_worker(self) -> WorkerRecord | None:
        """A worker for what any of them can do, if there is one; if possible, one that stays."""
        return min(self.workers.values(), key=lambda worker: worker.duty is LEAVING, default=None)

    def expect(self, workers: int) -> None:
        """Give no session workers until so many are in service, as long as the shell is patient."""
        self.workers_expected = max(self.workers_expected, workers)
        self.expected_since = self.now

    def log(self, level: str, text: str, what: str = "log", client: int = -1, **about: Any) -> None:
        """Log a decision or an event (`telemetry.Decision`). `about` is as in `gt/daemon/logs.py`."""
        self._log(level, text, **({"client": client} if client >= 0 else {}), **about)
        if self.recording is not None:
            self.recording.decided(client, what, level, text)

    def internal_error(self, what: str, error: Exception, client: int = -1) -> str:
        """Count and log an unexpected exception `what` was done at. Returns what is said of it to whom it harms."""
        self.counters.internal_errors += 1
        kind, said = type(error).__name__, str(error)[:MAX_BUG_CHARACTERS]
        text = f"a bug in GT: {kind}: {said}, at {what}"
        frames = traceback.extract_tb(error.__traceback__)
        place = (kind, frames[-1].filename, frames[-1].lineno or 0) if frames else (kind, "", 0)
        if place in self.known_bugs or len(self.known_bugs) >= MAX_KNOWN_BUGS:
            self.detail(text)
        else:
            self.known_bugs.add(place)
            about = {"client": client} if client >= 0 else {}
            self._log("error", f"{text}; please report it\n{''.join(traceback.format_exception(error))}", **about)
        if self.recording is not None:
            self.recording.failed(t.DISPATCHER, client, -1, kind, said)
        return f"{text}; please report it, with what the dispatcher logged"

    def end_session(self, peer: bytes, what: str, error: Exception, client: int = -1) -> None:
        """Note that an unexpected exception ends the session of the peer whose message, or job, it came from."""
        self.ending[peer] = self.internal_error(what, error, client)

    def detail(self, text: str, **about: Any) -> None:
        """Log a detail, which is not an event."""
        self._log("debug", text, **about)

    def dispose(self, table: Mapping[int, Any]) -> None:
        """Free what a tensor table has, which its owner is about to drop, in turns if it is large."""
        if len(table) > DISPOSED_PER_TURN:
            self.disposed.append(table)

    def dispose_parts(self, parts: list[Any]) -> None:
        """The same for entries that were taken from a table."""
        if len(parts) > MAX_FREED_AT_ONCE:
            self.disposed.append(LooseParts(parts))

    def dispose_work(self, works: Iterable[Any]) -> None:
        """The same for definitions and plans (faults in place of definitions are left out)."""
        large = [work for work in works if not isinstance(work, tuple) or isinstance(work, SavedPlan)]
        if sum(map(length_of, large)) > MAX_FREED_AT_ONCE:
            self.disposed.append(large)

    def dispose_some(self) -> Iterator[None]:
        """Frees what is not needed any more, in turns."""
        return freed_in_turns(self.disposed)

    def send(self, to: bytes, message: m.Message) -> None:
        """Send a message to one peer."""
        self.out.append(Send((to,), message))

    def multicast(self, mesh: Mesh, message: m.Message) -> None:
        """Send the same message to all living members of a mesh."""
        identities = self.meshes[mesh.number].identities
        if identities:
            self.out.append(Send(identities, message))

    def has_credit(self, mesh: Mesh) -> bool:
        """Whether one more plan or put may be sent to a mesh."""
        return len(self.meshes[mesh.number].pending) < self.credits

    def _loaded(self, more: int) -> None:
        """Note that so many more (or fewer) workers have something in flight, and adapt the credits of each mesh."""
        self.load += more
        if self.load:
            fair = WORKER_CREDITS * len(self.workers) // self.load
            self.credits = max(LEAST_CREDITS, min(MESH_CREDITS, fair))

    def admits(self, mesh: Mesh) -> bool:
        """Whether a plan that its workers have yet to compile may be sent to a mesh."""
        return all(worker.to_compile < self._most_to_compile(worker) for worker in self.meshes[mesh.number].workers)

    def _most_to_compile(self, worker: WorkerRecord) -> int:
        """How many instructions a worker may have to compile."""
        if not self.compiles:
            return sys.maxsize
        cell = self.pacer.cells.of.get(worker.number)
        shared = cell is not None and len(cell.lanes) > 1
        is_left = bool(worker.fresh) and worker.fresh[0][0] not in self.issued  # of a session that has ended
        return MAX_TO_COMPILE if shared or is_left else MAX_TO_COMPILE_ALONE

    def teach(self, mesh: Mesh, length: int) -> None:
        """Note that the next order of a mesh is a plan of this length that its workers have yet to compile."""
        for worker in self.meshes[mesh.number].workers:
            worker.fresh.append((self.order + 1, length))
            worker.to_compile += length

    def finished(self, worker: WorkerRecord, done: m.Done) -> tuple[MeshRecord | None, bool]:
        """A worker has finished everything up to an order. Returns the mesh on which orders are now finished by all members,
        if there is one, and whether the worker has room for new plans."""
        before, order = worker.to_compile, done.order
        while worker.fresh and worker.fresh[0][0] <= order:
            worker.to_compile -= worker.fresh.popleft()[1]
        room = before > worker.to_compile < self._most_to_compile(worker)
        record = self.issued.get(order)
        if record is None:  # of a mesh that is gone
            return None, room
        if done.nanoseconds:
            leads = worker.number == record.mesh.members[0]
            hear = self.pacer.measured if leads else self.pacer.also_measured
            hear(record.mesh.number, order, done.nanoseconds)
        finished = record.finished(worker.number, order)
        for each in finished:
            del self.issued[each]
        if not finished:
            return None, room
        self.pacer.finished(record.mesh.number, len(finished))
        if not record.pending:
            self._loaded(-len(record.mesh.members))
        return record, room

    def place(self, mesh: Mesh, run_time: RunTime | None = None) -> int:
        """Take the next number of the global order for something that is sent to all members of `mesh`: a plan that the pacer
        has admitted, with its run time, or something that is not paced."""
        self.order += 1
        record = self.issued[self.order] = self.meshes[mesh.number]
        if not record.pending:
            self._loaded(len(mesh.members))
        record.issued(self.order)
        self.pacer.released(mesh.number, self.order, run_time, self.now)
        return self.order

    def place_for(self, client: ClientRecord, mesh: Mesh, run_time: RunTime | None = None) -> int:
        """Take the next number for a run or put, for which its client will be credited."""
        order = self.place(mesh, run_time)
        client.arrived += 1
        client.inflight.append((client.arrived, order))
        if run_time is not None:
            run_time.tally.ran(client.account)
            self.thread.issued(client.program.principal, self.now)
        return order

    def credit(self, client: ClientRecord, *, late: bool = False) -> None:
        """Tell a client how many of its runs and puts the workers have finished: `CREDITS_AT_ONCE` at a time while more of it is
        in flight or waits for its share, else all; these a moment later to one that was just sent a value (`late` then), unless
        they are as many by then. (A client has several times more credits than that.)"""
        inflight = client.inflight
        while inflight and inflight[0][1] not in self.issued:
            inflight.popleft()
        done = inflight[0][0] - 1 if inflight else client.arrived
        more = done - client.credited
        busy = bool(inflight) or bool(client.queue and client.head is WAITING_SHARE)
        waits = self.delays_credits and client.answered and not late
        if more >= CREDITS_AT_ONCE or (more > 0 and not busy and not waits):
            client.credited, client.answered = done, False
            self.late_credits.pop(client.number, None)
            self.send(client.identity, m.Credit(done))
        elif more > 0 and not busy:
            self.late_credits.setdefault(client.number, client)
            self.credits_due = min(self.credits_due, self.now + CREDIT_DELAY_SECONDS)

    def give_late_credits(self) -> None:
        """Send the credits that were to wait a moment. Who has something in flight again gets them with that."""
        late, self.late_credits, self.credits_due = self.late_credits, {}, math.inf
        for client in late.values():
            if self.clients.get(client.identity) is client:
                self.credit(client, late=True)

    def owes(self, worker: int, order: int) -> bool:
        """Whether a worker has yet to finish something that was issued up to an order."""
        return any(
            record.pending[0] <= order and record.done[worker] < order
            for record in self.meshes.values()
            if record.pending and worker in record.done
        )

    def last_finished(self, worker: int) -> int:
        """The last order that a worker has finished."""
        return max((record.done.get(worker, 0) for record in self.meshes.values()), default=0)

    def add_mesh(self, record: MeshRecord) -> None:
        """Note a mesh that a client uses from now on."""
        self.meshes[record.mesh.number] = record
        self.meshes_of.setdefault(record.client, []).append(record)
        client = self.by_number[record.client]
        self.pacer.add_mesh(record.mesh.number, record.mesh.members, client.number, *client.program, self.now)
        self.pacer.declare(client.number, client.priority, client.weight)

    def drop_mesh(self, record: MeshRecord) -> None:
        """Drop a mesh that is no longer used; what is in flight on it counts as finished."""
        for order in record.pending:
            del self.issued[order]
        if record.pending:
            self._loaded(-len(record.mesh.members))
        self.multicast(record.mesh, m.DropMesh(record.mesh.number))
        del self.meshes[record.mesh.number]
        self.pacer.drop_mesh(record.mesh.number)
        others = [other for other in self.meshes_of.pop(record.client) if other is not record]
        if others:
            self.meshes_of[record.client] = others

    def adopt_limits(self, table: LimitTable) -> None:
        """Grant principals what a table says from now on. Sessions that are there follow (`Pacer.follow`)."""
        self.limits = table
        named: dict[Hashable, Entitlement] = {name: _entitlement(table, name) for name in table.named}
        self.pacer.entitle(named, _entitlement(table, ""))
        rates = [row.instructions_per_second for row in (table.default, *table.named.values())]
        self.rates.change(
            lambda principal: table.of(principal).instructions_per_second,
            limited=any(rate is not None for rate in rates),
            now=self.now,
        )

    def is_charged(self, record: MeshRecord) -> bool:
        """Whether workers are told to whom the memory of a mesh's session is charged. Of whom nothing is said, as of the owner
        while there are no limits, it is the owner's."""
        return self.limits is not UNLIMITED_TABLE or self.by_number[record.client].principal.roles != ALL_ROLES

    def charge(self, record: MeshRecord) -> m.ChargeMemory:
        """To whom the memory of a mesh's session is charged."""
        principal = self.by_number[record.client].program.principal
        limits = self.limits.of(principal)
        weight = max(1, round(limits.weight * 1000))
        return m.ChargeMemory(record.mesh.number, record.client, principal, limits.live_bytes or 0, weight)

    def statistics(self, client: ClientRecord) -> dict[str, Any]:
        """The counters of the service and of one session."""
        counters = self.counters
        return {
            "workers": len(self.in_service),
            "spares": self.spares,
            "clients": len(self.clients),
            "queued": len(self.queued.waiting),
            "runs": counters.runs,
            "instructions": counters.instructions,
            "plans": counters.plans,
            "refused": counters.refused,
            "internal_errors": counters.internal_errors,
            "poisoned": counters.poisoned,
            "fetches": counters.fetches,
            "puts": counters.puts,
            "marks": counters.marks,
            "recoveries": counters.recoveries,
            "moves": counters.moves,
            "plans_refused": counters.plans_refused,
            "session": {"tensors": len(client.table), "segments": len(client.segments), "plans_made": client.made,
                        "plan_hits": client.hits, "queued": len(client.queue), "gpipe": dict(client.gpipe),
                        "plans_improved": client.improved, "plan_misses": dict(client.misses),
                        "marks": client.recovery.stored, "recoveries": client.recovery.recoveries,
                        "recovery_seconds": max(0.0, client.recovery.recovery_seconds)},
        }  # fmt: skip


def _entitlement(table: LimitTable, principal: str) -> Entitlement:
    """What a principal is granted of the workers' time."""
    found = table.of(principal)
    return Entitlement(found.weight, found.reserved, Priority(found.priority))


def releases(client: int, tensors: list[int]) -> list[m.Release]:
    """The messages that free tensors of a client, none longer than a message may be."""
    return [m.Release(client, tensors[at : at + MAX_IDS]) for at in range(0, len(tensors), MAX_IDS)]
