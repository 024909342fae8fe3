"""The dispatcher as a state machine: events in, sends out. It uses no socket, clock, thread or environment variable.

    client ──Define/Run/Put/Free/Fetch──▶ queue ──in order──▶ issue ──Execute/Store/Release/Collect──▶ mesh
    client ◀──Credit/Cut/Value/Failed────────────────────────────── ◀──Done/Landed/Part/Poisoned───── worker

Invariants:

* A client's messages are processed in the order in which it sent them. One that cannot be processed yet (no worker has
  joined, a mesh has no credit, a put that it reads has not landed, its plan is not ready) blocks only later messages of
  the same client.
* Every plan gets the next number of one global order, and goes to all members of its mesh at once or to none. So workers
  see subsequences of one order, and collectives inside plans cannot deadlock.
* A tensor without a value has a fault, and everything computed from it inherits the fault.
* Work that takes longer than a look-up is divided into turns, which give all programs equal shares of the one thread.
* An exception that should not be (a bug) ends the session of the peer whose message or job it came from, and no other.

The table `MESSAGES` at the end says who may send which message and what acts on it. Peers join in `handlers/handshake.py` and
leave in `handlers/disconnect.py`; `handlers/message_queues.py` processes clients' queues, and `handlers/job_scheduler.py`
divides the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from gt.daemon.host import START_TIMEOUT
from gt.dispatcher.cost.cost_model import LinkProfile, host_of, rounded
from gt.dispatcher.handlers.disconnect import Disconnect
from gt.dispatcher.handlers.drain import DrainHandler
from gt.dispatcher.handlers.fetches import FetchHandler
from gt.dispatcher.handlers.handshake import EarlyPulse, Handshake
from gt.dispatcher.handlers.job_scheduler import SERVICE, Job
from gt.dispatcher.handlers.marks import DISPATCHER, MARK_SECONDS, STANDBY, MarkHandler
from gt.dispatcher.handlers.memory_survey import MemorySurveys
from gt.dispatcher.handlers.message_queues import MessageQueues
from gt.dispatcher.handlers.plan_selection import PlanSelection
from gt.dispatcher.handlers.puts import PutHandler
from gt.dispatcher.handlers.returning_sessions import ReturningSessions
from gt.dispatcher.handlers.runs import RunHandler
from gt.dispatcher.handlers.session_mesh import SessionMeshes
from gt.dispatcher.handlers.snapshots import SnapshotHandler
from gt.dispatcher.limits.limit_table import UNLIMITED_TABLE, LimitTable
from gt.dispatcher.limits.session_queue import QueuedSession
from gt.dispatcher.operators.decision import answer_why
from gt.dispatcher.operators.hand_over import HandOvers
from gt.dispatcher.operators.orders import ENDED_TEXT, ORDERS, OperatorOrders
from gt.dispatcher.pacing.policy import PacingPolicy
from gt.dispatcher.pacing.thread_shares import NOBODY
from gt.dispatcher.state.events import (
    ConfigRead,
    Due,
    Event,
    FileRead,
    FilesListed,
    JobTurn,
    Lost,
    Malformed,
    Marking,
    NewLimits,
    Publish,
    Received,
    Reload,
    Send,
    SessionRead,
    SessionWritten,
    ShellError,
    WorkerLoss,
)
from gt.dispatcher.state.mark_bytes import SessionCard
from gt.dispatcher.state.message_state import WAITING_ANSWERS, WAITING_MARK, WAITING_READER
from gt.dispatcher.state.numbers import Numbers, first_numbers
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import MESH_CREDITS, DispatcherState
from gt.dispatcher.state.standby_copies import STANDBY_SECONDS, Replacement, StandbyCopies
from gt.dispatcher.state.worker_duty import IN_SERVICE, SPARE
from gt.dispatcher.telemetry.subscribers import Subscribers, Watcher
from gt.dispatcher.telemetry.usage_reports import UsageReports
from gt.errors import OutOfMemory, ProtocolError, SessionError
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.principals import Origin
from gt.wire.reliable_stream import LEASE_SECONDS
from gt.wire.shared_memory.running_plan import RunningPlan

from .limit_handler import LimitHandler
from .session_mover import SessionMover

if TYPE_CHECKING:
    from gt.sharding.config import Config

WORKER_LEASE_SECONDS: Final = 30.0
"""Seconds without a sign of life after which a worker counts as lost; less if the lease is shorter."""
LOSSES: Final = "what lost workers leave behind"
"""The job that tells sessions of them."""
ASK_AGAIN: Final = "snapshots that wait for a worker"
"""The job that has workers do what they were not there for."""
DISPOSAL: Final = "what is not needed any more"
"""The job that frees it."""
MARKS: Final = "marks that are due"
"""The job that takes them."""
RELEASES: Final = "plans whose turns have come"
"""The job that releases them."""
USAGE: Final = "what sessions have used"
"""The job that adds it up."""
USAGE_ASKED: Final = "answers to who asks for that"
"""The job that finds them."""
TURNS_PER_EVENT: Final = 4
"""How many sessions have their turns to release plans in one event; each turn may take some tenths of a millisecond."""
WATCHED: Final = "what watchers are told"
DESCRIBED: Final = "what new watchers are told first"
"""The jobs that find it out."""
LIMITED: Final = "sessions that have other limits"
"""The job that lets them follow."""
ADMITTED: Final = "sessions that wait to begin"
"""The job that lets them begin."""
OUT_OF_MEMORY: Final = OutOfMemory.__name__
NO_WORKER_LOSS: Final = WorkerLoss()
"""Of a peer that leaves in order, or is no worker."""


class DispatcherCore:
    """One dispatcher.

    * `config`: the sharding config of sessions that bring none.
    * `workers_expected`: how many must have joined before the first tensor is placed, which waits `patience` seconds for them.
    * `lease`, `worker_lease`: the seconds of silence after which a peer whose process cannot be watched is lost, and any worker.
    * `mark_seconds`: the least time between two marks of a session.
    * `facts`: what all peers are told in a `Welcome`; `worker_facts`: what workers are told besides.
    * `boot`: which workers have its clock.
    * `capabilities`: which orders operators may give (`operators/orders.py`).
    * `numbers`: those of the dispatcher before, from which its own go on.
    * `cards`: of the sessions that the dispatcher before has left; None if the shell has no folder for them.
    * `running_plan`: says what a worker that is lost was computing, if that is known.
    * `supervised`: another dispatcher is started when this one ends.
    * `limits`: those of principals. `accounts`: the shell keeps a file of what was used.
    * `policy`: whose plans go first, if not the fair one.
    """

    def __init__(
        self, *, config: Config | None = None, workers_expected: int = 1, facts: dict[str, Any] | None = None,
        log: Callable[..., None] = lambda level, text, **about: None, boot: str = "", capabilities: Sequence[str] = (),
        patience: float = START_TIMEOUT, lease: float = LEASE_SECONDS, worker_facts: dict[str, Any] | None = None,
        mark_seconds: float = MARK_SECONDS, worker_lease: float = WORKER_LEASE_SECONDS, numbers: Numbers | None = None,
        cards: Iterable[SessionCard] | None = None,
        running_plan: Callable[[bytes], RunningPlan | None] = lambda worker: None, supervised: bool = False,
        limits: LimitTable = UNLIMITED_TABLE, accounts: bool = False, policy: PacingPolicy | None = None,
    ) -> None:  # fmt: skip
        numbers = numbers or first_numbers()
        self.facts = {**(facts or {}), "capabilities": list(capabilities)}
        self.service = service = DispatcherState(config, workers_expected, log, numbers)
        service.adopt_limits(limits)
        if policy is not None:
            service.pacer.choose(policy)
        self.subscribers = Subscribers(service, boot)
        self.plan_selection = PlanSelection(service)
        self.meshes = SessionMeshes(service, self.plan_selection)
        self.fetches = FetchHandler(service)
        self.surveys = MemorySurveys(service)
        self.puts = PutHandler(service, self.meshes)
        self.snapshots = SnapshotHandler(service, self.meshes)
        self.marks = MarkHandler(
            service, self.plan_selection.jobs, numbers.marks, mark_seconds, saves=cards is not None
        )
        self.returning = ReturningSessions(service, self.marks, cards or (), lease)
        runs = RunHandler(service, self.meshes, self.plan_selection, self.fetches)
        self.handshake = Handshake(service, self.subscribers, self.facts, worker_facts or {}, numbers, self.returning)
        self.disconnect = Disconnect(
            service, self.handshake, self.subscribers, self.plan_selection, self.fetches, self.surveys, self.snapshots,
            self.meshes, self.marks,
        )  # fmt: skip
        self.recovery = self.disconnect.recovery
        self.queues = MessageQueues(
            service, self.plan_selection, self.meshes, runs, self.puts, self.fetches, self.surveys, self.snapshots,
            self.recovery, self.disconnect.settle_loss, self.marks.mark,
        )  # fmt: skip
        self.limits = LimitHandler(service, self.handshake, self.queues)
        self.running_plan = running_plan
        self.drains = DrainHandler(service, self.queues, self.disconnect, self.marks, self.fetches, self.snapshots)
        self.hand_overs = HandOvers(service, self.marks, supervised=supervised)
        self.usage = UsageReports(service, keeps=accounts)
        self.orders = OperatorOrders(service, self.queues, self.drains, self.hand_overs, self.facts)
        self.mover = SessionMover(service, self.queues, self.meshes, self.orders.audit)
        self.patience = patience
        self.lease = lease
        self.worker_lease = min(worker_lease, lease)
        self.silent: list[bytes] = []
        """Workers that were lost by their silence, and whose supervisors start others once their processes have ended."""
        self.started: float | None = None
        self.confused: set[bytes] = set()
        self.dropping = False
        """Whether a peer is half gone: all that refers to it is being dropped."""

    def handle(self, event: Event, now: float) -> list[Send]:
        """Act on one event; the messages to send, in order."""
        self.service.now, self.service.served = now, NOBODY
        if self.service.replaced is not None:
            return []
        if self.started is None:
            self.started = self.service.expected_since = now
            self.subscribers.started = int(now * 1e9)
        try:
            if isinstance(event, Received):
                self._received(event, now)
            elif isinstance(event, Malformed):
                peer = self._by_bulk(event.peer) if event.bulk else event.peer
                client = self.service.clients.get(peer)
                self.service.served = NOBODY if client is None else client.program.principal
                self._refuse(peer, event.reason)
            elif isinstance(event, Lost):
                if event.ended:
                    self.disconnect.connection_ended(event.peer)
                worker = self.service.workers.get(event.peer)
                returns = worker is not None and worker.facts.get("supervised") is True
                plan = self.running_plan(event.peer) if event.ended else None
                self._lost(event.peer, event.reason, WorkerLoss(returns, plan=plan))
            elif isinstance(event, ShellError):
                self.service.end_session(
                    self._by_bulk(event.peer) if event.bulk else event.peer, event.what, event.error
                )
            else:
                self._own_event(event, now)
        except Exception as error:  # noqa: BLE001 — a bug, whatever it is
            self._blame(event, error)
        if self.service.resumed:
            self.drains.resume()
        if self.drains.drains or self.drains.kept_workers:  # which any event may help on
            self._advance_drains()
        self._let_go_on(now)
        if self.service.ending:
            self._end_sessions()
        if self.service.disposed or self.service.unsaved or self.service.recording is not None:
            self._go_on()
        return self._sent()

    def _go_on(self) -> None:
        """Let jobs of the service do what is left of what it does by itself."""
        if self.service.unsaved:
            self.marks.save_cards()
        if self.service.disposed:
            self._work(DISPOSAL, self.service.disposed, self.service.dispose_some)
        recording = self.service.recording
        if recording is not None:
            self._work(WATCHED, recording.under_way, self.subscribers.find_out)
            self._work(DESCRIBED, self.subscribers.describing, self.subscribers.describe)

    def _let_go_on(self, now: float) -> None:
        """Let those go on who have waited for limits or for their shares, if there may be some."""
        if self.service.credits_due <= now:
            self.service.give_late_credits()
        if self.service.rates.due <= now or self.service.queued.due:
            self._look_at_limits()
        if self.service.pacer.due:
            self._release()
        if self.fetches.freed:
            freed, self.fetches.freed = self.fetches.freed, []
            self.queues.wake(each for each in freed if each.head is WAITING_ANSWERS)

    def _release(self) -> None:
        """Let sessions whose turns have come release their plans; a job goes on with the rest."""
        pacer = self.service.pacer
        try:
            for number in pacer.turns(self.service.now, TURNS_PER_EVENT):
                client = self.service.by_number.get(number)
                if client is not None:
                    self.queues.pump(client)
        except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
            pacer.turn = None
            self.service.internal_error("a turn to release plans", error)
        self._work(RELEASES, (None,) if pacer.due else (), lambda: iter(()))

    def _look_at_limits(self) -> None:
        """Let sessions go on whose principals may issue instructions again, and a job those begin that may."""
        queued = self.service.queued
        queued.due = queued.due and bool(queued.waiting)
        if queued.due:
            self._work(ADMITTED, queued.waiting, self.limits.let_begin)
        try:
            self.limits.go_on()
        except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
            self.service.rates.turn = -1
            self.service.internal_error("instructions that a principal may issue again", error)

    def _work(self, what: str, left: Sized, turns: Callable[[], Iterator[None]]) -> None:
        """Let a job of the service do what is left, in turns."""
        jobs = self.plan_selection.jobs
        if left and not jobs.has(SERVICE, what):
            jobs.add(Job(SERVICE, SERVICE, what, turns(), lambda _: None))

    def _sent(self) -> list[Send]:
        """The messages to send now. Once another dispatcher has taken the place of this one, only the word that it ends."""
        out, self.service.out = self.service.out, []
        other = self.service.replaced
        if other is None:
            return out
        return [Send((other.peer,), m.Goodbye("", "it ends, because it was replaced"))] if other.peer else []

    def _advance_drains(self) -> None:
        try:
            self.drains.advance()
        except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
            self.service.internal_error("a drain", error)
            self.drains.drains.clear()
        if self.drains.kept_workers:
            self.drains.kept_workers = False
            self._workers_came()

    def _own_event(self, event: Event, now: float) -> None:
        """Act on an event of the shell itself."""
        if isinstance(event, Reload):
            self.queues.reload(event)
        elif isinstance(event, NewLimits):
            self.limits.adopt(event.table)
            self._work(LIMITED, self.limits.following, self.limits.follow)
        elif isinstance(event, Due):
            pass  # what is due is done after any event
        elif isinstance(event, SessionWritten):
            self.marks.written(event)
        elif isinstance(event, SessionRead):
            self.returning.read(event)
        elif isinstance(event, FilesListed):
            self.marks.listed(event)
        elif isinstance(event, FileRead):
            self.marks.read(event)
        elif isinstance(event, Publish):
            self.subscribers.publish(event.wall)
        elif isinstance(event, ConfigRead):
            self.orders.reread(event.error)
        elif isinstance(event, JobTurn):
            client = self.plan_selection.work()
            served = self.service.by_number.get(self.plan_selection.jobs.served)
            if served is not None:
                self.service.served = served.program.principal
            if client is not None:
                self.queues.pump(client)
                self._admit()
        else:
            self._tick(now)

    def _end_sessions(self) -> None:
        """End the sessions that a bug has left in an unknown state."""
        ending = self.service.ending
        while ending:
            peer, reason = next(iter(ending.items()))
            self.service.send(peer, m.Goodbye("SessionError", reason))
            self.handshake.pulses.pop(peer, None)
            self._lost(peer, reason)
            del ending[peer]

    def _blame(self, event: Event, error: Exception) -> None:
        """Note whose session an unexpected exception ends. Raises it again if it left a peer half gone: others might wait for
        that for ever."""
        if self.dropping:
            raise error
        client: ClientRecord | None
        if isinstance(event, (Received, Malformed)):
            client = self.service.clients.get(event.peer)
            what = type(event.message).__name__ if isinstance(event, Received) else "malformed message"
            self.service.end_session(event.peer, f"a {what}", error, client.number if client is not None else -1)
        elif isinstance(event, JobTurn):
            client = self.service.by_number.get(self.plan_selection.jobs.served)
            if client is not None:
                self.service.end_session(client.identity, "a job", error, client.number)
            else:
                self.service.internal_error("a job", error)
        elif isinstance(event, Publish):
            for peer in self.subscribers.watchers:
                self.service.end_session(peer, "the events for watchers", error)
        else:  # nobody's session has come to harm, and the next such event may go well
            self.service.internal_error(f"a {type(event).__name__}", error)

    def _by_bulk(self, identity: bytes) -> bytes:
        """The peer with this bulk identity; the identity itself if there is none."""
        clients = (client.identity for client in self.service.clients.values() if client.bulk == identity)
        workers = (worker.identity for worker in self.service.workers.values() if worker.bulk == identity)
        return next(itertools.chain(clients, workers), identity)

    @property
    def busy(self) -> bool:
        """Whether there is something to do when nothing has come: an event `JobTurn` does a little of it."""
        return self.plan_selection.jobs.ready

    @property
    def wakes_at(self) -> float:
        """When there is something to do though nothing has come: then an event `Due` does it."""
        jobs, service = self.plan_selection.jobs, self.service
        due = min(service.rates.due, service.credits_due)
        return min(due, service.thread.due(jobs.ring.order, service.now)) if jobs else due

    def charge(self, seconds: float) -> None:
        """Note how long the last event has taken, if it was somebody's."""
        service = self.service
        if service.served is not NOBODY:
            service.thread.charge(service.served, seconds, service.now)

    @property
    def peers(self) -> Iterator[bytes]:
        """All who are told that this dispatcher lives."""
        standby = (self.service.standby.peer,) if self.service.standby.peer else ()
        service = self.service
        return itertools.chain(
            service.clients, service.workers, self.subscribers.watchers, standby, service.queued.waiting
        )

    def knows(self, peer: bytes) -> bool:
        """Whether a peer is one of them."""
        service = self.service
        return (
            peer in service.clients or peer in service.workers or peer in self.subscribers.watchers
            or peer == service.standby.peer or peer in service.queued
        )  # fmt: skip

    def joined(self, peer: bytes) -> bool:
        """Whether a peer has said `Hello`, also one whose process has ended since."""
        return self.knows(peer) or peer in self.handshake.pulses or peer in self.disconnect.ended

    def is_repeated(self, peer: bytes) -> bool:
        """Whether the last message of a client was one that it has sent before, or will send again."""
        client = self.service.clients.get(peer)
        return client is not None and self.recovery.is_repeated(client)

    def check(self) -> None:
        """The invariants between events."""
        self.subscribers.check()
        self.queues.check()
        self.plan_selection.jobs.check()
        self.plan_selection.admission.ring.check()
        self.service.pacer.check()
        self.service.rates.check()
        assert self.plan_selection.jobs.clients.keys() <= {SERVICE, *self.service.by_number}, (
            "nothing is worked out for who is gone"
        )
        for client in self.service.clients.values():
            assert self.service.by_number[client.number] is client
            positions = {position for position, _ in client.inflight}
            assert client.credited + len(positions) <= client.arrived + (client.underway is not None)
            assert client.underway is None or client.queue, (
                "a run of which parts are issued is at the head of the queue"
            )
            for entry in client.table.values():
                assert entry.fault is not None or entry.mesh in self.service.meshes, (
                    "a tensor is somewhere or has a fault"
                )
        loaded = 0
        for record in self.service.meshes.values():
            numbers = {worker.number for worker in self.service.workers.values()}
            assert record.fault or set(record.mesh.members) <= numbers, "a sound mesh has all its members"
            assert record.client in self.service.by_number, "a mesh is somebody's"
            assert all(worker.duty is not SPARE for worker in record.workers), "spares are on no mesh"
            assert len(record.pending) <= MESH_CREDITS
            flights = self.service.pacer.lanes[record.mesh.number].flights
            assert [*record.pending] == [flight.order for flight in flights], "the pacer counts what is in flight"
            loaded += len(record.mesh.members) if record.pending else 0
            assert all(self.service.issued[order] is record for order in record.pending)
            if record.pending:
                assert record.lagging == sum(last < record.pending[0] for last in record.done.values()) > 0
        assert loaded == self.service.load
        by_client = [(record.client, number) for number, record in self.service.meshes.items()]
        indexed = [(client, each.mesh.number) for client, records in self.service.meshes_of.items() for each in records]
        assert sorted(by_client) == sorted(indexed), "each mesh is found by its client"
        for worker in self.service.workers.values():
            assert worker.to_compile == sum(length for _, length in worker.fresh)
        assert len(self.service.issued) == sum(len(record.pending) for record in self.service.meshes.values())
        self._check_awaited()
        self._check_marks()

    def _check_marks(self) -> None:
        """The marks of a session follow each other in its stream, and at most one is being written."""
        taking = {client.number: mark for client in self.service.clients.values() if (mark := client.recovery.taking)}
        assert self.marks.taking.keys() == {mark.number for mark in taking.values()}, "each mark is of a session"
        for client in self.service.clients.values():
            recovery = client.recovery
            marks = [*recovery.marks, *([] if recovery.taking is None else [recovery.taking])]
            numbers, positions = [mark.number for mark in marks], [mark.position for mark in marks]
            assert numbers == sorted({*numbers}), "each mark has a number of its own, and later ones a higher one"
            assert positions == sorted(positions), "and has more of the stream"
            assert recovery.settled <= max(positions, default=recovery.settled), "a client notes marks that there are"
            assert recovery.taking is None or recovery.taking.position <= recovery.over, "a mark has what is over"
            if recovery.copying is not None:
                assert recovery.taking is None, "one mark of a session is taken at a time"
                assert Marking(recovery.copying) in client.queue, (
                    "all else of a session waits while its table is copied"
                )

    def _check_awaited(self) -> None:
        """No worker is waited for that is not there: its answer would never come. One that is lost is, until its turn has come,
        by the session, fetch or request that has yet to be told."""
        lost = {each.message.worker.number for each in self.disconnect.losses}
        there = {worker.number for worker in self.service.workers.values()} | lost
        for client in self.service.clients.values():
            recovery = client.recovery
            mesh = None if client.mesh is None else self.service.meshes[client.mesh.number]
            members = set() if mesh is None else {worker.number for worker in mesh.workers}
            gone = [message.worker.number for message in client.undecided]
            assert lost.issuperset(gone), "a session's turn comes"
            assert client.undecided == [*islice(client.queue, len(gone))][::-1], "all else of a session waits for it"
            assert recovery.restoring <= members, "workers of its mesh give a session back what a mark has"
            copies = {DISPATCHER, STANDBY} if self.service.standby.peer else {DISPATCHER}
            assert recovery.taking is None or recovery.taking.waiting <= there | copies, "who writes a mark is there"
            for entry in client.table.values():
                assert client.loss is not None or entry.landing <= there, "a tensor arrives at workers that are there"
            assert client.landing == {tensor for tensor, entry in client.table.items() if entry.landing}
        undecided = {client.number for client in self.service.clients.values() if client.undecided}
        assert self.fetches.held.keys() <= undecided, "errors are held of who has yet to be told of a loss"
        assert self.snapshots.lacking <= lost
        for collection in self.fetches.collections.values():
            assert collection.waiting <= there, "who is asked for a value is there"
        for request in self.snapshots.requests.values():
            assert {number for number, owed in request.waiting.items() if owed} <= there, "who has files to do is there"
        for survey in self.surveys.surveys.values():
            assert survey.waiting <= there, "who is asked what it holds is there"

    def _refuse(self, peer: bytes, reason: str, *, early: bool = False) -> None:
        """Answer nonsense once, count it, and end the session of a peer whose stream can no longer be trusted. What came too
        `early` is said again, and nobody's fault."""
        self.service.counters.refused += not early
        if peer not in self.confused:
            if len(self.confused) > 10_000:
                self.confused.clear()
            self.confused.add(peer)
            if early:
                self.service.detail(f"refused a message: {reason}")
            else:
                self.service.log("warning", f"refused a message: {reason}", "refused")
            if self.service.recording is not None and not early:
                self.service.recording.failed(t.DISPATCHER, -1, -1, "ProtocolError", reason)
        self.service.send(peer, m.Goodbye("ProtocolError", f"{reason}; start afresh with Hello"))
        self.handshake.pulses.pop(peer, None)
        if self.knows(peer):
            self._lost(peer, f"it broke the protocol: {reason}")

    def _received(self, event: Received, now: float) -> None:
        """Act on a message of a peer, if the peer may send it."""
        peer, message, unread, origin = event
        kind = type(message)
        if kind is m.Hello:
            if message.role not in (WORKER, PULSE):
                self.service.served = origin.principal.name
            self._hello(peer, message, origin)
            return
        sender: Any
        if (sender := self.service.clients.get(peer)) is not None:
            role, handlers = CLIENT, CLIENT_HANDLERS
            sender.unread_bytes = unread
            self.service.served = sender.program.principal
            if sender.recovery.awaited and kind not in HEARD_BEFORE_RESUME:
                sender.heard = now
                return  # of the time before the session went back
        elif (sender := self.service.workers.get(peer)) is not None:
            role, handlers = WORKER, WORKER_HANDLERS
        elif (sender := self.subscribers.watchers.get(peer)) is not None:
            role = WATCHER if sender.watches else INQUIRER
            self.service.served = sender.program.principal
            handlers = HANDLERS[role]
            sender.unread_bytes = unread
        elif (sender := self.handshake.pulses.get(peer)) is not None:
            role, handlers = PULSE, HANDLERS[PULSE]
        elif (sender := self.service.queued.waiting.get(peer)) is not None:
            role, handlers = CLIENT, QUEUED_HANDLERS
            sender.unread_bytes = unread
        elif peer == self.service.standby.peer:
            sender, role, handlers = self.service.standby, STANDBY_ROLE, HANDLERS[STANDBY_ROLE]
        else:
            if peer in self.orders.ended:
                self.service.send(peer, m.Goodbye("SessionError", ENDED_TEXT))
            elif kind not in (m.Goodbye, m.Ping) and peer not in self.disconnect.ended:
                self._refuse(peer, f"{kind.__name__} before Hello")
            return
        handler = handlers.get(kind)
        if handler is None:
            self._refuse(peer, f"{kind.__name__} from a {role}")
            return
        sender.heard = now
        try:
            handler(self, sender, message)
        except ProtocolError as error:
            self._refuse(peer, str(error))

    def _hello(self, peer: bytes, hello: m.Hello, origin: Origin) -> None:
        if hello.version != m.VERSION:
            text = f"this dispatcher speaks protocol {m.VERSION}, not {hello.version}"
            self.service.send(peer, m.Goodbye("ProtocolError", text))
        elif self.knows(peer):
            self._refuse(peer, "a second Hello")
        else:
            try:
                before = self.handshake.present(hello, origin)
                if before is not None and self._goes_on(before, peer, hello, origin):
                    return
                if self.handshake.hello(peer, hello, origin):
                    self._workers_came()
                    if self.service.workers[peer].duty is IN_SERVICE:
                        self.queues.remesh("a worker has joined")
            except SessionError as error:
                self.service.send(peer, m.Goodbye("SessionError", str(error)))
            except ProtocolError as error:
                self._refuse(peer, str(error), early=isinstance(error, EarlyPulse))

    def _goes_on(self, client: ClientRecord, peer: bytes, hello: m.Hello, origin: Origin) -> bool:
        """The client of a session that is here has opened another connection, because it has given up the one before. Returns
        whether the session goes on there; otherwise it is gone, and may begin anew."""
        before, mark = client.identity, hello.facts.get("mark")
        self.disconnect.connection_ended(before)
        if mark is not None and self.recovery.has(client, mark):
            self.dropping = True
            self.disconnect.move(client, peer, hello.facts, origin)
            self.dropping = False
            return True
        self.returning.put_back(client)
        self._lost(before, "its client has opened another connection")
        return False

    def _lost(self, peer: bytes, reason: str, loss: WorkerLoss = NO_WORKER_LOSS) -> None:
        self.dropping = True
        was_worker = self.disconnect.lost(peer, reason, loss)
        self.dropping = False
        if was_worker:
            self._work(LOSSES, self.disconnect.losses, self.disconnect.settle)
            self.queues.wake_all()  # a spare may have taken the place for which they have waited

    def _tick(self, now: float) -> None:
        self.marks.tick()
        self._work(MARKS, self.marks.due, self.marks.take_due)
        self.returning.tick()
        self.usage.tick()
        self._work(USAGE, (None,) if self.usage.due else (), self.usage.work)
        self.dropping = True
        failed = self.disconnect.forsake_overdue()
        self.dropping = False
        for client in failed:
            self.queues.pump(client)
        for client in [each for each in self.service.clients.values() if each.head is WAITING_MARK]:
            self.queues.pump(client)
        for peer in self.subscribers.late(now):
            self.subscribers.leave(peer)
        standby = self.service.standby
        if standby.peer and now - standby.heard > STANDBY_SECONDS:
            self._lost(standby.peer, f"no sign of life for {STANDBY_SECONDS:g} s")
        for worker in list(self.service.workers.values()):
            if now - worker.heard > self.worker_lease:
                returns = worker.facts.get("supervised") is True and worker.facts.get("watched") is True
                self.silent += [worker.identity] * returns
                loss = WorkerLoss(returns, plan=self.running_plan(worker.identity))
                self._lost(worker.identity, f"no sign of life for {self.worker_lease:g} s", loss)
        for each in [*self.service.queued.waiting.values()]:
            if now - each.heard > self.lease and not each.said[0].facts.get("watched"):
                self._lost(each.peer, f"no sign of life for {self.lease:g} s")
        wanted = {each.principal for each in self.service.queued.waiting.values()}
        for client in list(self.service.clients.values()):
            watched = client.facts.get("watched") and client.program.principal not in wanted
            if now - client.heard > self.lease and not watched:
                self._lost(client.identity, f"no sign of life for {self.lease:g} s")
        self.snapshots.tick()
        try:
            self.mover.look()
        except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
            self.service.internal_error("a look at sessions that may move", error)
        if self.service.is_short and now - self.service.expected_since > self.patience:
            self.service.log(
                "error",
                f"{len(self.service.in_service)} of {self.service.workers_expected} workers joined in {self.patience:g} s; "
                "GT_START_TIMEOUT says how long the dispatcher waits for them",
            )
            self.service.stop_waiting()
            self.queues.remesh("spares are in service")
            self._workers_came()
        self._wait_for_links_no_longer(now)

    def _wait_for_links_no_longer(self, now: float) -> None:
        """Go on without what was not measured in time."""
        late = self.service.measured.overdue(now)
        for one, another in late:
            text = (
                f"the link between hosts {one} and {another} was not measured; workers on both may not reach each other"
            )
            self.service.log("warning", text)
        if late and not self.service.measured.due:
            self.queues.wake_all()

    def _workers_came(self) -> None:
        """There are other workers in service: go on with what has waited for them."""
        self.snapshots.unasked = True
        self._work(ASK_AGAIN, (None,), self.snapshots.ask_again)
        self.queues.wake_all()

    # messages, by the table below

    def _ping(self, sender: ClientRecord | WorkerRecord | Watcher | StandbyCopies, ping: m.Ping) -> None:
        """A sign of life, which is noted of any message, and perhaps the word that a client has read what it was sent."""
        if isinstance(sender, ClientRecord) and sender.head is WAITING_READER:
            self.queues.pump(sender)

    def _queued_ping(self, queued: QueuedSession[Any], _: m.Ping) -> None:
        """A sign of life of a client whose session waits, and perhaps the word that it has read at which position."""
        if not queued.unread_bytes:
            self.service.queued.has_read(queued)

    def _leave_queue(self, queued: QueuedSession[Any], _: m.Goodbye) -> None:
        """A client waits no longer for its session."""
        self._lost(queued.peer, "it said goodbye")

    def _goodbye(self, sender: ClientRecord | WorkerRecord | Watcher | StandbyCopies, goodbye: m.Goodbye) -> None:
        reason, loss = "it said goodbye", NO_WORKER_LOSS
        if isinstance(sender, WorkerRecord):
            reason = goodbye.text or reason
            if goodbye.kind == "WorkerLost":  # its device failed, or it has met a bug, and it starts again
                loss = WorkerLoss(returns=True, failed=True, plan=self.running_plan(sender.identity))
        peer = sender.peer if isinstance(sender, StandbyCopies) else sender.identity
        self._lost(peer, reason, loss)

    def _take(self, client: ClientRecord, message: m.Message) -> None:
        self.queues.take(client, message)

    def _ask(self, client: ClientRecord, ask: m.Ask) -> None:
        if ask.topic.startswith("why ") and self.queues.reads(client):
            self.queues.explain_tensor(client, ask)
            self.queues.take(client, m.Free([]))  # in its place in the order, for whoever counts messages
        else:
            self.queues.take(client, ask)

    def _done(self, worker: WorkerRecord, done: m.Done) -> None:
        record, room = self.service.finished(worker, done)
        if record is not None:
            client = self.service.by_number[record.client]
            self.service.served = client.program.principal
            self.service.credit(client)
            if client.number not in self.service.pacer.waiting:  # else it goes on in its turn
                self.queues.pump(client)
        if room:
            self._admit()

    def _poisoned(self, worker: WorkerRecord, poisoned: m.Poisoned) -> None:
        client, order, kind, text = poisoned.client, poisoned.order, poisoned.kind, poisoned.text
        self.service.counters.poisoned += 1
        if self.service.recording is not None:
            self.service.recording.failed(worker.number, client, order, kind, text)
        said = f"worker {worker.number}, client {client}: {kind}: {text}"
        session = self.service.by_number.get(client)
        if kind == OUT_OF_MEMORY and session is not None:
            if session.short_of_memory == order:  # this has one cause, however much of a plan finds no room
                self.service.detail(said, client=client, worker=worker.number, order=order)
                return
            session.short_of_memory = order
        self.service.log("error", said, client=client, worker=worker.number, order=order)

    def _landed(self, worker: WorkerRecord, landed: m.Landed) -> None:
        self._arrived(self.puts.landed(worker, landed))

    def _arrived(self, client: ClientRecord | None) -> None:
        """A tensor of a client has arrived at all of its workers."""
        if client is not None:
            self.marks.take(client)
            self.queues.pump(client)

    def _part(self, worker: WorkerRecord, part: m.Part) -> None:
        client = self.fetches.part(worker, part)
        if client is None:
            return
        self.service.served = client.program.principal
        if client.head in WAITS_FOR_ANSWERS:
            self.queues.pump(client)

    def _linked(self, worker: WorkerRecord, linked: m.Linked) -> None:
        bandwidth, latency = max(1.0, float(linked.bandwidth)), max(1.0, float(linked.latency)) / 1e9
        worker.links[linked.worker] = LinkProfile(rounded(bandwidth), rounded(latency))
        other = next((each for each in self.service.workers.values() if each.number == linked.worker), None)
        if other is not None and self.service.measured.end(host_of(worker.facts), host_of(other.facts)):
            self.queues.wake_all()

    def _events(self, worker: WorkerRecord, events: m.Events) -> None:
        self.subscribers.events(worker, events)

    def _holdings(self, worker: WorkerRecord, holdings: m.Holdings) -> None:
        self.surveys.heard(worker, holdings)

    def _snapshot_report(self, worker: WorkerRecord, report: m.SnapshotReport) -> None:
        self.snapshots.report(worker, report)

    def _loaded(self, worker: WorkerRecord, loaded: m.Loaded) -> None:
        self._arrived(self.snapshots.loaded(worker, loaded))

    def _resume(self, client: ClientRecord, resume: m.Resume) -> None:
        if self.recovery.resume(client, resume):
            self.queues.pump(client)

    def _settled(self, client: ClientRecord, settled: m.Settled) -> None:
        self.marks.settled(client, settled)

    def _request_mark(self, client: ClientRecord, request: m.RequestMark) -> None:
        self.marks.request(client, request)
        if client.head is WAITING_MARK:
            self.queues.pump(client)

    def _mark_taken(self, worker: WorkerRecord, taken: m.MarkTaken) -> None:
        self.marks.taken(worker, taken)

    def _mark_restored(self, worker: WorkerRecord, restored: m.MarkRestored) -> None:
        client = self.recovery.restored(worker, restored)
        if client is not None:
            self.queues.pump(client)

    def _parts_packed(self, worker: WorkerRecord, packed: m.PartsPacked) -> None:
        self.recovery.packed(worker, packed)

    def _unique_id(self, worker: WorkerRecord, unique_id: m.UniqueId) -> None:
        self.meshes.introduce(worker, unique_id)

    def _health(self, worker: WorkerRecord, health: m.Health) -> None:
        for level, text in worker.health.hear(health, self.service.now):
            device = worker.facts.get("device", "unknown device")
            text = f"the GPU of worker {worker.number} ({device} on {worker.facts.get('host', 'unknown host')}) {text}"
            self.service.log(level, text, worker=worker.number)
        self.usage.powered(worker, health.power)
        if self.service.recording is not None:
            self.service.recording.sampled(worker)

    def _file_progress(self, worker: WorkerRecord, progress: m.FileProgress) -> None:
        self.service.file_progress[worker.number] = progress

    def _watch(self, watcher: Watcher, watch: m.Watch) -> None:
        self.subscribers.hear(watcher, watch)

    def _order(self, watcher: Watcher, order: m.Message) -> None:
        self.subscribers.check_reads(watcher)
        self.orders.handle(watcher, order)

    def _explain_session(self, watcher: Watcher, asked: m.ExplainSession) -> None:
        self.subscribers.check_reads(watcher)
        self.service.send(watcher.identity, answer_why(self.service, self.handshake.reason, watcher, asked))

    def _ask_usage(self, watcher: Watcher, asked: m.AskUsage) -> None:
        """Answer what all principals have used."""
        self.subscribers.check_reads(watcher)
        self.usage.asked.append((watcher.identity, asked.request))
        self._work(USAGE_ASKED, self.usage.asked, lambda: self.usage.answer(self.subscribers.watchers))

    def _file_copied(self, _standby: StandbyCopies, message: m.FileCopied) -> None:
        self.marks.copied(message.name)

    def _replaced(self, standby: StandbyCopies, message: m.Replaced) -> None:
        """The standby has taken the place of this dispatcher."""
        if message.epoch <= self.handshake.epoch:
            raise ProtocolError(f"epoch {message.epoch} is not after {self.handshake.epoch}")
        self.service.replaced = Replacement(message.epoch, standby.peer)

    def _admit(self) -> None:
        """Let sessions send the new plans for which there is room now."""
        for client in self.plan_selection.admission.turns():
            self.queues.pump(client)


