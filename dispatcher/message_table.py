"""Which messages there are for the dispatcher, who may send each, and what acts on it: the table `MESSAGES` at the end.

A client's messages about tensors all go to its queue (`_take`), where `handlers/message_queues.py` processes them in order. What
workers, watchers and the standby send is acted on at once. Most functions here are a call or two: the packages `handlers`,
`operators` and `telemetry` do the work.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from gt.errors import OutOfMemory, ProtocolError
from gt.wire import messages as m

from .cost.cost_model import LinkProfile, host_of, rounded
from .limits.session_queue import QueuedSession
from .operators.decision import answer_why
from .operators.orders import ORDERS
from .state.events import NO_WORKER_LOSS, WorkerLoss
from .state.message_state import WAITING_ANSWERS, WAITING_MARK, WAITING_READER
from .state.records import ClientRecord, WorkerRecord
from .state.standby_copies import Replacement, StandbyCopies
from .telemetry.subscribers import Watcher

if TYPE_CHECKING:
    from .core import DispatcherCore

OUT_OF_MEMORY: Final = OutOfMemory.__name__
USAGE_ASKED: Final = "what sessions have used, for those who ask"
"""The job that finds the answers."""
WAITS_FOR_ANSWERS: Final = frozenset({WAITING_READER, WAITING_ANSWERS})
"""The waits that the answer of a worker may end."""


class Role(StrEnum):
    """What a peer says in its `Hello` that it is."""

    CLIENT = "client"
    WORKER = "worker"
    PULSE = "pulse"
    WATCHER = "watcher"
    STANDBY = "standby"
    INQUIRER = "inquirer"


CLIENT, WORKER, PULSE, WATCHER, STANDBY_ROLE, INQUIRER = Role


def _ping(core: DispatcherCore, sender: ClientRecord | WorkerRecord | Watcher | StandbyCopies, ping: m.Ping) -> None:
    """A sign of life, which is noted of any message, and perhaps the word that a client has read what it was sent."""
    if isinstance(sender, ClientRecord) and sender.head is WAITING_READER:
        core.queues.pump(sender)


def _queued_ping(core: DispatcherCore, queued: QueuedSession[Any], _: m.Ping) -> None:
    """A sign of life of a client whose session waits, and perhaps the word that it has read at which position."""
    if not queued.unread_bytes:
        core.service.queued.has_read(queued)


def _leave_queue(core: DispatcherCore, queued: QueuedSession[Any], _: m.Goodbye) -> None:
    """A client waits no longer for its session."""
    core.membership.lost(queued.peer, "it said goodbye")


def _goodbye(
    core: DispatcherCore, sender: ClientRecord | WorkerRecord | Watcher | StandbyCopies, goodbye: m.Goodbye
) -> None:
    reason, loss = "it said goodbye", NO_WORKER_LOSS
    if isinstance(sender, WorkerRecord):
        reason = goodbye.text or reason
        if goodbye.kind == "WorkerLost":  # its device failed, or it has met a bug, and it starts again
            loss = WorkerLoss(returns=True, failed=True, plan=core.running_plan(sender.identity))
    peer = sender.peer if isinstance(sender, StandbyCopies) else sender.identity
    core.membership.lost(peer, reason, loss)


def _take(core: DispatcherCore, client: ClientRecord, message: m.Message) -> None:
    core.queues.take(client, message)


def _ask(core: DispatcherCore, client: ClientRecord, ask: m.Ask) -> None:
    if ask.topic.startswith("why ") and core.queues.reads(client):
        core.queues.explain_tensor(client, ask)
        core.queues.take(client, m.Free([]))  # in its place in the order, for whoever counts messages
    else:
        core.queues.take(client, ask)


def _done(core: DispatcherCore, worker: WorkerRecord, done: m.Done) -> None:
    record, room = core.service.finished(worker, done)
    if record is not None:
        client = core.service.by_number[record.client]
        core.service.served = client.program.principal
        core.service.credit(client)
        if client.number not in core.service.pacer.waiting:  # else it goes on in its turn
            core.queues.pump(client)
    if room:
        core.admit()


def _poisoned(core: DispatcherCore, worker: WorkerRecord, poisoned: m.Poisoned) -> None:
    client, order, kind, text = poisoned.client, poisoned.order, poisoned.kind, poisoned.text
    core.service.counters.poisoned += 1
    if core.service.recording is not None:
        core.service.recording.failed(worker.number, client, order, kind, text)
    said = f"worker {worker.number}, client {client}: {kind}: {text}"
    session = core.service.by_number.get(client)
    if kind == OUT_OF_MEMORY and session is not None:
        if session.short_of_memory == order:  # this has one cause, however much of a plan finds no room
            core.service.detail(said, client=client, worker=worker.number, order=order)
            return
        session.short_of_memory = order
    core.service.log("error", said, client=client, worker=worker.number, order=order)


def _landed(core: DispatcherCore, worker: WorkerRecord, landed: m.Landed) -> None:
    _arrived(core, core.puts.landed(worker, landed))


def _arrived(core: DispatcherCore, client: ClientRecord | None) -> None:
    """A tensor of a client has arrived at all of its workers."""
    if client is not None:
        core.marks.take(client)
        core.queues.pump(client)


def _part(core: DispatcherCore, worker: WorkerRecord, part: m.Part) -> None:
    client = core.fetches.part(worker, part)
    if client is None:
        return
    core.service.served = client.program.principal
    if client.head in WAITS_FOR_ANSWERS:
        core.queues.pump(client)


def _linked(core: DispatcherCore, worker: WorkerRecord, linked: m.Linked) -> None:
    bandwidth, latency = max(1.0, float(linked.bandwidth)), max(1.0, float(linked.latency)) / 1e9
    worker.links[linked.worker] = LinkProfile(rounded(bandwidth), rounded(latency))
    other = next((each for each in core.service.workers.values() if each.number == linked.worker), None)
    if other is not None and core.service.measured.end(host_of(worker.facts), host_of(other.facts)):
        core.queues.wake_all()


def _events(core: DispatcherCore, worker: WorkerRecord, events: m.Events) -> None:
    core.subscribers.events(worker, events)


def _holdings(core: DispatcherCore, worker: WorkerRecord, holdings: m.Holdings) -> None:
    core.surveys.heard(worker, holdings)


def _snapshot_report(core: DispatcherCore, worker: WorkerRecord, report: m.SnapshotReport) -> None:
    core.snapshots.report(worker, report)


def _loaded(core: DispatcherCore, worker: WorkerRecord, loaded: m.Loaded) -> None:
    _arrived(core, core.snapshots.loaded(worker, loaded))


def _resume(core: DispatcherCore, client: ClientRecord, resume: m.Resume) -> None:
    if core.recovery.resume(client, resume):
        core.queues.pump(client)


def _settled(core: DispatcherCore, client: ClientRecord, settled: m.Settled) -> None:
    core.marks.settled(client, settled)


def _request_mark(core: DispatcherCore, client: ClientRecord, request: m.RequestMark) -> None:
    core.marks.request(client, request)
    if client.head is WAITING_MARK:
        core.queues.pump(client)


def _mark_taken(core: DispatcherCore, worker: WorkerRecord, taken: m.MarkTaken) -> None:
    core.marks.taken(worker, taken)


def _mark_restored(core: DispatcherCore, worker: WorkerRecord, restored: m.MarkRestored) -> None:
    client = core.recovery.restored(worker, restored)
    if client is not None:
        core.queues.pump(client)


def _parts_packed(core: DispatcherCore, worker: WorkerRecord, packed: m.PartsPacked) -> None:
    core.recovery.packed(worker, packed)


def _unique_id(core: DispatcherCore, worker: WorkerRecord, unique_id: m.UniqueId) -> None:
    core.meshes.registry.introduce(worker, unique_id)


def _health(core: DispatcherCore, worker: WorkerRecord, health: m.Health) -> None:
    for level, text in worker.health.hear(health, core.service.now):
        device = worker.facts.get("device", "unknown device")
        text = f"the GPU of worker {worker.number} ({device} on {worker.facts.get('host', 'unknown host')}) {text}"
        core.service.log(level, text, worker=worker.number)
    core.usage.powered(worker, health.power)
    if core.service.recording is not None:
        core.service.recording.sampled(worker)


def _file_progress(core: DispatcherCore, worker: WorkerRecord, progress: m.FileProgress) -> None:
    core.service.file_progress[worker.number] = progress


def _watch(core: DispatcherCore, watcher: Watcher, watch: m.Watch) -> None:
    core.subscribers.hear(watcher, watch)


def _order(core: DispatcherCore, watcher: Watcher, order: m.Message) -> None:
    core.subscribers.check_reads(watcher)
    core.orders.handle(watcher, order)


def _explain_session(core: DispatcherCore, watcher: Watcher, asked: m.ExplainSession) -> None:
    core.subscribers.check_reads(watcher)
    core.service.send(watcher.identity, answer_why(core.service, core.handshake.reason, watcher, asked))


def _ask_usage(core: DispatcherCore, watcher: Watcher, asked: m.AskUsage) -> None:
    """Answer what all principals have used."""
    core.subscribers.check_reads(watcher)
    core.usage.asked.append((watcher.identity, asked.request))
    core.jobs.work_off(USAGE_ASKED, core.usage.asked, lambda: core.usage.answer(core.subscribers.watchers))


def _file_copied(core: DispatcherCore, _standby: StandbyCopies, message: m.FileCopied) -> None:
    core.marks.copied(message.name)


def _replaced(core: DispatcherCore, standby: StandbyCopies, message: m.Replaced) -> None:
    """The standby has taken the place of this dispatcher."""
    if message.epoch <= core.handshake.epoch:
        raise ProtocolError(f"epoch {message.epoch} is not after {core.handshake.epoch}")
    core.service.replaced = Replacement(message.epoch, standby.peer)


#: By type of message: who may send it, and what acts on it. `Hello`, which makes a peer known, is not among them.
MESSAGES: Final[dict[type, tuple[tuple[Role, ...], Callable[[DispatcherCore, Any, Any], None]]]] = {
    m.Ping: ((CLIENT, WORKER, PULSE, WATCHER, STANDBY_ROLE, INQUIRER), _ping),
    m.Goodbye: ((CLIENT, WORKER, WATCHER, STANDBY_ROLE, INQUIRER), _goodbye),
    m.Configure: ((CLIENT,), _take),
    m.Define: ((CLIENT,), _take),
    m.Drop: ((CLIENT,), _take),
    m.Run: ((CLIENT,), _take),
    m.Put: ((CLIENT,), _take),
    m.Free: ((CLIENT,), _take),
    m.Fetch: ((CLIENT,), _take),
    m.Options: ((CLIENT,), _take),
    m.WriteSnapshot: ((CLIENT,), _take),
    m.Restore: ((CLIENT,), _take),
    m.ConfirmTensors: ((CLIENT,), _take),
    m.Ask: ((CLIENT,), _ask),
    m.Resume: ((CLIENT,), _resume),
    m.Settled: ((CLIENT,), _settled),
    m.RequestMark: ((CLIENT,), _request_mark),
    m.Done: ((WORKER,), _done),
    m.Poisoned: ((WORKER,), _poisoned),
    m.Landed: ((WORKER,), _landed),
    m.Part: ((WORKER,), _part),
    m.Linked: ((WORKER,), _linked),
    m.Events: ((WORKER,), _events),
    m.Holdings: ((WORKER,), _holdings),
    m.UniqueId: ((WORKER,), _unique_id),
    m.Heard: ((WORKER,), _ping),  # what it says is the shell's
    m.Lapsed: ((WORKER,), _ping),  # what it says is the shell's
    m.SnapshotReport: ((WORKER,), _snapshot_report),
    m.Loaded: ((WORKER,), _loaded),
    m.MarkTaken: ((WORKER,), _mark_taken),
    m.MarkRestored: ((WORKER,), _mark_restored),
    m.PartsPacked: ((WORKER,), _parts_packed),
    m.Health: ((PULSE,), _health),
    m.FileProgress: ((PULSE,), _file_progress),
    m.Watch: ((WATCHER,), _watch),
    m.AskUsage: ((WATCHER,), _ask_usage),
    **dict.fromkeys(ORDERS, ((WATCHER,), _order)),
    m.ExplainSession: ((WATCHER, INQUIRER), _explain_session),
    m.FileCopied: ((STANDBY_ROLE,), _file_copied),
    m.Replaced: ((STANDBY_ROLE,), _replaced),
}
HANDLERS: Final = {
    role: {kind: handler for kind, (roles, handler) in MESSAGES.items() if role in roles} for role in Role
}
"""The same by role."""
QUEUED_HANDLERS: Final[dict[type, Callable[[DispatcherCore, Any, Any], None]]] = {
    m.Ping: _queued_ping,
    m.Goodbye: _leave_queue,
}
"""Of a client whose session waits to begin."""
CLIENT_HANDLERS: Final = HANDLERS[CLIENT]
WORKER_HANDLERS: Final = HANDLERS[WORKER]
