"""The clients' message queues. Each client's messages are processed in order; a message that must wait delays only those of
its own client.

`state/message_state.py` says what becomes of a message; what a run, a put or a fetch does is in `runs.py`, `puts.py` and
`fetches.py`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from gt.bounds import (
    KIB,
    MAX_ALL_DEFINITIONS_BYTES,
    MAX_CONFIG_BYTES,
    MAX_CONTROL_BYTES,
    MAX_PRINCIPAL_DEFINITIONS_BYTES,
    MAX_PRINCIPAL_UNREAD_BYTES,
    MAX_PRINCIPAL_WAITING_BYTES,
    MAX_QUEUED_MESSAGES,
    MAX_SEGMENTS,
    MAX_UNREAD_BYTES,
    MAX_WAITING_BYTES,
    MIB,
)
from gt.dispatcher.jobs.job_scheduler import JOB_NAMES, SERVICE, Job
from gt.dispatcher.session_meshes.session_mesh import SessionMeshes
from gt.dispatcher.session_plans.plan_selection import PlanSelection
from gt.dispatcher.state.events import OWN_MESSAGES, Effects, Loss, Marking, Recovery, Reload, Remesh
from gt.dispatcher.state.message_state import (
    ACTING,
    DONE,
    FAILED,
    PAUSED_MESSAGES,
    QUEUED,
    WAITING_CONFIG,
    WAITING_DEFINITION,
    WAITING_OPERATOR,
    WAITING_READER,
    WAITING_TURN,
    WAITING_WORKERS,
    WAITS,
    MessageState,
    begin,
    enter,
)
from gt.dispatcher.state.principal_limits import equal_part
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.telemetry.usage_reports import usage_now
from gt.dispatcher.telemetry.worker_ops import offers_of
from gt.errors import GTError, ProtocolError
from gt.ir.instruction import Segment
from gt.sharding.config_turns import batches
from gt.sharding.options import check_options
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.faults import Fault, fault_of

from .fetches import FetchHandler
from .memory_survey import MemorySurveys, devices
from .puts import PutHandler
from .recovery import RecoveryHandler
from .refused_instructions import RunnableDefinition, definition_in_turns
from .runs import REDUCED_FROM, RunHandler
from .snapshots import SnapshotHandler
from .why import explain_tensor, tensors_read_by

LEAST_UNREAD_BYTES: Final = 512 * KIB
"""What any client may leave unread, however many sessions its principal has."""
LEAST_HELD_BYTES: Final = MIB
"""What any client may have waiting, and what it may have in definitions, however much its principal has."""
MESSAGES_PER_TURN: Final = 64
"""How many messages of one client are acted on in one event, if they are short."""
WOKEN_PER_TURN: Final = 4
"""The sessions per turn of the job `WAKE`, which lets waiting queues go on after a worker has come or gone."""
WAKE: Final = "queues that may go on"
"""The job that looks at them."""
RELOADS_PER_TURN: Final = 16
"""How many sessions are told in one turn that the service has another config."""
BYTES_PER_MESSAGE: Final = 256
BYTES_PER_ITEM: Final = 40
"""What a message takes while it waits, and each number in its lists, roughly."""
IDS_PER_MESSAGE: Final = 256
"""A message with more ids than this counts as several."""
CANCELLED_FAULT: Final[Fault] = (
    "Cancelled",
    "cancelled from a monitor: what the session had asked for and had not begun is dropped",
)
WORK_MESSAGES: Final = (m.Run, m.Put, m.Fetch, m.WriteSnapshot, m.Restore, m.ConfirmTensors)
"""The messages that are dropped when the work of their client is cancelled."""
PLACED_MESSAGES: Final = (m.Run, m.Put, m.Restore)
"""Those of them that make tensors on the session's mesh."""
_WORK_NAMES: Final[dict[type, str]] = {m.Run: "runs", m.Put: "puts", m.Fetch: "fetches"}
_MAKES_TENSORS: Final = (m.Run, m.Put, m.Restore)
_ID_LISTS: Final = (m.Free, m.WriteSnapshot, m.ConfirmTensors)
_ANSWERED_WORK: Final = (m.Fetch, m.WriteSnapshot, m.ConfirmTensors)
"""Of these messages, those by whose failure a client learns that its work was cancelled; so it does by that of a run which asks
for what it makes."""


