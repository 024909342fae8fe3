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

This module dispatches messages by sender. Peers join in `joining.py` and leave in `leaving.py`; `streams.py` processes
clients' queues, and `turns.py` divides the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from gt.daemon.host import START_TIMEOUT
from gt.dispatcher.cost.cost_model import Link, rounded
from gt.dispatcher.handlers.disconnect import Leaving
from gt.dispatcher.handlers.fetches import Fetches
from gt.dispatcher.handlers.handshake import Joining
from gt.dispatcher.handlers.memory_survey import Surveys
from gt.dispatcher.handlers.message_queues import Streams
from gt.dispatcher.handlers.plan_selection import Preparing
from gt.dispatcher.handlers.puts import Puts
from gt.dispatcher.handlers.runs import Runs
from gt.dispatcher.handlers.session_mesh import Meshes
from gt.dispatcher.state.events import Event, Lost, Malformed, Publish, Received, Reload, Send, Work
from gt.dispatcher.state.records import Client, Worker
from gt.dispatcher.state.shared_state import MESH_CREDITS, Service
from gt.dispatcher.telemetry.subscribers import Watcher, Watching
from gt.errors import ProtocolError, SessionError
from gt.wire import messages as m
from gt.wire import telemetry as t

if TYPE_CHECKING:
    from gt.sharding.config import Config

WORKER_TIMEOUT: Final = 10.0
"""Seconds without a sign of life after which a worker counts as lost."""
CLIENT_TIMEOUT: Final = 60.0
"""The same for a client whose process cannot be watched."""


