"""Peers that leave: a client's tensors, plans and meshes are dropped, and a worker's tensors are lost.

Many sessions may lose one worker. In the event in which it is lost, a `Loss` becomes the first message in the queue of each, so
that nothing more is done for it. Then a job tells one session after the other: it goes back to a mark, or what is left of its
tensors is found out. A session that loses other workers meanwhile is told of all of them together. After the sessions come
marks, snapshots, fetches and surveys of others for which the worker had yet to do something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Set
from dataclasses import dataclass
from typing import Any, Final

from gt.dispatcher.cost.cost_model import host_of
from gt.dispatcher.session_meshes.session_mesh import SessionMeshes
from gt.dispatcher.session_plans.plan_selection import PlanSelection
from gt.dispatcher.state.config_resolution import SharedComputation
from gt.dispatcher.state.events import Effects, Loss, Recovery, Send, WorkerLoss
from gt.dispatcher.state.message_state import ACTING, DONE, DROPPED, WAITING_TURN, MessageState, begin, enter
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.state.survivors import Survivors, lost_table, survivors
from gt.dispatcher.state.worker_duty import IN_SERVICE, SPARE
from gt.dispatcher.telemetry.subscribers import Subscribers
from gt.wire import messages as m
from gt.wire.faults import Fault
from gt.wire.principals import Origin, program_of

from .fetches import FetchHandler
from .handshake import Handshake
from .marks import MarkHandler
from .memory_survey import MemorySurveys
from .recovery import RecoveryHandler
from .snapshots import SnapshotHandler

MAX_ENDED: Final = 4096
"""The most ended processes that are remembered."""
NO_WORKER: Final = -1
"""In place of the number of a worker that a session has lost: it has lost none."""
WORK_PER_TURN: Final = 1024
"""The units of work of one turn in which sessions are told that they have lost a worker: a plan or fetch that is dropped is one,
a session `SESSION_WORK`."""
SESSION_WORK: Final = 64
"""The units of work that a session is, besides one for each of its plans and fetches."""


@dataclass(slots=True, eq=False)
class LostWorker:
    """A worker that is lost, and the sessions that have yet to be told."""

    message: Loss
    clients: deque[ClientRecord]


class Disconnect:
    """What becomes of the service when peers leave or are lost."""

    def __init__(
        self, service: DispatcherState, handshake: Handshake, subscribers: Subscribers, plan_selection: PlanSelection,
        fetches: FetchHandler, surveys: MemorySurveys, snapshots: SnapshotHandler, meshes: SessionMeshes,
        marks: MarkHandler,
    ) -> None:  # fmt: skip
        self.service = service
        self.handshake = handshake
        self.subscribers = subscribers
        self.plan_selection = plan_selection
        self.fetches = fetches
        self.surveys = surveys
        self.snapshots = snapshots
        self.marks = marks
        self.recovery = RecoveryHandler(service, meshes, marks, handshake.clients, self._leave)
        self.ended: dict[bytes, None] = {}
        """Peers whose processes have ended recently, or that have other connections since."""
        self.losses: deque[LostWorker] = deque()
        """The workers of which not everybody has been told that they are lost."""
        self.moved: list[tuple[bytes, bytes]] = []
        """Clients that have other connections since the shell has looked: the ones before, and the new ones."""

    def connection_ended(self, peer: bytes) -> None:
        """Remember that nothing comes from a peer any more, mostly because its process has ended, so that unread messages on all
        its connections are ignored."""
        pulses = [pulse for pulse, worker in self.handshake.pulses.items() if worker.identity == peer]
        self.ended |= dict.fromkeys([peer, *pulses])
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]

    def lost(self, peer: bytes, reason: str, loss: WorkerLoss) -> bool:
        """A peer is gone. Returns whether it was a worker, in which case clients may need another mesh.

        Sessions that lost a worker which returns wait for it, unless a spare takes its place.
        """
        service = self.service
        self.subscribers.leave(peer)
        service.queued.remove(peer)
        if peer == service.standby.peer:
            self.marks.standby_left(reason)
        client = service.clients.pop(peer, None)
        if client is not None:
            self._forget(client)
            service.queued.due = True
            service.ledger.close(client.account)
            service.counters.plan_hits += client.hits
            service.counters.plans_improved += client.improved
            self.marks.forget(client)
            if service.recording is not None:
                service.recording.client_left(client, reason)
            service.log("info", f"client {client.number} left: {reason}", client=client.number)
        worker = service.workers.pop(peer, None)
        if worker is None:
            return False
        self.handshake.without(worker)
        service.file_progress.pop(worker.number, None)
        plan = loss.plan
        at = (
            ""
            if plan is None
            else f", while it computed a plan of client {plan.client} (order {plan.order or 'unknown'})"
        )
        if worker.released:
            loss = loss._replace(returns=False, failed=False)
        level, what = ("info", "left") if worker.released else ("warning", "was lost")
        service.log(level, f"worker {worker.number} {what}: {reason}{at}", worker=worker.number)
        self.subscribers.forget(worker)
        if service.recording is not None:
            service.recording.worker_lost(worker, reason)
        spare = service.replace(worker, returns=loss.returns) if worker.duty is IN_SERVICE else None
        if loss.returns and spare is None and worker.duty is not SPARE:
            service.expect(len(service.in_service) + 1)
        self._worker_lost(worker, reason, loss._replace(returns=loss.returns or spare is not None))
        return True

    def _forget(self, client: ClientRecord) -> None:
        self._take_losses(client)
        del self.service.by_number[client.number]
        self.service.rates.forget(client.number)
        self.service.dispose(client.table)
        self.service.dispose_work(client.segments.values())
        if client.queue:
            enter(client, DROPPED)
        self.fetches.forget(client)
        self.snapshots.forget(client)
        self._leave(client)

    def _leave(self, client: ClientRecord) -> None:
        """Drop everything that a client has on workers, with its plans and meshes; what was in flight counts as finished, and
        nothing is to come back from them."""
        self.plan_selection.forget(client)
        self.service.dispose_work(client.plans.clear())
        client.planner = client.moving = client.survey = None
        client.displaced = False
        numbers, client.left_behind = client.left_behind, set()
        if numbers:
            behind = tuple(worker.identity for worker in self.service.workers.values() if worker.number in numbers)
            self.service.out += [Send(behind, m.Forget(client.number))] if behind else []
        client.recovery.stop_restoring()
        for record in self.service.meshes_of.get(client.number, ()):
            self.service.multicast(record.mesh, m.Forget(client.number))
            for plan in record.plans:
                self.service.multicast(record.mesh, m.DropPlan(plan))
            self.service.drop_mesh(record)

    def _worker_lost(self, worker: WorkerRecord, reason: str, loss: WorkerLoss) -> None:
        service = self.service
        host = host_of(worker.facts)
        if all(host_of(other.facts) != host for other in service.workers.values()):
            service.measured.forget(host)  # the core lets waiting sessions go on whenever a worker is lost
        message = Loss(worker, f"worker {worker.number} was lost ({reason})", loss)
        fault = message.fault
        if service.workers:  # all of them: one may wait in a plan of a mesh that is dropped already
            service.out.append(Send(tuple(service.workers), m.PeerLost(worker.number, fault[1])))
        touched: dict[int, None] = {}
        for record in service.meshes.values():
            if worker.number in record.done:
                record.fault = fault
                touched[record.client] = None
        clients = deque(map(service.by_number.__getitem__, touched))
        for client in clients:
            client.undecided.append(message)
            client.dropping += client.dropping > 0
            client.queue.appendleft(message)
            begin(client)
            enter(client, WAITING_TURN)
        self.snapshots.lacking.add(worker.number)
        self.losses.append(LostWorker(message, clients))

    def settle(self) -> Iterator[None]:
        """Do what is left to do for the workers that were lost, in turns."""
        while self.losses:
            lost = self.losses[0]
            worker, fault = lost.message.worker, lost.message.fault
            while lost.clients:
                self._tell_some(lost.clients)
                yield
            yield from self.marks.lost(worker)
            writing = deque(self.snapshots.written_by(worker))  # of tensors on a mesh that is gone already
            while writing:
                client = writing.popleft()
                if self._is_here(client) and not client.undecided:
                    self._may_rewind(client, [lost.message], self.recovery.usable_workers())
                yield
            yield from self.snapshots.lost(worker, fault)
            yield from self.fetches.all_lost(worker, fault)
            yield from self.surveys.lost(worker)
            self.losses.popleft()

    def _tell_some(self, clients: deque[ClientRecord]) -> None:
        """Have the next sessions go back, or lose tensors."""
        there, work = self.recovery.usable_workers(), 0
        while clients and work < WORK_PER_TURN:
            client = clients.popleft()
            if not self._is_here(client) or not client.undecided:
                continue
            work += SESSION_WORK + len(client.plans) + len(self.fetches.of.get(client.number, ()))
            try:
                losses = self._take_losses(client)
                if not self._may_rewind(client, losses, there):
                    self._begin_loss(client, losses)
            except Exception as error:  # noqa: BLE001 — a bug, whatever it is: the other sessions are told all the same
                self.service.end_session(client.identity, "a lost worker", error, client.number)

    def _is_here(self, client: ClientRecord) -> bool:
        """Whether a session has neither left nor gone back."""
        return self.service.by_number.get(client.number) is client

    def _take_losses(self, client: ClientRecord) -> list[Loss]:
        """The workers that a session has lost and was not told of. Nothing is sent to them any more."""
        losses, client.undecided = client.undecided, []
        for record in self.service.meshes_of.get(client.number, ()) if losses else ():
            for message in losses:
                record.without(message.worker)
        return losses

    def _may_rewind(self, client: ClientRecord, losses: list[Loss], there: Set[int]) -> bool:
        """Have a session go back that has lost workers, if it can. Only the first of them counts as a loss: it would have gone
        back before it lost others."""
        worker, said, loss = losses[0]
        if not self.recovery.can_rewind(client, loss, said, there):
            return False
        its = loss.plan is not None and loss.plan.client == client.number
        text = losses[0].fault[1]
        self.rewind(client, f"{text}; it was computing a plan of this session" if its else text, worker.number)
        return True

    def _begin_loss(self, client: ClientRecord, losses: list[Loss]) -> None:
        """A session cannot go back: have its queue wait until it is known what is left of its tensors."""
        recovery, fault = client.recovery, losses[0].fault
        head = client.queue[len(losses)] if len(client.queue) > len(losses) else None
        if recovery.table is not None and isinstance(head, Recovery):  # on its way back: nothing comes of that
            self.recovery.fail(client, head.mark, fault)
        if recovery.resends:
            self.marks.give_up(client, fault[1])
        for message in losses:
            self.fetches.lost(message.worker, client, message.fault)
            left = self._left(client, message.worker, message.fault)
            client.loss = SharedComputation(_after(head, left) if isinstance(head, Effects) else left)
        recovery.stop_restoring()
        assert client.loss is not None
        enter(client, ACTING)
        enter(client, self.recovery.meshes.jobs.compute(client, client.loss))

    def _left(self, client: ClientRecord, worker: WorkerRecord, fault: Fault) -> Generator[None, None, Survivors]:
        """Finds out what a lost worker has left of a session's tensors: nothing if another one is lost meanwhile."""
        earlier, client.loss = client.loss, None
        if earlier is not None:
            return self._left_after(earlier, fault)
        if client.planner is not None and client.moving is None and not client.recovery.is_under_way:
            record = self.service.meshes[client.planner.mesh.number]
            if worker.number in record.done:
                return survivors(client.table, record, worker.number, fault, self.service.mesh_numbers)
        return lost_table(client.table, fault)

    def _left_after(self, earlier: SharedComputation[Survivors], fault: Fault) -> Generator[None, None, Survivors]:
        yield from earlier.turns()
        table = earlier.result().table
        left = yield from lost_table(table, fault)
        self.service.dispose(table)
        return left

    def settle_loss(self, client: ClientRecord, message: Loss) -> MessageState:
        """Go on with a session that has lost a worker, once it is known what is left of its tensors."""
        if client.undecided:
            return WAITING_TURN
        left = None
        if client.loss is not None:
            if not client.loss.over:
                return self.recovery.meshes.jobs.compute(client, client.loss)
            left, client.loss = client.loss.result(), None
        self._settle(client, message, left)
        return DONE

    def _settle(self, client: ClientRecord, message: Loss, left: Survivors | None) -> None:
        """Leave a session with what is left of its tensors (None: that was settled with another loss), and tell its client."""
        worker, fault = message.worker, message.fault
        if left is not None:
            self.service.dispose(client.table)
            client.table = left.table
            client.landing.clear()
            if left.mesh is not None:
                self.recovery.meshes.displace(client, left.mesh, left)
            else:
                self.fetches.broken(client, fault)
                self._leave(client)
        self.service.send(client.identity, m.PeerLost(worker.number, fault[1]))
        config, there = client.config, len(self.service.in_service)
        shrinks = config is not None and config.is_elastic and config.least_mesh <= there
        if config is not None and config.mesh is not None and not (message.loss.returns or shrinks):
            client.fault = (fault[0], f"{fault[1]}; the session's mesh ({config.mesh_where}) no longer fits")
        self.service.credit(client)

    def rewind(self, client: ClientRecord, reason: str, lost: int) -> None:
        """Drop what a session is, so that it can begin again at a mark without the worker `lost`."""
        self._begin_rewind(client)
        self.recovery.rewind(client, reason, lost)

    def forsake_overdue(self) -> list[ClientRecord]:
        """Have sessions go back once more without workers that do not give them back what a mark has, although they live. Returns
        those that cannot, whose tensors are lost, and whose queues can go on."""
        failed = []
        for client, (worker, seconds) in self.recovery.overdue():
            text = f"worker {worker} has not restored what a mark of the session has within {seconds:.0f} s"
            self.service.log("error", f"client {client.number}: {text}", client=client.number, worker=worker)
            if self.recovery.avoid(client, worker):
                self.rewind(client, text, worker)
            else:
                self.recovery.fail(client, client.recovery.marks[0], ("WorkerLost", f"{text}; what it held is gone"))
                failed.append(client)
        return failed

    def move(self, client: ClientRecord, peer: bytes, facts: dict[str, Any], origin: Origin) -> None:
        """Go on with a session on another connection of its client, from a mark: nobody knows what the one before has lost."""
        self._begin_rewind(client)
        before = client.identity
        self.moved.append((before, peer))
        del self.service.clients[before]
        client.identity, client.facts, client.bulk = peer, facts, facts.get("bulk", b"")
        client.program, client.principal = program_of(peer, facts, origin), origin.principal
        client.heard, client.unread_bytes = self.service.now, 0
        self.handshake.welcome(client, continues=True)
        self.recovery.rewind(client, "its client has opened another connection", NO_WORKER)

    def _begin_rewind(self, client: ClientRecord) -> None:
        if not client.recovery.is_under_way:
            client.recovery.since = self.service.now
        self._forget(client)
        self.snapshots.abandon(client)


def _after(effects: Effects, turns: Generator[None, None, Survivors]) -> Generator[None, None, Survivors]:
    """Finds out what is left of the whole table, as a run leaves it."""
    yield from effects.change.turns()
    return (yield from turns)