class MessageQueues:
    """The queues of all clients."""

    def __init__(
        self, service: DispatcherState, plan_selection: PlanSelection, meshes: SessionMeshes, runs: RunHandler,
        puts: PutHandler, fetches: FetchHandler, surveys: MemorySurveys, snapshots: SnapshotHandler,
        recovery: RecoveryHandler, settle_loss: Callable[[ClientRecord, Loss], MessageState],
        mark: Callable[[ClientRecord, Marking], MessageState],
    ) -> None:  # fmt: skip
        self.service = service
        self.plan_selection = plan_selection
        self.meshes = meshes
        self.runs = runs
        self.puts = puts
        self.fetches = fetches
        self.surveys = surveys
        self.reloads: deque[Reload | Remesh] = deque()
        """What sessions have yet to be told: configs of the service that are to be adopted, and that workers have joined."""
        self.waking: dict[int, ClientRecord] = {}
        """By number, the sessions whose queues may go on, because there are other workers."""
        self.snapshots = snapshots
        self.recovery = recovery
        self.handlers: dict[type, Callable[[ClientRecord, Any], MessageState]] = {
            m.Configure: meshes.configure,
            Reload: meshes.reconfigure,
            Recovery: recovery.recover,
            Loss: settle_loss,
            Marking: mark,
            Effects: runs.take_effect,
            Remesh: meshes.remesh,
            m.Define: self._define,
            m.Drop: self._drop,
            m.Run: runs.run,
            m.Put: puts.put,
            m.Free: self._free,
            m.Fetch: fetches.fetch,
            m.Ask: self._ask,
            m.Options: self._options,
            m.WriteSnapshot: snapshots.snapshot,
            m.Restore: snapshots.restore,
            m.ConfirmTensors: snapshots.confirm,
        }
        """What acts on a message at the head of a queue. It returns DONE, or what the message waits for."""

    def take(self, client: ClientRecord, message: Any) -> None:
        """Queue a client's next message. Raises `ProtocolError` if its stream cannot be trusted any more."""
        queue = client.queue
        if queue:
            if len(queue) >= MAX_QUEUED_MESSAGES:
                raise ProtocolError(f"more than {MAX_QUEUED_MESSAGES} messages waiting: credits were ignored")
            client.waiting_bytes += _bytes(message)
            if client.waiting_bytes > MAX_WAITING_BYTES:
                raise ProtocolError(f"more than {MAX_WAITING_BYTES} bytes waiting: credits were ignored")
            if self._exceeds_part(
                client, client.waiting_bytes, MAX_PRINCIPAL_WAITING_BYTES, lambda each: each.waiting_bytes
            ):
                name = client.program.principal
                raise ProtocolError(f"more than {MAX_PRINCIPAL_WAITING_BYTES} bytes waiting in all sessions of {name}")
            queue.append(message)
            if client.head is WAITING_READER:
                self.pump(client)
        else:
            client.first = message
            queue.append(message)
            begin(client)
            self.pump(client)

    def reload(self, event: Reload | Remesh) -> None:
        """Let a job adopt a new config of the service, or tell that it has other workers; each session follows in its turn."""
        self.reloads.append(event)
        jobs, what = self.plan_selection.jobs, JOB_NAMES[WAITING_CONFIG]
        if not jobs.has(SERVICE, what):
            jobs.add(Job(SERVICE, SERVICE, what, self._adopt(), lambda _: None))

    def remesh(self, why: str) -> None:
        """Tell sessions whose meshes grow and shrink with the service that it has other workers, each in its turn."""
        if any(_is_elastic(client) for client in self.service.clients.values()):
            self.reload(Remesh(why))

    def _adopt(self) -> Iterator[None]:
        """Adopts the new configs of the service, one after the other, and tells sessions of them and of new workers."""
        while self.reloads:
            event = self.reloads.popleft()
            if isinstance(event, Reload) and not (yield from self.meshes.requests.adopt(event.config)):
                continue
            for few in batches([*self.service.clients.values()], RELOADS_PER_TURN):
                for client in (each for each in few if self.service.clients.get(each.identity) is each):
                    if isinstance(event, Reload) or _is_elastic(client):
                        self.enqueue(client, event)
                yield

    def enqueue(self, client: ClientRecord, message: Reload | Remesh) -> None:
        """Put a message that no client sent at the end of a client's queue."""
        client.queue.append(message)
        if len(client.queue) == 1 and not client.recovery.awaited:
            begin(client)
            self.pump(client)

    def wake_all(self) -> None:
        """There are other workers: let a job process the queues of all clients as far as possible, in turns."""
        clients = self.service.clients.values()
        self.wake(each for each in clients if each.queue or each.recovery.begins)

    def wake(self, clients: Iterable[ClientRecord]) -> None:
        """Let a job process the queues of some clients as far as possible, in turns."""
        self.waking.update((each.number, each) for each in clients)
        jobs = self.plan_selection.jobs
        if self.waking and not jobs.has(SERVICE, WAKE):
            jobs.add(Job(SERVICE, SERVICE, WAKE, self._wake(), lambda _: None))

    def _wake(self) -> Iterator[None]:
        """Goes on with the sessions that have waited for other workers."""
        while self.waking:
            for number in [*islice(self.waking, WOKEN_PER_TURN)]:
                client = self.waking.pop(number)
                if self.service.by_number.get(number) is client:
                    self.recovery.begin_again(client)
                    self.pump(client)
            yield

    def pump(self, client: ClientRecord) -> None:
        """Process a client's queue, in order, as far as possible and as far as one turn goes; a job goes on with the rest."""
        queue = client.queue
        left = MESSAGES_PER_TURN
        if queue and self._rests(client):
            self._pause(client)
            return
        while (
            queue and self.service.clients.get(client.identity) is client and client.identity not in self.service.ending
        ):
            message = queue[0]
            if left <= 0:
                self._pause(client)
                return
            left -= _weight(client, message)
            if isinstance(message, WORK_MESSAGES) and (client.dropping or client.cancelled):
                client.cancelled = client.cancelled and not _is_answered(message)
                self._cancel(client, message)
            elif client.displaced and client.fault is None and isinstance(message, PLACED_MESSAGES):
                queue.appendleft(Remesh("a worker was lost"))
                begin(client)
                continue
            elif self._act(client, message) in WAITS:
                return
            self._over(client, message)
            if client.recovery.held_up:
                self.recovery.marks.take(client)
            if queue:
                begin(client)
            if client.recovery.updating and isinstance(message, _MAKES_TENSORS):
                self.recovery.marks.made_tensors(client, message)

    def _rests(self, client: ClientRecord) -> bool:
        """Whether a client's principal has used more than its share of the dispatcher's thread. A turn to release plans is
        taken all the same."""
        service = self.service
        turn = service.pacer.turn
        return service.thread.rests(client.program.principal, service.now) and (
            turn is None or turn.number != client.number
        )

    def _over(self, client: ClientRecord, message: Any) -> None:
        """Take a message that is over from the head of a client's queue."""
        client.queue.popleft()
        client.recovery.over += not isinstance(message, OWN_MESSAGES)
        client.dropping -= client.dropping > 0
        if client.waiting_bytes and message is not client.first:
            client.waiting_bytes -= _bytes(message)

    def _pause(self, client: ClientRecord) -> None:
        """Let a job go on with the message that has come to the head of a client's queue: others take their turns first."""
        jobs, what = self.plan_selection.jobs, JOB_NAMES[WAITING_TURN]
        if client.head is QUEUED:
            enter(client, WAITING_TURN)
        if not jobs.has(client.number, what):
            jobs.add(Job(client.program, client.number, what, iter(()), lambda _: None))

    def _act(self, client: ClientRecord, message: Any) -> MessageState:
        """Act on the message at the head of a client's queue. Returns its state then."""
        enter(client, ACTING)
        if not self.reads(client):
            enter(client, WAITING_READER)
            return WAITING_READER
        if client.paused and isinstance(message, PAUSED_MESSAGES):
            enter(client, WAITING_OPERATOR)
            return WAITING_OPERATOR
        try:
            state = self.handlers[type(message)](client, message)
        except GTError as error:
            self._fail(client, message, fault_of(error))
            state = FAILED
        except Exception as error:  # noqa: BLE001 — a bug, whatever it is: it ends this client's session, and no other
            self.service.end_session(client.identity, f"a {type(message).__name__}", error, client.number)
            state = FAILED
        enter(client, state)
        return state

    def reads(self, client: ClientRecord) -> bool:
        """Whether a client has read so much of what it has asked for that it may be sent more."""
        unread = client.asked_bytes + client.unread_bytes
        if unread <= LEAST_UNREAD_BYTES:
            return True
        principal = client.program.principal
        sessions = sum(each.program.principal == principal for each in self.service.clients.values())
        return unread <= equal_part(MAX_UNREAD_BYTES, MAX_PRINCIPAL_UNREAD_BYTES, sessions)

    def _exceeds_part(
        self, client: ClientRecord, held: int, most: int, each_has: Callable[[ClientRecord], int]
    ) -> bool:
        """Whether a client's `held` bytes are more than its equal part of `most`, and its principal holds more than `most`."""
        if held <= LEAST_HELD_BYTES:
            return False
        principal = client.program.principal
        clients = self.service.clients.values()
        others = [each_has(each) for each in clients if each.program.principal == principal and each is not client]
        return held + sum(others) > most and held > most // (1 + len(others))

    def _cancel(self, client: ClientRecord, message: Any) -> None:
        """Fail the message at the head of a client's queue, as its work is cancelled."""
        enter(client, ACTING)
        self._fail(client, message, CANCELLED_FAULT)
        enter(client, FAILED)

    def check(self) -> None:
        """The invariants between events: a message at the head of a queue waits, and something will end the wait."""
        for client in self.service.clients.values():
            assert (client.head in WAITS) == bool(client.queue), "between events a message waits or is over"
            if client.queue:
                message, state = client.queue[0], client.head
                assert isinstance(message, WAITS[state].messages), f"a {type(message).__name__} is {state}"
                assert self._waits(client, message), f"nothing keeps a message {state}"

    def _waits(self, client: ClientRecord, message: Any) -> bool:
        """Whether the condition holds in which a message is in its client's state."""
        service, jobs, admission = self.service, self.plan_selection.jobs, self.plan_selection.admission
        mesh = None if client.mesh is None else service.meshes[client.mesh.number]
        landing = any(entry.landing for entry in client.table.values())
        if client.number in self.waking or client.undecided:
            return True  # it is looked at anew in its turn
        waiting: dict[MessageState, Container[int]] = {
            MessageState.WAITING_SHARE: service.pacer.waiting, MessageState.WAITING_RATE: service.rates.waits,
            MessageState.WAITING_ANSWERS: self.fetches.of, MessageState.WAITING_COMPILATION: admission.waiting,
        }  # fmt: skip
        if client.head in waiting:
            return client.number in waiting[client.head]
        match client.head:
            case MessageState.WAITING_READER:
                return client.asked_bytes + client.unread_bytes > 0
            case MessageState.WAITING_WORKERS:
                return service.is_gathering
            case MessageState.WAITING_PUT:
                return any(client.table[tensor].landing for tensor in tensors_read_by(message))
            case MessageState.WAITING_CREDIT:
                return mesh is not None and bool(mesh.pending)
            case MessageState.WAITING_OPERATOR:
                return client.paused
            case MessageState.WAITING_IDLE:
                return landing or (mesh is not None and bool(mesh.pending))
            case MessageState.WAITING_MIGRATION:
                return client.moving is not None
            case MessageState.WAITING_MARK:
                return client.recovery.due and landing
            case MessageState.WAITING_RESTORE:
                return bool(client.recovery.restoring)
        return jobs.has(client.number, JOB_NAMES[client.head])

    def _fail(self, client: ClientRecord, message: Any, fault: Fault) -> None:
        """Note that a message failed; whatever it would have created inherits the fault."""
        if self.service.recording is not None:
            self.service.recording.failed(t.DISPATCHER, client.number, -1, *fault)
        if isinstance(message, m.Run):
            self.runs.poison(client, message, fault)
        elif isinstance(message, m.Put):
            self.puts.fail(client, message, fault)
        elif isinstance(message, m.Restore):
            self.snapshots.fail_restore(client, message, fault)
        elif isinstance(message, (m.Fetch, m.Ask, m.Configure, m.WriteSnapshot, m.ConfirmTensors)):
            self.service.send(client.identity, m.Failed(message.request, *fault))
            if isinstance(message, m.Configure):
                client.change = client.survey = None
        elif isinstance(message, Reload):
            client.change = client.survey = None
            text = f"client {client.number} stays with the config that it had: {fault[1]}"
            self.service.log("warning", text, "reload", client.number)
        elif isinstance(message, Remesh):
            client.survey = None
            client.stays = fault[1]
            if client.displaced:
                client.fault = fault
            text = f"client {client.number} stays on the workers that it has: {fault[1]}"
            self.service.log("warning", text, "remesh", client.number)
        else:
            self.service.send(client.identity, m.Failed(0, *fault))

    def cancel(self, client: ClientRecord) -> dict[str, int]:
        """Drop what a client asked for and was not issued. Returns how many messages of each kind.

        What workers already have runs to its end, and its results stay valid. The client learns of it by its fetches: the
        waiting ones fail, or else its next one. A long queue is emptied in turns.
        """
        counts = Counter(map(type, client.queue))
        dropped = {name: counts[kind] for kind, name in _WORK_NAMES.items()}
        dropped["fetches"] += sum(isinstance(each, m.Run) and bool(each.fetch) for each in client.queue)
        dropped["fetches"] += self.fetches.fail(client, CANCELLED_FAULT)
        client.dropping = len(client.queue)
        client.cancelled = not dropped["fetches"]
        what = ", ".join(f"{count} {what}" for what, count in dropped.items())
        text = f"client {client.number} was cancelled from a monitor: {what} dropped"
        self.service.log("warning", text, "cancelled", client.number)
        self.pump(client)
        return dropped

    def explain_tensor(self, client: ClientRecord, ask: m.Ask) -> None:
        """Answer a question why at once: what holds up the queue may be what it asks."""
        try:
            answer: m.Message = m.Answer(ask.request, explain_tensor(self.service, client, ask.topic))
        except ProtocolError as error:
            answer = m.Failed(ask.request, *fault_of(error))
        self.service.send(client.identity, answer)

    def _free(self, client: ClientRecord, message: m.Free) -> MessageState:
        self.runs.free(client, message.tensors)
        return DONE

    def _ask(self, client: ClientRecord, message: m.Ask) -> MessageState:
        """Answer a question about the service."""
        if message.topic.startswith("why "):  # of a client that reads too little for an answer at once
            self.explain_tensor(client, message)
            return DONE
        if message.topic == "memory":
            return self.surveys.ask(client, message.request)
        if message.topic == "snapshots" or message.topic.startswith("snapshot "):
            return self.snapshots.look(client, message.request, message.topic[len("snapshot ") :])
        if message.topic == "published" or message.topic.startswith(("published ", "revoke ")):
            return self.snapshots.look_at_published(client, message)
        if message.topic == "devices":
            if not self.service.ready(client):
                return WAITING_WORKERS
            answer = devices(self.service)
        elif message.topic == "ops":
            if not self.service.ready(client):
                return WAITING_WORKERS
            answer = offers_of(self.service)
        elif message.topic == "usage":
            key, principal = ("usage", message.request), client.account.principal
            answer = self.plan_selection.worked_out(
                client, JOB_NAMES[WAITING_TURN], key, lambda: usage_now(self.service, principal)
            )
            if answer is None:
                return WAITING_TURN
            if isinstance(answer, Exception):
                raise answer
        else:
            answer = self.service.statistics(client)
        self.service.send(client.identity, m.Answer(message.request, answer))
        return DONE

    def _options(self, client: ClientRecord, message: m.Options) -> MessageState:
        said = check_options(message.values)  # of which some are the client's own
        client.verify = said.get("verify", client.verify)
        if said.get("tf32", client.tf32) != client.tf32:
            client.tf32 = not client.tf32
            self.plan_selection.drop_plans(client)
        return DONE

    def _define(self, client: ClientRecord, message: m.Define) -> MessageState:
        """Let a job read a definition."""
        _check_definition(client, message)
        held = client.recovery.definition_bytes + len(message.body)
        if self._exceeds_part(
            client, held, MAX_PRINCIPAL_DEFINITIONS_BYTES, lambda each: each.recovery.definition_bytes
        ):
            name = client.program.principal
            raise ProtocolError(
                f"more than {MAX_PRINCIPAL_DEFINITIONS_BYTES} bytes of definitions in all sessions of {name}"
            )
        body, key = message.body, ("definition", message.segment)
        found = self.plan_selection.worked_out(
            client, JOB_NAMES[WAITING_DEFINITION], key, lambda: definition_in_turns(body)
        )
        if found is None:
            return WAITING_DEFINITION
        client.recovery.note_definition(message.segment, len(message.body))
        self._defined(client, message, found)
        return DONE

    def _defined(self, client: ClientRecord, message: m.Define, found: RunnableDefinition | Exception) -> None:
        """A definition was read, except instructions that are not legal, or failed as a whole with this error."""
        if isinstance(found, Exception):
            if not isinstance(found, GTError):
                found = ProtocolError(self.service.internal_error("a definition", found, client.number))
            client.segments[message.segment] = fault_of(found)
            self._refused(client, f"refused a definition of client {client.number}: {found}")
            return
        client.segments[message.segment] = found.segment
        if found.segment.updates:
            client.recovery.updating.add(message.segment)
        if self.service.recording is not None:
            self.service.recording.defined(client)
        if found.refused:
            client.refused[message.segment] = found.refused
        if found.errors:
            some = f"{len(found.errors)} instruction{'s' if len(found.errors) > 1 else ''}"
            first = f"{', the first' if len(found.errors) > 1 else ''}: {found.errors[0]}"
            self._refused(client, f"refused {some} of a definition of client {client.number}{first}")

    def _refused(self, client: ClientRecord, text: str) -> None:
        """Count and log a definition that was refused, or parts of it."""
        self.service.counters.refused += 1
        self.service.log("warning", text, "refused", client.number)

    def _drop(self, client: ClientRecord, message: m.Drop) -> MessageState:
        client.recovery.note_definition(message.segment, 0)
        reduced = client.reduced.pop(message.segment, None)
        for number in (message.segment, *([reduced.number] if reduced else [])):
            self.service.dispose_work([client.segments.pop(number)] if number in client.segments else ())
            client.refused.pop(number, None)
            self.plan_selection.drop_segment(client, number)
        return DONE


