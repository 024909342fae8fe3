"""The dispatcher as a state machine: events in, sends out. It uses no socket, clock, thread or environment variable.

    client ──Define/Run/Put/Free/Fetch──▶ queue ──in order──▶ issue ──Execute/Store/Release/Collect──▶ mesh
    client ◀──Credit/Cut/Value/Failed────────────────────────────── ◀──Done/Landed/Part/Poisoned───── worker

How a client's message becomes an order to workers, in the order to read the code:

1. `DispatcherCore.handle`, below, takes each event; `_received` finds out who sent a message and whether that peer may.
2. `message_table.py` says who may send which message, and what acts on it. Most of a client's go to its queue.
3. `handlers/message_queues.py` takes each queue's messages in order; one that cannot be processed yet says what it waits for.
4. `handlers/runs.py` does so with a `Run`: it looks up the inputs in the session's table, and issues the plan.
5. `session_plans/plan_selection.py` finds that plan in the cache, or has a job make it (`planner/planner.py`).

Around that: `membership.py` says how peers join and leave, `upkeep.py` what is done after each event and with time,
`jobs/job_scheduler.py` how the one thread is divided, and `invariants.py` what must hold between two events.

Guarantees:

* A client's messages are processed in the order in which it sent them. One that cannot be processed yet (no worker has
  joined, a mesh has no credit, a put that it reads has not landed, its plan is not ready) blocks only later messages of
  the same client.
* Every plan gets the next number of one global order, and goes to all members of its mesh at once or to none. So workers
  see subsequences of one order, and collectives inside plans cannot deadlock.
* A tensor without a value has a fault, and everything computed from it inherits the fault.
* Work that takes longer than a look-up is divided into turns, which give all programs equal shares of the one thread.
* An exception that should not be (a bug) ends the session of the peer whose message or job it came from, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from gt.daemon.host import START_TIMEOUT
from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire.reliable_stream import LEASE_SECONDS
from gt.wire.shared_memory.running_plan import RunningPlan

from .handlers.disconnect import Disconnect
from .handlers.drain import DrainHandler
from .handlers.fetches import FetchHandler
from .handlers.handshake import Handshake
from .handlers.marks import MARK_SECONDS, MarkHandler
from .handlers.memory_survey import MemorySurveys
from .handlers.message_queues import MessageQueues
from .handlers.puts import PutHandler
from .handlers.returning_sessions import ReturningSessions
from .handlers.runs import RunHandler
from .handlers.snapshots import SnapshotHandler
from .invariants import check_core
from .limit_handler import LimitHandler
from .limits.limit_table import UNLIMITED_TABLE, LimitTable
from .membership import WORKER_LEASE_SECONDS, Membership
from .message_table import (
    CLIENT,
    CLIENT_HANDLERS,
    HANDLERS,
    INQUIRER,
    PULSE,
    QUEUED_HANDLERS,
    STANDBY_ROLE,
    WATCHER,
    WORKER,
    WORKER_HANDLERS,
)
from .operators.hand_over import HandOvers
from .operators.orders import ENDED_TEXT, OperatorOrders
from .pacing.policy import PacingPolicy
from .pacing.thread_shares import NOBODY
from .session_meshes.session_mesh import SessionMeshes
from .session_mover import SessionMover
from .session_plans.plan_selection import PlanSelection
from .state.events import (
    ConfigRead,
    Due,
    Event,
    FileRead,
    FilesListed,
    JobTurn,
    Lost,
    Malformed,
    NewLimits,
    Publish,
    Received,
    Reload,
    Send,
    SessionRead,
    SessionWritten,
    ShellError,
)
from .state.mark_bytes import SessionCard
from .state.numbers import Numbers, first_numbers
from .state.shared_state import DispatcherState
from .telemetry.subscribers import Subscribers
from .telemetry.usage_reports import UsageReports
from .upkeep import after_event, follow_limits, tick

if TYPE_CHECKING:
    from gt.sharding.config import Config

    from .state.records import ClientRecord

HEARD_BEFORE_RESUME: Final = (m.Ping, m.Goodbye, m.Resume)
"""The messages that a client may send while the dispatcher waits for the `Resume` of its session. Others are dropped."""


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
        self.jobs = self.plan_selection.jobs
        self.meshes = SessionMeshes(service, self.plan_selection)
        self.fetches = FetchHandler(service)
        self.surveys = MemorySurveys(service)
        self.puts = PutHandler(service, self.meshes)
        self.snapshots = SnapshotHandler(service, self.meshes)
        self.marks = MarkHandler(service, self.jobs, numbers.marks, mark_seconds, saves=cards is not None)
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
        self.membership = Membership(
            service, self.jobs, self.handshake, self.disconnect, self.returning, self.queues, self.subscribers,
            self.snapshots, running_plan, lease, worker_lease,
        )  # fmt: skip
        self.patience = patience
        self.started: float | None = None

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
                peer = self.membership.by_bulk(event.peer) if event.bulk else event.peer
                client = self.service.clients.get(peer)
                self.service.served = NOBODY if client is None else client.program.principal
                self.membership.refuse(peer, event.reason)
            elif isinstance(event, Lost):
                client = self.service.clients.get(event.peer)
                self.service.served = NOBODY if client is None else client.program.principal
                self.membership.connection_lost(event)
            elif isinstance(event, ShellError):
                peer = self.membership.by_bulk(event.peer) if event.bulk else event.peer
                self.service.end_session(peer, event.what, event.error)
            else:
                self._own_event(event, now)
        except Exception as error:  # noqa: BLE001 — a bug, whatever it is
            self._blame(event, error)
        after_event(self, now)
        return self._sent()

    def _received(self, event: Received, now: float) -> None:
        """Act on a message of a peer, if the peer may send it."""
        peer, message, unread, origin = event
        kind = type(message)
        if kind is m.Hello:
            if message.role not in (WORKER, PULSE):
                self.service.served = origin.principal.name
            self.membership.hello(peer, message, origin)
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
                self.membership.refuse(peer, f"{kind.__name__} before Hello")
            return
        handler = handlers.get(kind)
        if handler is None:
            self.membership.refuse(peer, f"{kind.__name__} from a {role}")
            return
        sender.heard = now
        try:
            handler(self, sender, message)
        except ProtocolError as error:
            self.membership.refuse(peer, str(error))

    def _own_event(self, event: Event, now: float) -> None:
        """Act on an event of the shell itself."""
        if isinstance(event, Reload):
            self.queues.reload(event)
        elif isinstance(event, NewLimits):
            self.limits.adopt(event.table)
            follow_limits(self)
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
                self.admit()
        else:
            tick(self, now)

    def admit(self) -> None:
        """Let sessions send the new plans for which there is room now."""
        for client in self.plan_selection.admission.turns():
            self.queues.pump(client)

    def _blame(self, event: Event, error: Exception) -> None:
        """Note whose session an unexpected exception ends. Raises it again if it left a peer half gone: others might wait for
        that for ever."""
        if self.membership.dropping:
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

    def _sent(self) -> list[Send]:
        """The messages to send now. Once another dispatcher has taken the place of this one, only the word that it ends."""
        out, self.service.out = self.service.out, []
        other = self.service.replaced
        if other is None:
            return out
        return [Send((other.peer,), m.Goodbye("", "it ends, because it was replaced"))] if other.peer else []

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
        return self.membership.peers

    def knows(self, peer: bytes) -> bool:
        """Whether a peer is one of them."""
        return self.membership.knows(peer)

    def joined(self, peer: bytes) -> bool:
        """Whether a peer has said `Hello`, also one whose process has ended since."""
        return self.membership.joined(peer)

    def is_repeated(self, peer: bytes) -> bool:
        """Whether the last message of a client was one that it has sent before, or will send again."""
        client = self.service.clients.get(peer)
        return client is not None and self.recovery.is_repeated(client)

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        check_core(self)
