"""The dispatcher as a state machine: events in, sends out. No socket, clock, thread or environment in here.

    client ──Define/Run/Put/Free/Fetch──▶ queue ──in order──▶ issue ──Execute/Store/Release/Collect──▶ mesh
    client ◀──Credit/Cut/Value/Failed────────────────────────────── ◀──Done/Landed/Part/Poisoned───── worker

What holds, always:

* A client's messages are acted on in the order it sent them. One that cannot be acted on yet (no worker has joined, a
  mesh has no credit, a put it reads has not landed) holds up what that client sent after it, nobody else.
* Every plan gets the next number of one global order and goes to all members of its mesh in one step, or to none. So the
  workers see subsequences of one order, and collectives inside plans cannot deadlock.
* A tensor without a value has a fault instead, and whatever is computed from it inherits the fault.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gt import messages as m
from gt import telemetry as t
from gt.errors import DTypeError, GTError, ProtocolError, ShapeError
from gt.instruction import unpack_segment
from gt.messages import Fault, fault_of
from gt.options import check_options

from .cost import Link, rounded
from .directory import Client, Worker
from .events import Event, Lost, Malformed, Publish, Received, Reload, Send, Work
from .fetching import Fetches
from .meshes import Meshes
from .preparing import Preparing
from .putting import Puts
from .running import Runs, dead
from .service import MESH_CREDITS, Service
from .surveys import Surveys, devices
from .waiting import why
from .watching import Watcher, Watching

if TYPE_CHECKING:
    from gt.config import Config

CLIENT_CREDITS: Final = 64
"""Runs and puts that a client may have sent and not have been credited for."""
MAX_QUEUE: Final = 1 << 18
"""Messages of one client that may wait here; a client that keeps to its credits never comes near."""
MAX_CLIENTS: Final = 1024
"""Sessions at one time; so what workers have before them is bounded too."""
MAX_SEGMENTS: Final = 1 << 14
"""Definitions of one session; a client drops its own long before."""
MAX_WAITING: Final = 1 << 28
"""Bytes of one client's puts that may wait here, besides one that may be as large as a frame."""
CANCELLED: Final[Fault] = (
    "Cancelled",
    "cancelled from a monitor: what the session had asked for and had not begun is dropped",
)
WORKER_TIMEOUT: Final = 10.0
"""Seconds without a sign of life after which a worker counts as lost."""
MAX_ENDED: Final = 4096
"""Ended processes that are remembered."""
CLIENT_TIMEOUT: Final = 60.0
"""The same for a client whose process cannot be watched."""
JOIN_TIMEOUT: Final = 30.0
"""Seconds that a client's first tensor waits for the workers to join."""