class Core:
    """One dispatcher. `workers_expected`: how many must have joined before the first tensor is placed. `boot` says which
    workers have its clock, `capabilities` what watchers may ask for ('cancel'). A client's first tensor waits `patience`
    seconds for the workers to join."""

    def __init__(
        self, *, config: Config | None = None, workers_expected: int = 1, facts: dict[str, Any] | None = None,
        log: Callable[..., None] = lambda level, text, **about: None, boot: str = "", capabilities: Sequence[str] = (),
        patience: float = START_TIMEOUT,
    ) -> None:  # fmt: skip
        self.facts = {**(facts or {}), "capabilities": list(capabilities)}
        self.service = service = Service(config, workers_expected, log)
        self.watching = Watching(service, boot)
        self.prepared = Preparing(service)
        self.meshes = Meshes(service, self.prepared)
        self.fetches = Fetches(service)
        self.surveys = Surveys(service)
        self.puts = Puts(service, self.meshes)
        runs = Runs(service, self.meshes, self.prepared)
        self.streams = Streams(service, self.prepared, self.meshes, runs, self.puts, self.fetches, self.surveys)
        self.joining = Joining(service, self.watching, self.facts)
        self.leaving = Leaving(service, self.joining, self.watching, self.prepared, self.fetches, self.surveys)
        self.patience = patience
        self.started: float | None = None
        self.confused: set[bytes] = set()

    def handle(self, event: Event, now: float) -> list[Send]:
        """Act on one event; the messages to send, in order."""
        self.service.now = now
        if self.started is None:
            self.started = self.service.expected_since = now
            self.watching.started = int(now * 1e9)
        if isinstance(event, Received):
            self._received(event, now)
        elif isinstance(event, Malformed):
            self._refuse(event.peer, event.reason)
        elif isinstance(event, Lost):
            if event.ended:
                self.leaving.process_ended(event.peer)
            worker = self.service.workers.get(event.peer)
            self._lost(event.peer, event.reason, returns=worker is not None and worker.facts.get("supervised") is True)
        elif isinstance(event, Reload):
            self.streams.reload(event)
        elif isinstance(event, Publish):
            self.watching.publish(event.wall)
        elif isinstance(event, Work):
            client = self.prepared.work()
            if client is not None:
                self.streams.pump(client)
                self._admit()
        else:
            self._tick(now)
        out, self.service.out = self.service.out, []
        return out

    @property
    def busy(self) -> bool:
        """Whether there is something to do when nothing has come: an event `Work` does a little of it."""
        return bool(self.prepared.turns)

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
        self.prepared.turns.check()
        self.prepared.admission.ring.check()
        assert self.prepared.turns.clients.keys() <= self.service.by_number.keys(), (
            "nothing is worked out for who is gone"
        )
        for client in self.service.clients.values():
            assert self.service.by_number[client.number] is client
            assert client.credited + len(client.inflight) <= client.arrived
            for entry in client.table.values():
                assert entry.fault is not None or entry.mesh in self.service.meshes, (
                    "a tensor is somewhere or has a fault"
                )
        loaded = 0
        for record in self.service.meshes.values():
            numbers = {worker.number for worker in self.service.workers.values()}
            assert record.fault or set(record.mesh.members) <= numbers, "a sound mesh has all its members"
            assert record.client in self.service.by_number, "a mesh is somebody's"
            assert len(record.pending) <= MESH_CREDITS
            loaded += len(record.mesh.members) if record.pending else 0
            assert all(self.service.issued[order] is record for order in record.pending)
            if record.pending:
                assert record.lagging == sum(last < record.pending[0] for last in record.done.values()) > 0
        assert loaded == self.service.load
        for worker in self.service.workers.values():
            assert worker.to_compile == sum(length for _, length in worker.fresh)
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
        self.joining.pulses.pop(peer, None)
        if self.knows(peer):
            self._lost(peer, f"it broke the protocol: {reason}")

    def _received(self, event: Received, now: float) -> None:
        peer, number, message = event
        if isinstance(message, m.Hello):
            self._hello(peer, message)
            return
        client, worker = self.service.clients.get(peer), self.service.workers.get(peer)
        watcher = None if client or worker else self.watching.watchers.get(peer)
        known = client or worker or watcher
        if known is None and peer in self.joining.pulses:
            self._from_pulse(peer, self.joining.pulses[peer], message)
            return
        if known is None:
            if not isinstance(message, m.Goodbye) and peer not in self.leaving.ended:
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
            self._from_client(client, message)
        elif watcher is not None:
            watcher.heard = now
            self._from_watcher(watcher, message)

    def _from_pulse(self, peer: bytes, worker: Worker, message: Any) -> None:
        if not isinstance(message, m.FROM_PULSE):
            self._refuse(peer, f"{type(message).__name__} from a pulse")
            return
        worker.heard = self.service.now
        if isinstance(message, m.Health):
            for level, text in worker.health.hear(message, self.service.now):
                device = worker.facts.get("device", "unknown device")
                text = (
                    f"the GPU of worker {worker.number} ({device} on {worker.facts.get('host', 'unknown host')}) {text}"
                )
                self.service.log(level, text, worker=worker.number)
            if self.service.recording is not None:
                self.service.recording.sampled(worker)

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

    def _hello(self, peer: bytes, hello: m.Hello) -> None:
        if hello.version != m.VERSION:
            text = f"this dispatcher speaks protocol {m.VERSION}, not {hello.version}"
            self.service.send(peer, m.Goodbye("ProtocolError", text))
        elif self.knows(peer):
            self._refuse(peer, "a second Hello")
        else:
            try:
                if self.joining.hello(peer, hello):
                    self.streams.pump_all()
            except SessionError as error:
                self.service.send(peer, m.Goodbye("SessionError", str(error)))
            except ProtocolError as error:
                self._refuse(peer, str(error))

    def _lost(self, peer: bytes, reason: str, *, returns: bool = False) -> None:
        if self.leaving.lost(peer, reason, returns=returns):
            self.streams.pump_all()  # only now: whoever waited for the worker must find the mesh gone

    def _cancel(self, cancel: m.Cancel) -> m.Message:
        """Drop what a client asked for and was not issued; what to answer."""
        client = self.service.by_number.get(cancel.client)
        if "cancel" not in self.facts["capabilities"]:
            text = "this service is only watched: work is cancelled at a Unix socket (ipc://), which its user alone reaches"
            return m.Failed(cancel.request, "SessionError", text)
        if client is None:
            return m.Failed(cancel.request, "SessionError", f"client {cancel.client} is not there (any more)")
        return m.Answer(cancel.request, self.streams.cancel(client))

    def _tick(self, now: float) -> None:
        for peer in self.watching.late(now):
            self.watching.leave(peer)
        for worker in list(self.service.workers.values()):
            if now - worker.heard > WORKER_TIMEOUT:
                self._lost(worker.identity, f"no sign of life for {WORKER_TIMEOUT:.0f} s")
        for client in list(self.service.clients.values()):
            if now - client.heard > CLIENT_TIMEOUT and not client.facts.get("watched"):
                self._lost(client.identity, f"no sign of life for {CLIENT_TIMEOUT:.0f} s")
        missing = len(self.service.workers) < self.service.workers_expected
        if missing and now - self.service.expected_since > self.patience:
            self.service.log(
                "error",
                f"{len(self.service.workers)} of {self.service.workers_expected} workers joined in {self.patience:g} s; "
                "GT_START_TIMEOUT says how long the dispatcher waits for them",
            )
            self.service.workers_expected = 0
            self.streams.pump_all()

    def _from_client(self, client: Client, message: Any) -> None:
        if isinstance(message, (m.Ping, m.Welcome)):
            return
        if isinstance(message, m.Goodbye):
            self._lost(client.identity, "it said goodbye")
        elif not isinstance(message, m.FROM_CLIENT):
            self._refuse(client.identity, f"{type(message).__name__} from a client")
        else:
            try:
                self.streams.take(client, message)
            except ProtocolError as error:
                self._refuse(client.identity, str(error))

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
                self.streams.pump(client)
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
            returns = message.kind == "WorkerLost"  # its device failed, and it starts again
            self._lost(worker.identity, message.text or "it said goodbye", returns=returns)
        elif not isinstance(message, m.FROM_WORKER):
            self._refuse(worker.identity, f"{type(message).__name__} from a worker")

    def _done(self, worker: Worker, order: int) -> None:
        record, room = self.service.finished(worker, order)
        if record is not None:
            client = self.service.by_number[record.client]
            self.service.credit(client)
            self.streams.pump(client)
        if room:
            self._admit()

    def _admit(self) -> None:
        """Let sessions send the new plans for which there is room now."""
        for client in self.prepared.admission.turns():
            self.streams.pump(client)