WAITS_FOR_ANSWERS: Final = frozenset({WAITING_READER, WAITING_ANSWERS})
"""The waits that the answer of a worker may end."""
HEARD_BEFORE_RESUME: Final = (m.Ping, m.Goodbye, m.Resume)
"""What a client may say while its session waits for its `Resume`."""


class Role(StrEnum):
    """What a peer says in its `Hello` that it is."""

    CLIENT = "client"
    WORKER = "worker"
    PULSE = "pulse"
    WATCHER = "watcher"
    STANDBY = "standby"
    INQUIRER = "inquirer"


CLIENT, WORKER, PULSE, WATCHER, STANDBY_ROLE, INQUIRER = Role

#: By type of message: who may send it, and what acts on it. `Hello`, which makes a peer known, is not among them.
MESSAGES: Final[dict[type, tuple[tuple[Role, ...], Callable[[DispatcherCore, Any, Any], None]]]] = {
    m.Ping: ((CLIENT, WORKER, PULSE, WATCHER, STANDBY_ROLE, INQUIRER), DispatcherCore._ping),
    m.Goodbye: ((CLIENT, WORKER, WATCHER, STANDBY_ROLE, INQUIRER), DispatcherCore._goodbye),
    m.Configure: ((CLIENT,), DispatcherCore._take),
    m.Define: ((CLIENT,), DispatcherCore._take),
    m.Drop: ((CLIENT,), DispatcherCore._take),
    m.Run: ((CLIENT,), DispatcherCore._take),
    m.Put: ((CLIENT,), DispatcherCore._take),
    m.Free: ((CLIENT,), DispatcherCore._take),
    m.Fetch: ((CLIENT,), DispatcherCore._take),
    m.Options: ((CLIENT,), DispatcherCore._take),
    m.WriteSnapshot: ((CLIENT,), DispatcherCore._take),
    m.Restore: ((CLIENT,), DispatcherCore._take),
    m.ConfirmTensors: ((CLIENT,), DispatcherCore._take),
    m.Ask: ((CLIENT,), DispatcherCore._ask),
    m.Resume: ((CLIENT,), DispatcherCore._resume),
    m.Settled: ((CLIENT,), DispatcherCore._settled),
    m.RequestMark: ((CLIENT,), DispatcherCore._request_mark),
    m.Done: ((WORKER,), DispatcherCore._done),
    m.Poisoned: ((WORKER,), DispatcherCore._poisoned),
    m.Landed: ((WORKER,), DispatcherCore._landed),
    m.Part: ((WORKER,), DispatcherCore._part),
    m.Linked: ((WORKER,), DispatcherCore._linked),
    m.Events: ((WORKER,), DispatcherCore._events),
    m.Holdings: ((WORKER,), DispatcherCore._holdings),
    m.UniqueId: ((WORKER,), DispatcherCore._unique_id),
    m.Heard: ((WORKER,), DispatcherCore._ping),  # what it says is the shell's
    m.Lapsed: ((WORKER,), DispatcherCore._ping),  # what it says is the shell's
    m.SnapshotReport: ((WORKER,), DispatcherCore._snapshot_report),
    m.Loaded: ((WORKER,), DispatcherCore._loaded),
    m.MarkTaken: ((WORKER,), DispatcherCore._mark_taken),
    m.MarkRestored: ((WORKER,), DispatcherCore._mark_restored),
    m.PartsPacked: ((WORKER,), DispatcherCore._parts_packed),
    m.Health: ((PULSE,), DispatcherCore._health),
    m.FileProgress: ((PULSE,), DispatcherCore._file_progress),
    m.Watch: ((WATCHER,), DispatcherCore._watch),
    m.AskUsage: ((WATCHER,), DispatcherCore._ask_usage),
    **dict.fromkeys(ORDERS, ((WATCHER,), DispatcherCore._order)),
    m.ExplainSession: ((WATCHER, INQUIRER), DispatcherCore._explain_session),
    m.FileCopied: ((STANDBY_ROLE,), DispatcherCore._file_copied),
    m.Replaced: ((STANDBY_ROLE,), DispatcherCore._replaced),
}
HANDLERS: Final = {
    role: {kind: handler for kind, (roles, handler) in MESSAGES.items() if role in roles} for role in Role
}
"""The same by role."""
QUEUED_HANDLERS: Final[dict[type, Callable[[DispatcherCore, Any, Any], None]]] = {
    m.Ping: DispatcherCore._queued_ping,
    m.Goodbye: DispatcherCore._leave_queue,
}
"""Of a client whose session waits to begin."""
CLIENT_HANDLERS: Final = HANDLERS[CLIENT]
WORKER_HANDLERS: Final = HANDLERS[WORKER]