class Core:
    """One dispatcher. `workers_expected`: how many must have joined before the first tensor is placed. `boot` says which
    workers have its clock, `capabilities` what watchers may ask for ('cancel')."""

    def __init__(
        self, *, config: Config | None = None, workers_expected: int = 1, facts: dict[str, Any] | None = None,
        log: Callable[..., None] = lambda level, text, **about: None, boot: str = "", capabilities: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.facts = {**(facts or {}), "capabilities": list(capabilities)}
        self.service = Service(config, workers_expected, log)
        self.watching = Watching(self.service, boot)
        self.prepared = Preparing(self.service)
        self.meshes = Meshes(self.service, self.prepared)
        self.runs = Runs(self.service, self.meshes, self.prepared)
        self.puts = Puts(self.service, self.meshes)
        self.fetches = Fetches(self.service)
        self.surveys = Surveys(self.service)
        self.numbers = itertools.count(1)
        self.worker_numbers = itertools.count()
        self.started: float | None = None
        self.confused: set[bytes] = set()
        self.ended: dict[bytes, None] = {}
        """Those whose processes are no more, lately."""
        self.pulses: dict[bytes, Worker] = {}
        """Connections that only say that some worker lives."""

    def handle(self, event: Event, now: float) -> list[Send]:
        """Act on one event; the messages to send, in order."""
        self.service.now = now
        if self.started is None:
            self.started = now
            self.watching.started = int(now * 1e9)
        if isinstance(event, Received):
            self._received(event, now)
        elif isinstance(event, Malformed):
            self._refuse(event.peer, event.reason)
        elif isinstance(event, Lost):
            if event.ended:
                self._ended(event.peer)
            self._lost(event.peer, event.reason)
        elif isinstance(event, Reload):
            self._reload(event)
        elif isinstance(event, Publish):
            self.watching.publish(event.wall)
        elif isinstance(event, Work):
            client = self.prepared.work()
            if client is not None:
                self._pump(client)
        else:
            self._tick(now)
        out, self.service.out = self.service.out, []
        return out

    @property
    def busy(self) -> bool:
        """Whether there is something to do when nothing has come: an event `Work` does a little of it."""
        return bool(self.prepared.jobs)

    @property
    def peers(self) -> Iterator[bytes]:
        """All who are told that this dispatcher lives."""
        return itertools.chain(self.service.clients, self.service.workers, self.watching.watchers)

    def knows(self, peer: bytes) -> bool:
        """Whether a peer is one of them."""
        return peer in self.service.clients or peer in self.service.workers or peer in self.watching.watchers

    def check(self) -> None:
        """The invariants between events."""
        self.watching.check()
        for client in self.service.clients.values():
            assert self.service.by_number[client.number] is client
            assert client.credited + len(client.inflight) <= client.arrived
            for entry in client.table.values():
                assert entry.fault is not None or entry.mesh in self.service.meshes, (
                    "a tensor is somewhere or has a fault"
                )
        for record in self.service.meshes.values():
            numbers = {worker.number for worker in self.service.workers.values()}
            assert record.fault or set(record.mesh.members) <= numbers, "a sound mesh has all its members"
            assert record.client in self.service.by_number, "a mesh is somebody's"
            assert len(record.pending) <= MESH_CREDITS
            assert all(self.service.issued[order] is record for order in record.pending)
            if record.pending:
                assert record.lagging == sum(last < record.pending[0] for last in record.done.values()) > 0
        assert len(self.service.issued) == sum(len(record.pending) for record in self.service.meshes.values())

    def _refuse(self, peer: bytes, reason: str) -> None:
        """Answer nonsense once, count it, and end the session of a peer whose stream can no longer be trusted."""
        self.service.counters.refused += 1
        if peer not in self.confused:
            if len(self.confused) > 10_000:
                self.confused.clear()
            self.confused.add(peer)
            self.service.log("warning", f"refused a message: {reason}", "refused")
            if self.service.recording is not None:
                self.service.recording.failed(t.DISPATCHER, -1, -1, "ProtocolError", reason)
        self.service.send(peer, m.Goodbye("ProtocolError", f"{reason}; start afresh with Hello"))
        if self.knows(peer):
            self._lost(peer, f"it broke the protocol: {reason}")

    def _received(self, event: Received, now: float) -> None:
        peer, number, message = event
        if isinstance(message, m.Hello):
            self._hello(peer, message, now)
            return
        client, worker = self.service.clients.get(peer), self.service.workers.get(peer)
        watcher = None if client or worker else self.watching.watchers.get(peer)
        known = client or worker or watcher
        if known is None and peer in self.pulses:
            self.pulses[peer].heard = now
            return
        if known is None:
            if not isinstance(message, m.Goodbye) and peer not in self.ended:
                self._refuse(peer, f"{type(message).__name__} before Hello")
            return
        known.expected += 1
        if number != known.expected:
            self._refuse(peer, f"message {number} where {known.expected} was due")
        elif worker is not None:
            worker.heard = now
            self._from_worker(worker, message)
        elif client is not None:
            client.heard = now
            self._from_client(client, message, now)
        elif watcher is not None:
            watcher.heard = now
            self._from_watcher(watcher, message)

    def _from_watcher(self, watcher: Watcher, message: Any) -> None:
        if isinstance(message, m.Watch):
            try:
                self.watching.hear(watcher, message)
            except ProtocolError as error:
                self._refuse(watcher.identity, str(error))
        elif isinstance(message, m.Cancel):
            self.service.send(watcher.identity, self._cancel(message))
        elif isinstance(message, m.Goodbye):
            self.watching.leave(watcher.identity)
        elif not isinstance(message, m.FROM_WATCHER):
            self._refuse(watcher.identity, f"{type(message).__name__} from a watcher")

    def _hello(self, peer: bytes, hello: m.Hello, now: float) -> None:
        if hello.version != m.VERSION:
            self.service.send(
                peer, m.Goodbye("ProtocolError", f"this dispatcher speaks protocol {m.VERSION}, not {hello.version}")
            )
        elif self.knows(peer):
            self._refuse(peer, "a second Hello")
        elif hello.role == "client" and len(self.service.clients) >= MAX_CLIENTS:
            text = f"this service has {MAX_CLIENTS} sessions, and no room for another; try again when one has ended"
            self.service.send(peer, m.Goodbye("SessionError", text))
        elif hello.role == "client":
            number = next(self.numbers)
            bulk = hello.facts.get("bulk", b"")
            if not isinstance(bulk, bytes):
                self._refuse(peer, "a bulk identity is bytes")
                return
            client = Client(peer, number, hello.facts, bulk, heard=now)
            self.service.clients[peer] = self.service.by_number[number] = client
            facts = {**self.facts, "workers": len(self.service.workers), "credits": CLIENT_CREDITS}
            self.service.send(peer, m.Welcome(number, facts))
            self.service.log("info", f"client {number} joined", client=number)
            if self.service.recording is not None:
                self.service.recording.client_joined(client)
        elif hello.role == "worker":
            self._worker_joins(peer, hello, now)
        elif hello.role == "watcher":
            try:
                self.watching.join(peer, hello.facts, now)
            except ProtocolError as error:
                self.service.send(peer, m.Goodbye("SessionError", str(error)))
            else:
                self.service.send(peer, m.Welcome(0, self.facts))
        elif hello.role == "pulse":
            address = str(hello.facts.get("address"))
            found = next((worker for worker in self.service.workers.values() if worker.address == address), None)
            if found is None:
                self._refuse(peer, "a pulse of no worker")
                return
            self.service.send(peer, m.Welcome(0, {}))
            self.pulses = {pulse: other for pulse, other in self.pulses.items() if other is not found}
            self.pulses[peer] = found
        else:
            self._refuse(peer, f"no role {hello.role[:20]!r}")

    def _worker_joins(self, peer: bytes, hello: m.Hello, now: float) -> None:
        address, bulk = hello.facts.get("address"), hello.facts.get("bulk", b"")
        if not isinstance(address, str) or not isinstance(bulk, bytes):
            self._refuse(peer, "a worker says its address and bulk identity")
            return
        number = next(self.worker_numbers)  # never given twice: peers remember whom they lost by its number
        hosts = {str(worker.facts.get("host")): worker for worker in self.service.workers.values()}
        hosts.pop(str(hello.facts.get("host")), None)
        far = list(hosts.values())  # one for each other host: their links are alike
        worker = self.service.workers[peer] = Worker(peer, number, hello.facts, address, bulk, heard=now)
        self.service.send(peer, m.Welcome(number, self.facts))
        if self.service.recording is not None:
            self.service.recording.worker_joined(worker)
            self.watching.tell(worker)
        if far:
            self.service.send(peer, m.Meet([worker.number for worker in far], [worker.address for worker in far]))
            self.service.out.append(Send(tuple(worker.identity for worker in far), m.Meet([number], [address])))
        if len(self.service.workers) >= self.service.workers_expected:
            self.service.workers_expected = 0  # they were all here once; who is lost later is not waited for
        self.service.log(
            "info", f"worker {number} joined ({hello.facts.get('device', 'unknown device')})", worker=number
        )
        self._pump_all(now)

    def _ended(self, peer: bytes) -> None:
        """A process is no more: what it had sent and was not read is to be passed over, from all its connections."""
        self.ended |= dict.fromkeys([peer, *[p for p, worker in self.pulses.items() if worker.identity == peer]])
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]

    def _lost(self, peer: bytes, reason: str) -> None:
        self.watching.leave(peer)
        client = self.service.clients.pop(peer, None)
        if client is not None:
            self._forget(client)
            if self.service.recording is not None:
                self.service.recording.client_left(client, reason)
            self.service.log("info", f"client {client.number} left: {reason}", client=client.number)
        worker = self.service.workers.pop(peer, None)
        if worker is not None:
            self.pulses = {pulse: other for pulse, other in self.pulses.items() if other is not worker}
            self.service.log("warning", f"worker {worker.number} was lost: {reason}", worker=worker.number)
            self.watching.forget(worker)
            self.surveys.lost(worker)
            if self.service.recording is not None:
                self.service.recording.worker_lost(worker, reason)
            self._worker_lost(worker, reason)

    def _forget(self, client: Client) -> None:
        del self.service.by_number[client.number]
        self.service.counters.plan_hits += client.hits
        self.service.counters.plans_improved += client.improved
        self.fetches.forget(client)
        self._leave(client)

    def _leave(self, client: Client) -> None:
        """Whatever a client has on workers is forgotten, with its plans and meshes; what was under way counts as done."""
        client.plans.clear()
        client.planner = client.moving = None
        for record in [record for record in self.service.meshes.values() if record.client == client.number]:
            self.service.multicast(record.mesh, m.Forget(client.number))
            for plan in record.plans:
                self.service.multicast(record.mesh, m.DropPlan(plan))
            self.service.drop_mesh(record)

    def _worker_lost(self, worker: Worker, reason: str) -> None:
        fault: Fault = ("WorkerLost", f"worker {worker.number} was lost ({reason}); what it held is gone")
        if self.service.workers:  # all of them: one may wait in a plan of a mesh that is dropped already
            self.service.out.append(Send(tuple(self.service.workers), m.PeerLost(worker.number, fault[1])))
        touched = [record for record in self.service.meshes.values() if worker.number in record.done]
        for record in touched:
            record.fault = fault
            record.workers.remove(worker)
            record.identities = tuple(other.identity for other in record.workers)
        broken = [self.service.by_number[number] for number in dict.fromkeys(record.client for record in touched)]
        self.fetches.lost(worker, {client.number for client in broken}, fault)
        for client in broken:
            for tensor, entry in client.table.items():
                client.table[tensor] = replace(entry, fault=entry.fault or fault, landing=frozenset())
            self.service.send(client.identity, m.PeerLost(worker.number, fault[1]))
            self._leave(client)
            if client.config is not None and client.config.mesh is not None:
                client.fault = (fault[0], f"{fault[1]}; the session's mesh ({client.config.mesh_where}) no longer fits")
            self.service.credit(client)
        for client in list(self.service.clients.values()):  # only now: whoever waited for it must find the mesh gone
            self._pump(client)

    def _tick(self, now: float) -> None:
        for peer in self.watching.late(now):
            self.watching.leave(peer)
        for worker in list(self.service.workers.values()):
            if now - worker.heard > WORKER_TIMEOUT:
                self._lost(worker.identity, f"no sign of life for {WORKER_TIMEOUT:.0f} s")
        for client in list(self.service.clients.values()):
            if now - client.heard > CLIENT_TIMEOUT and not client.facts.get("watched"):
                self._lost(client.identity, f"no sign of life for {CLIENT_TIMEOUT:.0f} s")
        if (
            self.started is not None
            and len(self.service.workers) < self.service.workers_expected
            and now - self.started > JOIN_TIMEOUT
        ):
            self.service.log(
                "error",
                f"{len(self.service.workers)} of {self.service.workers_expected} workers joined in {JOIN_TIMEOUT:.0f} s",
            )
            self.service.workers_expected = 0
            self._pump_all(now)

    def _pump_all(self, now: float) -> None:
        for client in list(self.service.clients.values()):
            self._pump(client)

    def _from_client(self, client: Client, message: Any, now: float) -> None:
        if isinstance(message, (m.Ping, m.Welcome)):
            return
        if isinstance(message, m.Goodbye):
            self._lost(client.identity, "it said goodbye")
        elif not isinstance(message, m.FROM_CLIENT):
            self._refuse(client.identity, f"{type(message).__name__} from a client")
        elif isinstance(message, m.Ask) and message.topic.startswith("why "):
            self._why(client, message)  # what holds up the queue may be the question
        elif len(client.queue) >= MAX_QUEUE:
            self._refuse(client.identity, f"more than {MAX_QUEUE} messages waiting: credits were ignored")
        elif client.queue and isinstance(message, m.Put) and _waiting(client) + len(message.data) > MAX_WAITING:
            self._refuse(client.identity, f"more than {MAX_WAITING} bytes waiting: credits were ignored")
        else:
            client.queue.append(message)
            if len(client.queue) == 1:
                self._pump(client)

    def _why(self, client: Client, ask: m.Ask) -> None:
        try:
            answer: m.Message = m.Answer(ask.request, why(self.service, self.prepared, client, ask.topic))
        except ProtocolError as error:
            answer = m.Failed(ask.request, *fault_of(error))
        self.service.send(client.identity, answer)

    def _pump(self, client: Client) -> None:
        """Act on what the client sent, in order, as far as it goes."""
        queue = client.queue
        while queue and client.identity in self.service.clients:
            message = queue[0]
            try:
                if client.cancelled and isinstance(message, (m.Run, m.Put, m.Fetch)):
                    client.cancelled = not isinstance(message, m.Fetch)
                    raise m.error_of(*CANCELLED)
                if not self._act(client, message):
                    return
            except GTError as error:
                self._fail(client, message, fault_of(error))
            if queue and queue[0] is message:
                queue.popleft()

    def _act(self, client: Client, message: Any) -> bool:
        """Act on one message of a client; False if it must wait."""
        if isinstance(message, m.Run):
            return self.runs.run(client, message)
        if isinstance(message, m.Put):
            return self.puts.put(client, message)
        if isinstance(message, m.Free):
            self.runs.free(client, message.tensors)
        elif isinstance(message, m.Fetch):
            return self.fetches.fetch(client, message)
        elif isinstance(message, m.Define):
            self._define(client, message)
        elif isinstance(message, m.Drop):
            self._drop(client, message.segment)
        elif isinstance(message, m.Configure):
            return self.meshes.configure(client, message)
        elif isinstance(message, Reload):
            return self.meshes.reconfigure(client)
        elif isinstance(message, m.Options):
            self._options(client, message.values)
        elif isinstance(message, m.Ask) and message.topic == "memory":
            return self.surveys.ask(client, message.request)
        elif isinstance(message, m.Ask) and message.topic == "devices":
            if not self.service.ready():
                return False
            self.service.send(client.identity, m.Answer(message.request, devices(self.service)))
        elif isinstance(message, m.Ask):
            self.service.send(client.identity, m.Answer(message.request, self.service.statistics(client)))
        return True

    def _fail(self, client: Client, message: Any, fault: Fault) -> None:
        """Say that a message could not be acted on; what it would have made inherits the fault."""
        if self.service.recording is not None:
            self.service.recording.failed(t.DISPATCHER, client.number, -1, *fault)
        if isinstance(message, m.Run):
            segment = client.segments.get(message.segment)
            client.arrived += 1
            if segment is not None and not isinstance(segment, tuple):
                self.runs.poison(client, message, segment, fault)
            else:
                self.service.send(client.identity, m.Failed(0, *fault))
                self.runs.free(client, dead(message))
            self.service.credit(client)
        elif isinstance(message, m.Put):
            self.puts.fail(client, message, fault)
        elif isinstance(message, (m.Fetch, m.Ask, m.Configure)):
            self.service.send(client.identity, m.Failed(message.request, *fault))
        elif isinstance(message, Reload):
            self.service.log(
                "warning",
                f"client {client.number} stays with the config that it had: {fault[1]}",
                "reload",
                client.number,
            )
        else:
            self.service.send(client.identity, m.Failed(0, *fault))

    def _cancel(self, cancel: m.Cancel) -> m.Message:
        """Drop what a client asked for and was not issued; what to answer. What workers have before them runs to its end, and
        is sound. The client is told by its fetches: those that wait, or else its next one."""
        client = self.service.by_number.get(cancel.client)
        if "cancel" not in self.facts["capabilities"]:
            text = "this service is only watched: work is cancelled at a Unix socket (ipc://), which its user alone reaches"
            return m.Failed(cancel.request, "SessionError", text)
        if client is None:
            return m.Failed(cancel.request, "SessionError", f"client {cancel.client} is not there (any more)")
        dropped = {"runs": 0, "puts": 0, "fetches": self.fetches.fail(client, CANCELLED)}
        waiting, client.queue = client.queue, deque()
        for message in waiting:
            if isinstance(message, (m.Configure, Reload)):
                client.queue.append(message)  # it may have begun, and is not work
                continue
            try:
                if isinstance(message, (m.Run, m.Put, m.Fetch)):
                    dropped[
                        "runs" if isinstance(message, m.Run) else "puts" if isinstance(message, m.Put) else "fetches"
                    ] += 1
                    raise m.error_of(*CANCELLED)
                self._act(client, message)
            except GTError as error:
                self._fail(client, message, fault_of(error))
        client.cancelled = not dropped["fetches"]
        self.service.log(
            "warning",
            f"client {client.number} was cancelled from a monitor: "
            + ", ".join(f"{count} {what}" for what, count in dropped.items())
            + " dropped",
            "cancelled",
            client.number,
        )
        self._pump(client)
        return m.Answer(cancel.request, dropped)

    def _reload(self, event: Reload) -> None:
        if self.meshes.reload(event.config):
            for client in list(self.service.clients.values()):
                client.queue.append(event)
                if len(client.queue) == 1:
                    self._pump(client)

    def _options(self, client: Client, values: dict[str, Any]) -> None:
        said = check_options(values)  # of which some are the client's own
        client.verify = said.get("verify", client.verify)
        if said.get("tf32", client.tf32) != client.tf32:
            client.tf32 = not client.tf32
            self.prepared.drop_plans(client)

    def _define(self, client: Client, message: m.Define) -> None:
        if message.segment in client.segments:
            raise ProtocolError(f"segment {message.segment} is defined already")
        if len(client.segments) >= MAX_SEGMENTS:
            raise ProtocolError(f"more than {MAX_SEGMENTS} definitions in one session")
        try:
            client.segments[message.segment] = unpack_segment(message.body)
            if self.service.recording is not None:
                self.service.recording.defined(client)
        except (ProtocolError, ShapeError, DTypeError) as error:
            self.service.counters.refused += 1
            client.segments[message.segment] = fault_of(error)
            self.service.log(
                "warning", f"refused a definition of client {client.number}: {error}", "refused", client.number
            )

    def _drop(self, client: Client, number: int) -> None:
        client.segments.pop(number, None)
        self.prepared.drop_segment(client, number)

    def _from_worker(self, worker: Worker, message: Any) -> None:
        if isinstance(message, m.Done):
            self._done(worker, message.order)
        elif isinstance(message, m.Part):
            self.fetches.part(worker, message)
        elif isinstance(message, m.Holdings):
            self.surveys.heard(worker, message)
        elif isinstance(message, m.Linked):
            bandwidth, latency = max(1.0, float(message.bandwidth)), max(1.0, float(message.latency)) / 1e9
            worker.links[message.worker] = Link(rounded(bandwidth), rounded(latency))
        elif isinstance(message, m.Landed):
            client = self.puts.landed(worker, message)
            if client is not None:
                self._pump(client)
        elif isinstance(message, m.Poisoned):
            self.service.counters.poisoned += 1
            if self.service.recording is not None:
                fault = message.kind, message.text
                self.service.recording.failed(worker.number, message.client, message.order, *fault)
            self.service.log(
                "error",
                f"worker {worker.number}, client {message.client}: {message.kind}: {message.text}",
                client=message.client,
                worker=worker.number,
                order=message.order,
            )
        elif isinstance(message, (m.Events, m.UniqueId)):
            try:
                if isinstance(message, m.Events):
                    self.watching.events(worker, message)
                else:
                    self.meshes.introduce(worker, message)
            except ProtocolError as error:
                self._refuse(worker.identity, str(error))
        elif isinstance(message, m.Goodbye):
            self._lost(worker.identity, message.text or "it said goodbye")
        elif not isinstance(message, m.FROM_WORKER):
            self._refuse(worker.identity, f"{type(message).__name__} from a worker")

    def _done(self, worker: Worker, order: int) -> None:
        record = self.service.issued.get(order)
        if record is None:
            return  # of a mesh that is gone
        finished = record.finished(worker.number, order)
        for each in finished:
            del self.service.issued[each]
        if finished:
            client = self.service.by_number[record.client]
            self.service.credit(client)
            self._pump(client)


def _waiting(client: Client) -> int:
    """Bytes of a client's puts that wait to be acted on."""
    return sum(len(message.data) for message in client.queue if isinstance(message, m.Put))