def _is_answered(message: Any) -> bool:
    """Whether a client learns by the failure of a message that its work was cancelled."""
    return isinstance(message, _ANSWERED_WORK) or (isinstance(message, m.Run) and bool(message.fetch))


def _is_elastic(client: ClientRecord) -> bool:
    """Whether a session's mesh grows and shrinks with the workers of the service, or waits for enough of them."""
    if client.planner is None:
        return False
    return client.displaced or (client.config is not None and client.config.is_elastic)


def _check_definition(client: ClientRecord, message: m.Define) -> None:
    number = message.segment
    if number >= REDUCED_FROM:
        raise ProtocolError(f"numbers of segments lie below {REDUCED_FROM}")
    if number in client.segments:
        raise ProtocolError(f"segment {number} is defined already")
    if len(client.segments) >= MAX_SEGMENTS:
        raise ProtocolError(f"more than {MAX_SEGMENTS} definitions in one session")
    if client.recovery.definition_bytes + len(message.body) > MAX_ALL_DEFINITIONS_BYTES:
        raise ProtocolError(f"more than {MAX_ALL_DEFINITIONS_BYTES} bytes of definitions in one session")


def _bytes(message: Any) -> int:
    """About how many bytes a waiting message takes."""
    if isinstance(message, OWN_MESSAGES):
        return 0
    if isinstance(message, m.Put):
        return BYTES_PER_MESSAGE + len(message.data)
    if isinstance(message, m.Define):
        return BYTES_PER_MESSAGE + len(message.body)
    if isinstance(message, m.Run):
        items = len(message.inputs) + len(message.scalars) + len(message.dying) + len(message.freed)
        return BYTES_PER_MESSAGE + BYTES_PER_ITEM * items
    if isinstance(message, m.Configure):
        return MAX_CONFIG_BYTES
    if isinstance(message, (m.Options, m.Ask, m.Restore)):
        return MAX_CONTROL_BYTES
    body = len(message.body) if isinstance(message, m.WriteSnapshot) else 0
    return BYTES_PER_MESSAGE + body + BYTES_PER_ITEM * (len(message.tensors) if isinstance(message, _ID_LISTS) else 0)


def _weight(client: ClientRecord, message: Any) -> int:
    """For how many short messages a message counts."""
    if isinstance(message, m.Run):
        segment = client.segments.get(message.segment)
        made = len(segment.survivors) if type(segment) is Segment else 0
        return 1 + (len(message.inputs) + len(message.freed) + made) // IDS_PER_MESSAGE
    if isinstance(message, (m.Configure, Reload, Remesh)):
        return MESSAGES_PER_TURN
    return 1 + (len(message.tensors) // IDS_PER_MESSAGE if isinstance(message, _ID_LISTS) else 0)
