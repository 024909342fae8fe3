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
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt import messages as m
from gt.errors import ConfigError, DTypeError, GTError, ProtocolError, ShapeError
from gt.instruction import INPUT, OUTPUT, Plan, Segment, pack_plan, ref, unpack_segment
from gt.messages import Fault, fault_of
from gt.options import check_options
from gt.partition import box, extent
from gt.placement import Layout, Mesh, Replicate, format_layout
from gt.spec import Spec, pack_spec, unpack_spec

from .auto import decide, undecided
from .cost import measured_mesh
from .directory import Cached, Client, Collection, Entry, Job, Memory, MeshRecord, Moving, Worker
from .lacking import refuse_lacking
from .memory import Lot, shortage
from .migrate import Live, carry, first_few, layout_on, meeting
from .plan import Planned, Planner
from .policy import Policy, resolve
from .tables import Home
from .verify import sampled, verified

if TYPE_CHECKING:
    from gt.config import Config

MESH_CREDITS: Final = 32
"""Plans and puts of one mesh that its workers may have and not have finished."""
CLIENT_CREDITS: Final = 64
"""Runs and puts that a client may have sent and not have been credited for."""
MAX_QUEUE: Final = 1 << 18
"""Messages of one client that may wait here; a client that keeps to its credits never comes near."""
MAX_SOURCES: Final = 1024
"""Specs and layouts for which a mesh remembers who answers a fetch."""
MAX_CLIENTS: Final = 1024
"""Sessions at one time; so what workers have before them is bounded too."""
MAX_TENSORS: Final = 1 << 22
"""Live tensors of one session."""
MAX_SEGMENTS: Final = 1 << 14
"""Definitions of one session; a client drops its own long before."""
MAX_WAITING: Final = 1 << 28
"""Bytes of one client's puts that may wait here, besides one that may be as large as a frame."""
ROOMY: Final = 8
"""Tensors by which a session may grow, or by an eighth, before its memory is counted again for plans that are known."""
SEARCH_AT: Final = 3
"""The run of a plan at which a better one is looked for."""
SWITCH_AT: Final = 6
"""The run at which the better one takes over."""
MAX_REASONS: Final = 100
"""Different reasons that are counted for one session."""
SCALARS: Final[dict[str, tuple[type, ...]]] = {
    "b": (bool,), "i": (int,), "f": (float, int), "c": (complex, float, int),
}  # fmt: skip
"""What a run-time scalar of a kind may be."""
MAX_ID: Final = 1 << 63
"""Tensor ids lie below; so they fit every integer that carries them."""
WORKER_TIMEOUT: Final = 10.0
"""Seconds without a sign of life after which a worker counts as lost."""
CLIENT_TIMEOUT: Final = 60.0
"""The same for a client whose process cannot be watched."""
JOIN_TIMEOUT: Final = 30.0
"""Seconds that a client's first tensor waits for the workers to join."""


class Send(NamedTuple):
    """One message for a group of peers, which all get the same bytes."""

    to: tuple[bytes, ...]
    message: m.Message


class Received(NamedTuple):
    """A message from a peer, the `number`th that it sent."""

    peer: bytes
    number: int
    message: Any


class Malformed(NamedTuple):
    """Something that is no message."""

    peer: bytes
    reason: str


class Lost(NamedTuple):
    """A peer's process is gone."""

    peer: bytes
    reason: str


class Tick(NamedTuple):
    """Time has passed."""


class Work(NamedTuple):
    """Nothing else is to be done: time for a little of what is being worked out."""


class Reload(NamedTuple):
    """The service has another config from now on; it holds for all sessions, under what they brought themselves."""

    config: Config


Event = Received | Malformed | Lost | Tick | Reload | Work


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    runs: int = 0
    instructions: int = 0
    plans: int = 0
    refused: int = 0
    poisoned: int = 0
    fetches: int = 0
    puts: int = 0


class Core:
    """One dispatcher. `workers_expected`: how many must have joined before the first tensor is placed."""

    def __init__(
        self, *, config: Config | None = None, workers_expected: int = 1, facts: dict[str, Any] | None = None,
        log: Callable[[str, str], None] = lambda level, text: None,
    ) -> None:  # fmt: skip
        self.config = config
        self.workers_expected = workers_expected
        self.facts = facts or {}
        self.log = log
        self.clients: dict[bytes, Client] = {}
        self.workers: dict[bytes, Worker] = {}
        self.by_number: dict[int, Client] = {}
        self.meshes: dict[int, MeshRecord] = {}
        self.collections: dict[int, Collection] = {}
        self.numbers = itertools.count(1)
        self.worker_numbers = itertools.count()
        self.mesh_numbers = itertools.count(1)
        self.plan_numbers = itertools.count(1)
        self.request_numbers = itertools.count(1)
        self.order = 0
        self.issued: dict[int, MeshRecord] = {}
        """The orders under way, each with its mesh."""
        self.counters = Counters()
        self.started: float | None = None
        self.out: list[Send] = []
        self.confused: set[bytes] = set()
        self.jobs: deque[Job] = deque()
        """What is worked out when nothing else is to be done."""
        self.pulses: dict[bytes, Worker] = {}
        """Connections that only say that some worker lives."""

    def handle(self, event: Event, now: float) -> list[Send]:
        """Act on one event; the messages to send, in order."""
        if self.started is None:
            self.started = now
        if isinstance(event, Received):
            self._received(event, now)
        elif isinstance(event, Malformed):
            self._refuse(event.peer, event.reason)
        elif isinstance(event, Lost):
            self._lost(event.peer, event.reason)
        elif isinstance(event, Reload):
            self._reload(event)
        elif isinstance(event, Work):
            self._work()
        else:
            self._tick(now)
        out, self.out = self.out, []
        return out

    def check(self) -> None:
        """The invariants between events."""
        for client in self.clients.values():
            assert self.by_number[client.number] is client
            assert client.credited + len(client.inflight) <= client.arrived
            for entry in client.table.values():
                assert entry.fault is not None or entry.mesh in self.meshes, "a tensor is somewhere or has a fault"
        for record in self.meshes.values():
            numbers = {worker.number for worker in self.workers.values()}
            assert record.fault or set(record.mesh.members) <= numbers, "a sound mesh has all its members"
            assert record.client in self.by_number, "a mesh is somebody's"
            assert len(record.pending) <= MESH_CREDITS
            assert all(self.issued[order] is record for order in record.pending)
            if record.pending:
                assert record.lagging == sum(last < record.pending[0] for last in record.done.values()) > 0
        assert len(self.issued) == sum(len(record.pending) for record in self.meshes.values())

    # peers

    def _send(self, to: bytes, message: m.Message) -> None:
        self.out.append(Send((to,), message))

    def _multicast(self, mesh: Mesh, message: m.Message) -> None:
        identities = self.meshes[mesh.number].identities
        if identities:
            self.out.append(Send(identities, message))

    def _refuse(self, peer: bytes, reason: str) -> None:
        """Answer nonsense once, count it, and end the session of a peer whose stream can no longer be trusted."""
        self.counters.refused += 1
        if peer not in self.confused:
            if len(self.confused) > 10_000:
                self.confused.clear()
            self.confused.add(peer)
            self.log("warning", f"refused a message: {reason}")
        self._send(peer, m.Goodbye("ProtocolError", f"{reason}; start afresh with Hello"))
        if peer in self.clients or peer in self.workers:
            self._lost(peer, f"it broke the protocol: {reason}")

    def _received(self, event: Received, now: float) -> None:
        peer, number, message = event
        if isinstance(message, m.Hello):
            self._hello(peer, message, now)
            return
        client, worker = self.clients.get(peer), self.workers.get(peer)
        known = client or worker
        if known is None and peer in self.pulses:
            self.pulses[peer].heard = now
            return
        if known is None:
            if not isinstance(message, m.Goodbye):
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

    def _hello(self, peer: bytes, hello: m.Hello, now: float) -> None:
        if hello.version != m.VERSION:
            self._send(
                peer, m.Goodbye("ProtocolError", f"this dispatcher speaks protocol {m.VERSION}, not {hello.version}")
            )
        elif peer in self.clients or peer in self.workers:
            self._refuse(peer, "a second Hello")
        elif hello.role == "client" and len(self.clients) >= MAX_CLIENTS:
            text = f"this service has {MAX_CLIENTS} sessions, and no room for another; try again when one has ended"
            self._send(peer, m.Goodbye("SessionError", text))
        elif hello.role == "client":
            number = next(self.numbers)
            bulk = hello.facts.get("bulk", b"")
            if not isinstance(bulk, bytes):
                self._refuse(peer, "a bulk identity is bytes")
                return
            client = Client(peer, number, hello.facts, bulk, heard=now)
            self.clients[peer] = self.by_number[number] = client
            facts = {**self.facts, "workers": len(self.workers), "credits": CLIENT_CREDITS}
            self._send(peer, m.Welcome(number, facts))
            self.log("info", f"client {number} joined")
        elif hello.role == "worker":
            self._worker_joins(peer, hello, now)
        elif hello.role == "pulse":
            address = str(hello.facts.get("address"))
            found = next((worker for worker in self.workers.values() if worker.address == address), None)
            if found is None:
                self._refuse(peer, "a pulse of no worker")
                return
            self._send(peer, m.Welcome(0, {}))
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
        self.workers[peer] = Worker(peer, number, hello.facts, address, bulk, heard=now)
        self._send(peer, m.Welcome(number, self.facts))
        if len(self.workers) >= self.workers_expected:
            self.workers_expected = 0  # they were all here once; who is lost later is not waited for
        self.log("info", f"worker {number} joined ({hello.facts.get('device', 'unknown device')})")
        self._pump_all(now)

    def _lost(self, peer: bytes, reason: str) -> None:
        client = self.clients.pop(peer, None)
        if client is not None:
            self._forget(client)
            self.log("info", f"client {client.number} left: {reason}")
        worker = self.workers.pop(peer, None)
        if worker is not None:
            self.pulses = {pulse: other for pulse, other in self.pulses.items() if other is not worker}
            self.log("warning", f"worker {worker.number} was lost: {reason}")
            self._worker_lost(worker, reason)

    def _forget(self, client: Client) -> None:
        del self.by_number[client.number]
        for number, collection in list(self.collections.items()):
            if collection.client == client.number:
                del self.collections[number]
        self._leave(client)

    def _leave(self, client: Client) -> None:
        """Whatever a client has on workers is forgotten, with its plans and meshes; what was under way counts as done."""
        client.plans.clear()
        client.planner = client.moving = None
        for record in [record for record in self.meshes.values() if record.client == client.number]:
            self._multicast(record.mesh, m.Forget(client.number))
            for plan in record.plans:
                self._multicast(record.mesh, m.DropPlan(plan))
            self._drop_mesh(record)

    def _drop_mesh(self, record: MeshRecord) -> None:
        for order in record.pending:
            del self.issued[order]
        self._multicast(record.mesh, m.DropMesh(record.mesh.number))
        del self.meshes[record.mesh.number]

    def _drop_plans(self, client: Client) -> None:
        self.jobs = deque(job for job in self.jobs if job.client != client.number)
        for cached in client.plans.clear():
            self._drop_plan(client, cached)

    def _drop_plan(self, client: Client, cached: Cached) -> None:
        assert client.mesh is not None
        record = self.meshes.get(client.mesh.number)
        if record is not None and cached.number in record.plans:
            record.plans.discard(cached.number)
            self._multicast(record.mesh, m.DropPlan(cached.number))

    def _worker_lost(self, worker: Worker, reason: str) -> None:
        fault: Fault = ("WorkerLost", f"worker {worker.number} was lost ({reason}); what it held is gone")
        if self.workers:  # all of them: one may wait in a plan of a mesh that is dropped already
            self.out.append(Send(tuple(self.workers), m.PeerLost(worker.number, fault[1])))
        touched = [record for record in self.meshes.values() if worker.number in record.done]
        for record in touched:
            record.fault = fault
            record.workers.remove(worker)
            record.identities = tuple(other.identity for other in record.workers)
        broken = [self.by_number[number] for number in dict.fromkeys(record.client for record in touched)]
        numbers = {client.number for client in broken}
        for number, collection in list(self.collections.items()):
            if worker.number in collection.waiting or collection.client in numbers:
                self._fail_collection(number, fault)  # the others' parts are forgotten with the mesh
        for client in broken:
            for tensor, entry in client.table.items():
                client.table[tensor] = replace(entry, fault=entry.fault or fault, landing=frozenset())
            self._send(client.identity, m.PeerLost(worker.number, fault[1]))
            self._leave(client)
            if client.config is not None and client.config.mesh is not None:
                client.fault = (fault[0], f"{fault[1]}; the session's mesh ({client.config.mesh_where}) no longer fits")
            self._credit(client)
        for client in list(self.clients.values()):  # only now: whoever waited for it must find the mesh gone
            self._pump(client)

    def _tick(self, now: float) -> None:
        for worker in list(self.workers.values()):
            if now - worker.heard > WORKER_TIMEOUT:
                self._lost(worker.identity, f"no sign of life for {WORKER_TIMEOUT:.0f} s")
        for client in list(self.clients.values()):
            if now - client.heard > CLIENT_TIMEOUT and not client.facts.get("watched"):
                self._lost(client.identity, f"no sign of life for {CLIENT_TIMEOUT:.0f} s")
        if self.started is not None and len(self.workers) < self.workers_expected and now - self.started > JOIN_TIMEOUT:
            self.log("error", f"{len(self.workers)} of {self.workers_expected} workers joined in {JOIN_TIMEOUT:.0f} s")
            self.workers_expected = 0
            self._pump_all(now)

    def _pump_all(self, now: float) -> None:
        for client in list(self.clients.values()):
            self._pump(client)

    # clients

    def _from_client(self, client: Client, message: Any, now: float) -> None:
        if isinstance(message, (m.Ping, m.Welcome)):
            return
        if isinstance(message, m.Goodbye):
            self._lost(client.identity, "it said goodbye")
        elif not isinstance(message, m.FROM_CLIENT):
            self._refuse(client.identity, f"{type(message).__name__} from a client")
        elif len(client.queue) >= MAX_QUEUE:
            self._refuse(client.identity, f"more than {MAX_QUEUE} messages waiting: credits were ignored")
        elif client.queue and isinstance(message, m.Put) and _waiting(client) + len(message.data) > MAX_WAITING:
            self._refuse(client.identity, f"more than {MAX_WAITING} bytes waiting: credits were ignored")
        else:
            client.queue.append(message)
            if len(client.queue) == 1:
                self._pump(client)

    def _pump(self, client: Client) -> None:
        """Act on what the client sent, in order, as far as it goes."""
        queue = client.queue
        while queue and client.identity in self.clients:
            message = queue[0]
            try:
                if not self._act(client, message):
                    return
            except GTError as error:
                self._fail(client, message, fault_of(error))
            if queue and queue[0] is message:
                queue.popleft()

    def _act(self, client: Client, message: Any) -> bool:
        """Act on one message of a client; False if it must wait."""
        if isinstance(message, m.Run):
            return self._run(client, message)
        if isinstance(message, m.Put):
            return self._put(client, message)
        if isinstance(message, m.Free):
            self._free(client, message.tensors)
        elif isinstance(message, m.Fetch):
            return self._fetch(client, message)
        elif isinstance(message, m.Define):
            self._define(client, message)
        elif isinstance(message, m.Drop):
            self._drop(client, message.segment)
        elif isinstance(message, m.Configure):
            return self._configure(client, message)
        elif isinstance(message, Reload):
            return self._reconfigure(client, self._over_service(client.own))
        elif isinstance(message, m.Options):
            self._options(client, message.values)
        elif isinstance(message, m.Ask):
            self._send(client.identity, m.Answer(message.request, self.statistics(client)))
        return True

    def _fail(self, client: Client, message: Any, fault: Fault) -> None:
        """Say that a message could not be acted on; what it would have made inherits the fault."""
        if isinstance(message, m.Run):
            segment = client.segments.get(message.segment)
            client.arrived += 1
            if segment is not None and not isinstance(segment, tuple):
                self._poison(client, message, segment, fault)
            else:
                self._send(client.identity, m.Failed(0, *fault))
                self._free(client, _dead(message))
            self._credit(client)
        elif isinstance(message, m.Put):
            client.arrived += 1
            client.table[message.tensor] = Entry(_safe_spec(message.spec), 0, Home(()), fault)
            if message.bulk:
                self._send(client.identity, m.Cut(message.tensor, []))
            self._credit(client)
        elif isinstance(message, (m.Fetch, m.Ask, m.Configure)):
            self._send(client.identity, m.Failed(message.request, *fault))
        elif isinstance(message, Reload):
            self.log("warning", f"client {client.number} stays with the config that it had: {fault[1]}")
        else:
            self._send(client.identity, m.Failed(0, *fault))

    # configs

    def _configure(self, client: Client, message: m.Configure) -> bool:
        from gt.config import Config  # heavy, and most services never need it

        own = Config.from_wire(message.config)
        if not self._reconfigure(client, self._over_service(own)):
            return False
        client.own = own
        mesh = self._mesh(client).mesh
        self._send(client.identity, m.Answer(message.request, {"mesh": dict(zip(mesh.axes, mesh.sizes, strict=True))}))
        return True

    def _reload(self, event: Reload) -> None:
        try:
            if self.workers:
                event.config.mesh_for(len(self.workers))
        except ConfigError as error:
            self.log("error", f"the config stays as it was: {error}")
            return
        self.config = event.config
        for client in list(self.clients.values()):
            client.queue.append(event)
            if len(client.queue) == 1:
                self._pump(client)

    def _over_service(self, own: Config | None) -> Config | None:
        """A session's own config over the service's."""
        return own if self.config is None else self.config if own is None else self.config.overlay(own)

    def _reconfigure(self, client: Client, config: Config | None) -> bool:
        """Shard a session by another config from here on; False if something must come first.

        It takes hold between two plans, when no plan of the session is under way. Its own plans go, its parameters are
        there to be claimed anew, and when its mesh changes its tensors move. Until that begins nothing has changed, so a
        config that is refused leaves the session as it was.
        """
        if client.moving is not None:
            return self._move_on(client, client.moving)
        if not self._ready():
            return False
        old = client.mesh
        live = [(tensor, entry) for tensor, entry in client.table.items() if entry.fault is None]
        if (old is not None and self.meshes[old.number].pending) or any(entry.landing for _, entry in live):
            return False
        planner, record = self._planner(client, config)
        client.fault = None
        if old is not None:
            self._drop_plans(client)
            same = replace(record.mesh, number=old.number) == old
            if not same and live:
                self._join_mesh(record)
                return self._set_out(client, config, planner, old)
            if same:
                planner = Planner(old, planner.policy, planner.speeds)
            else:
                self._drop_mesh(self.meshes[old.number])
        if old is None or not same:
            self._join_mesh(record)
        client.config, client.planner = config, planner
        for tensor, entry in live:
            client.table[tensor] = replace(entry, home=replace(entry.home, claimed=False))
        return True

    def _set_out(self, client: Client, config: Config | None, planner: Planner, old: Mesh) -> bool:
        """Begin to move a session's tensors to another mesh."""
        members = meeting(old, planner.mesh)
        both = None
        if members:
            self._join_mesh(record := self._record(client, {"workers": len(members)}, members))
            both = record.mesh
        left = [tensor for tensor, entry in client.table.items() if entry.fault is None]
        client.moving = Moving(config, planner, both, left[::-1])
        return self._move_on(client, client.moving)

    def _move_on(self, client: Client, moving: Moving) -> bool:
        """Move as many tensors as there are credits for; True when all have arrived."""
        old, new, both = client.mesh, moving.planner.mesh, moving.both
        assert old is not None
        records = [self.meshes[mesh.number] for mesh in (old, new, both) if mesh is not None]
        while moving.left and all(len(record.pending) < MESH_CREDITS for record in records):
            waiting = ((tensor, client.table[tensor]) for tensor in reversed(moving.left))
            live = first_few(Live(tensor, entry.spec, entry.home.layout) for tensor, entry in waiting)
            del moving.left[-len(live) :]
            for plan, tensors in carry(live, old, new, both):
                mesh = self.meshes[plan.mesh].mesh
                number = next(self.plan_numbers)
                self._multicast(mesh, m.DefinePlan(number, pack_plan(plan)))
                everything = list(range(len(tensors)))
                execute = m.Execute(self._order(mesh), number, client.number, 0, tensors, [], everything, [])
                self._multicast(mesh, execute)
                self._multicast(mesh, m.DropPlan(number))
            for each in live if both is not None else ():
                if each.spec.size == 0:  # no piece of it travels, from which those who join could have it
                    layout = format_layout(layout_on(new, old, each.layout))
                    raw = pack_spec(each.spec)
                    order = self._order(new)
                    self._multicast(new, m.Store(order, client.number, each.tensor, raw, new.number, layout, b"", b""))
            for each in live:
                entry = client.table[each.tensor]
                home = replace(entry.home, layout=layout_on(new, old, each.layout), claimed=False)
                client.table[each.tensor] = replace(entry, mesh=new.number, home=home, root=None)
        if moving.left or any(record.pending for record in records):
            return False
        leaving = tuple(worker.identity for worker in records[0].workers if worker.number not in new.members)
        if leaving:
            self.out.append(Send(leaving, m.Release(client.number, list(client.table))))
        for record in records:
            if record.mesh is not new:
                self._drop_mesh(record)
        client.config, client.planner, client.moving = moving.config, moving.planner, None
        return True

    def _options(self, client: Client, values: dict[str, Any]) -> None:
        for name, value in check_options(values).items():
            setattr(client, name, value)

    def _define(self, client: Client, message: m.Define) -> None:
        if message.segment in client.segments:
            raise ProtocolError(f"segment {message.segment} is defined already")
        if len(client.segments) >= MAX_SEGMENTS:
            raise ProtocolError(f"more than {MAX_SEGMENTS} definitions in one session")
        try:
            client.segments[message.segment] = unpack_segment(message.body)
        except (ProtocolError, ShapeError, DTypeError) as error:
            self.counters.refused += 1
            client.segments[message.segment] = fault_of(error)
            self.log("warning", f"refused a definition of client {client.number}: {error}")

    def _drop(self, client: Client, number: int) -> None:
        client.segments.pop(number, None)
        for cached in client.plans.drop(number):
            self._drop_plan(client, cached)

    # placing

    def _ready(self) -> bool:
        return len(self.workers) >= self.workers_expected

    def _mesh(self, client: Client) -> Planner:
        """The session's planner, with the mesh that its config asks for over the workers there are."""
        if client.planner is not None:
            return client.planner
        if client.fault is not None:
            raise m.error_of(*client.fault)
        config = client.config or self.config
        planner, record = self._planner(client, config)
        self._join_mesh(record)
        client.config, client.planner = config, planner
        return planner

    def _planner(self, client: Client, config: Config | None) -> tuple[Planner, MeshRecord]:
        """A planner for a config over the workers there are, and its mesh, which they do not know yet."""
        if not self.workers:
            raise m.error_of("WorkerLost", "no worker has joined this service: start one with `gt worker --address …`")
        axes = {"workers": 1} if config is None else config.mesh_for(len(self.workers))
        size = 1
        for length in axes.values():
            size *= length
        numbers = sorted(worker.number for worker in self.workers.values())
        if size == 1:
            used = [record.mesh.members[0] for record in self.meshes.values() if record.client != client.number]
            here = client.mesh.members if client.mesh else ()
            numbers.sort(key=lambda number: (number not in here, used.count(number), number))
        record = self._record(client, axes, tuple(numbers[:size]), 0 if config is None else config.block_count)
        kinds = [str(worker.facts.get("kind", "cpu")) for worker in record.workers]
        policy = Policy(record.mesh, {}) if config is None else resolve(config, record.mesh, kinds)
        return Planner(record.mesh, policy, record.speeds), record

    def _record(self, client: Client, axes: dict[str, int], numbers: tuple[int, ...], blocks: int = 0) -> MeshRecord:
        """A mesh of these workers, which they do not know yet; `blocks` are those of a deterministic session."""
        by_number = {worker.number: worker for worker in self.workers.values()}
        members = [by_number[number] for number in numbers]
        facts = [worker.facts for worker in members]
        mesh, speeds = measured_mesh(next(self.mesh_numbers), axes, numbers, facts, blocks)
        return MeshRecord(client.number, mesh, speeds, members, tuple(worker.identity for worker in members))

    def _join_mesh(self, record: MeshRecord) -> None:
        """Tell the members of a mesh about it."""
        mesh = record.mesh
        self.meshes[mesh.number] = record
        body = [list(mesh.axes), list(mesh.sizes), list(mesh.members), [list(w) for w in mesh.weights]]
        self._multicast(mesh, m.DefineMesh(mesh.number, body, [worker.address for worker in record.workers]))

    def _has_credit(self, mesh: Mesh) -> bool:
        return len(self.meshes[mesh.number].pending) < MESH_CREDITS

    def _run(self, client: Client, message: m.Run) -> bool:
        """Turn one run of a segment into one execution of a plan, or inherit the fault of an input."""
        try:
            entries = tuple(map(client.table.__getitem__, message.inputs))
        except KeyError as error:
            raise ProtocolError(f"tensor {error.args[0]} does not exist") from None
        cached = client.plans.again(message.segment, entries)
        if cached is None or client.verify or list(map(type, message.scalars)) != cached.scalar_types:
            return self._run_anew(client, message, entries)
        made = self._outputs(client, message, cached.offsets)
        assert client.planner is not None
        if not self._has_credit(client.planner.mesh):
            return False
        if len(client.table) > client.roomy:
            self._ensure_room(client, client.planner, cached.planned.plan, message)
        client.hits += 1
        self._issue(client, message, cached, entries, made)
        return True

    def _run_anew(self, client: Client, message: m.Run, entries: tuple[Entry, ...]) -> bool:
        """A run whose inputs have not been met as they are now: everything is checked, and planned when it must be."""
        if not self._ready():
            return False
        segment = client.segments.get(message.segment)
        if segment is None:
            raise ProtocolError(f"segment {message.segment} is not defined")
        if isinstance(segment, tuple):
            raise m.error_of(*segment)
        if len(message.inputs) != len(segment.inputs) or len(message.scalars) != len(segment.kinds):
            raise ProtocolError(
                f"segment {message.segment} has {len(segment.inputs)} inputs, {len(segment.kinds)} scalars"
            )
        if list(map(type, message.scalars)) != segment.scalar_types:
            _check_scalars(message.scalars, segment.kinds)
        landed = True
        for entry, spec in zip(entries, segment.inputs, strict=True):
            if entry.fault is not None:
                raise m.error_of(*entry.fault)
            if entry.spec is not spec:
                raise ProtocolError(f"an input is {entry.spec}, the segment says {spec}")
            if entry.landing:
                landed = False
        made = self._outputs(client, message, segment.survivors)
        planner = self._mesh(client)
        if not landed or not self._has_credit(planner.mesh):
            return False
        cached = self._plan(client, planner, message, entries)
        if cached is None:
            return False
        if cached.runs >= SWITCH_AT:
            client.plans.met(message.segment, entries, cached)
        if client.verify:
            cached = self._verified(client, planner, message.segment, cached)
        self._issue(client, message, cached, entries, made)
        return True

    def _outputs(self, client: Client, message: m.Run, survivors: Sequence[int]) -> list[int]:
        """The ids of the tensors that a run makes, which must be new ones."""
        if message.dying and not 0 <= min(message.dying) <= max(message.dying) < len(message.inputs):
            raise ProtocolError("dying positions are positions of inputs")
        base = message.base
        made = [base + number for number in survivors]
        if made:
            if not 0 <= made[0] <= made[-1] < MAX_ID:
                raise ProtocolError(f"tensor ids lie from 0 to {MAX_ID - 1}")
            if not client.table.keys().isdisjoint(made):
                raise ProtocolError("a run makes no tensor that exists already")
            if len(client.table) + len(made) > MAX_TENSORS:
                raise m.error_of("OutOfMemory", f"more than {MAX_TENSORS} live tensors in one session")
        return made

    def _plan(self, client: Client, planner: Planner, run: m.Run, entries: Sequence[Entry]) -> Cached | None:
        """The plan for a run of a segment with these inputs; None while it waits for what is being worked out."""
        homes = tuple([entry.home for entry in entries])
        number = run.segment
        key = (number, homes)
        cached = client.plans.get(key)
        if cached is not None:
            if len(client.table) > client.roomy:
                self._ensure_room(client, planner, cached.planned.plan, run)
            if cached.runs < SWITCH_AT and not self._ripens(client, planner, key, cached, run):
                return None
            client.hits += 1
            return cached
        segment = client.segments[number]
        assert not isinstance(segment, tuple)
        refuse_lacking(planner.policy, segment, homes)
        if self._to_decide(client, planner, segment, homes):
            return None
        try:
            planned = planner.plan(segment, homes)
        except Exception as error:  # noqa: BLE001 — a segment without a plan is an error of its client alone
            self.log("error", f"no plan for a segment of client {client.number}: {type(error).__name__}: {error}")
            raise ProtocolError(f"segment {number} has no plan: {type(error).__name__}: {error}") from None
        self._ensure_room(client, planner, planned.plan, run)
        return self._remember(client, key, Cached(homes, planned, segment.scalar_types))

    def _verified(self, client: Client, planner: Planner, number: int, cached: Cached) -> Cached:
        """The plan of a segment, or as often as the session wants a variant of it that checks some instructions."""
        sample = sampled(client.verify, client.runs)
        client.runs += 1
        if sample is None:
            return cached
        key = (number, cached.number, sample)
        found = client.plans.get(key)
        if found is not None:
            return found
        plan = verified(cached.planned.plan, planner.mesh, sample)
        if plan is cached.planned.plan:
            return cached
        return self._remember(
            client, key, Cached(cached.homes, cached.planned._replace(plan=plan), cached.scalar_types)
        )

    def _remember(self, client: Client, key: Any, cached: Cached) -> Cached:
        """Keep a plan in the session's cache, and tell the workers."""
        for old in client.plans.remember(key, cached):
            self._drop_plan(client, old)
        self._define_plan(client, cached)
        return cached

    def _ensure_room(self, client: Client, planner: Planner, plan: Plan, run: m.Run) -> None:
        """Refuse a plan that cannot run beside all else; what is known is asked again when more has piled up."""
        missing = self._shortage(client, planner, plan, run)
        if missing:
            raise m.error_of("OutOfMemory", missing)
        client.roomy = len(client.table) + max(ROOMY, len(client.table) >> 3)

    def _shortage(self, client: Client, planner: Planner, plan: Plan, run: m.Run) -> str:
        """Why a plan cannot run beside everything else that its client holds; empty when it can."""
        held, lot = beside(client, run)
        return shortage(plan, planner.mesh, planner.known_speeds, held, lot, planner.policy.rule_of)

    def _define_plan(self, client: Client, cached: Cached) -> None:
        """Give a plan a number that the workers know."""
        assert client.mesh is not None
        cached.number = next(self.plan_numbers)
        client.made += 1
        self.counters.plans += 1
        self.meshes[client.mesh.number].plans.add(cached.number)
        self._multicast(client.mesh, m.DefinePlan(cached.number, pack_plan(cached.planned.plan)))

    def _ripens(
        self, client: Client, planner: Planner, key: tuple[int, tuple[Home, ...]], cached: Cached, run: m.Run
    ) -> bool:
        """Count a run of a plan, begin to search for a better one, take it over; False when that must be waited for."""
        if cached.runs + 1 == SWITCH_AT and cached.runs >= SEARCH_AT and not cached.searched:
            return False
        cached.runs += 1
        segment = client.segments[key[0]]
        assert not isinstance(segment, tuple)
        if cached.runs == SEARCH_AT:
            if planner.searchable(segment, cached.planned):

                def found(better: Planned | None) -> None:
                    cached.better, cached.searched = better, True

                turns = planner.search(segment, key[1], cached.planned)
                self.jobs.append(Job(client.number, "a better plan", turns, found))
            else:
                cached.searched = True
        elif cached.runs == SWITCH_AT and cached.better is not None:
            better, cached.better = cached.better, None
            if not self._shortage(client, planner, better.plan, run):
                self._drop_plan(client, cached)
                cached.take(better)
                self._define_plan(client, cached)
                client.improved += 1
        return True

    def _to_decide(self, client: Client, planner: Planner, segment: Segment, homes: tuple[Home, ...]) -> bool:
        """Whether a strategy is being chosen, or must be, before the segment can be planned."""
        names = undecided(planner.policy, segment, homes)
        if not names:
            return False
        if not any(job.client == client.number and job.what == "strategies" for job in self.jobs):

            def chosen(_: object) -> None:
                for name in names:
                    planner.policy.settle_rest(name)
                    self.log("info", f"client {client.number}: {name}: auto is {planner.policy.spelled(name)}")

            turns = decide(planner, segment, homes, names)
            self.jobs.append(Job(client.number, "strategies", turns, chosen))
        return True

    @property
    def busy(self) -> bool:
        """Whether there is something to do when nothing has come: an event `Work` does a little of it."""
        return bool(self.jobs)

    def _work(self) -> None:
        """One turn of one job; jobs take turns."""
        if not self.jobs:
            return
        job = self.jobs.popleft()
        try:
            job.last = next(job.turns)
            self.jobs.append(job)
            return
        except StopIteration:
            result = job.last
        except Exception as error:  # noqa: BLE001 — no better plan is no loss, and strategies are settled all the same
            self.log("error", f"working out {job.what} for client {job.client}: {type(error).__name__}: {error}")
            result = None
        job.done(result)
        client = self.by_number.get(job.client)
        if client is not None:
            self._pump(client)

    def _issue(self, client: Client, run: m.Run, cached: Cached, entries: Sequence[Entry], made: list[int]) -> None:
        planner = client.planner
        assert planner is not None
        order = self._sent(client, planner.mesh)
        self._multicast(
            planner.mesh,
            m.Execute(order, cached.number, client.number, run.base, run.inputs, run.scalars, run.dying, run.freed),
        )
        table = client.table
        for position, home in cached.rehomed:
            table[run.inputs[position]] = replace(entries[position], home=home, root=None)
        table.update(zip(made, cached.made, strict=True))
        if cached.looks:
            self._share(client, run, cached)
        _remove(table, run.freed)
        _remove(table, map(run.inputs.__getitem__, run.dying))
        hindered = cached.planned.hindered
        if hindered and (hindered in client.gpipe or len(client.gpipe) < MAX_REASONS):
            client.gpipe[hindered] += 1
        self.counters.runs += 1
        self.counters.instructions += cached.length

    def _share(self, client: Client, run: m.Run, cached: Cached) -> None:
        """Say of survivors that are views whose memory they look at."""
        plan, table, space = cached.planned.plan, client.table, len(cached.planned.survivors[0].layout)
        tensors = {ref(OUTPUT, index): run.base + offset for offset, index in plan.survivors}
        tensors.update((ref(INPUT, position), tensor) for position, tensor in enumerate(run.inputs))
        roots: dict[int, Memory] = {}
        for position, at in cached.looks.items():
            if at not in roots:
                entry, spec, layout = table.get(tensors.get(at, -1)), plan.operand(at), plan.layout(at)[:space]
                assert isinstance(spec, Spec), "a view looks at a tensor"
                if (
                    entry is None or entry.home.layout != layout
                ):  # what it looks at is gone otherwise, or elsewhere by now
                    roots[at] = Memory(spec, layout)
                elif entry.root is not None:
                    roots[at] = entry.root
                else:
                    roots[at] = Memory(entry.spec, entry.home.layout)
                    table[tensors[at]] = replace(entry, root=roots[at])
            number = run.base + plan.survivors[position][0]
            table[number] = replace(table[number], root=roots[at])

    def _poison(self, client: Client, run: m.Run, segment: Any, fault: Fault) -> None:
        """A run that is never issued: its survivors have a fault, and what died with it is freed all the same."""
        for number in segment.survivors:
            client.table[run.base + number] = Entry(segment.values[number], 0, Home(()), fault)
        self._free(client, _dead(run))

    def _free(self, client: Client, tensors: list[int]) -> None:
        _remove(client.table, tensors)
        if client.mesh is not None and tensors:
            self._multicast(client.mesh, m.Release(client.number, tensors))

    def _put(self, client: Client, message: m.Put) -> bool:
        if not self._ready():
            return False
        spec = unpack_spec(message.spec)
        self._check_put(client, message, spec)
        planner = self._mesh(client)
        mesh = planner.mesh
        if not self._has_credit(mesh):
            return False
        home = Home(planner.policy.put_layout(tuple(message.signal), spec))
        form = format_layout(home.layout)
        sender = client.bulk if message.bulk else b""
        self._multicast(
            mesh,
            m.Store(
                self._sent(client, mesh),
                client.number,
                message.tensor,
                message.spec,
                mesh.number,
                form,
                sender,
                message.data,
            ),
        )
        landing = set()
        if message.bulk:
            parts = []
            numbers = {worker.number: worker for worker in self.workers.values()}
            for rank, member in enumerate(mesh.members):
                part = box(spec.shape, home.layout, mesh, rank)
                if part is not None and all(extent(part)):
                    landing.add(member)
                    parts.append([member, numbers[member].bulk, [list(pair) for pair in part]])
            self._send(client.identity, m.Cut(message.tensor, parts))
        client.table[message.tensor] = Entry(spec, mesh.number, home, landing=frozenset(landing))
        self.counters.puts += 1
        return True

    def _check_put(self, client: Client, message: m.Put, spec: Spec) -> None:
        if message.tensor in client.table:
            raise ProtocolError(f"tensor {message.tensor} exists already")
        if not 0 <= message.tensor < MAX_ID:
            raise ProtocolError(f"tensor ids lie from 0 to {MAX_ID - 1}")
        if message.bulk and not client.bulk:
            raise ProtocolError("a put goes by the bulk socket only from a client that said which is its own")
        if len(client.table) >= MAX_TENSORS:
            raise m.error_of("OutOfMemory", f"more than {MAX_TENSORS} live tensors in one session")
        if not message.bulk and len(message.data) != spec.nbytes:
            raise ProtocolError(f"{spec} takes {spec.nbytes} bytes, not {len(message.data)}")

    def _fetch(self, client: Client, message: m.Fetch) -> bool:
        entry = client.table.get(message.tensor)
        if entry is None:
            raise ProtocolError(f"tensor {message.tensor} does not exist")
        if entry.fault is not None:
            raise m.error_of(*entry.fault)
        if entry.landing:
            return False
        record = self.meshes[entry.mesh]
        mesh = record.mesh
        holders, silent, boxes = self._sources(record, entry)
        number = next(self.request_numbers)
        self.collections[number] = Collection(
            client.number, message.request, entry.spec, len(mesh.members), set(mesh.members), boxes
        )
        for group, quiet in ((holders, False), (silent, True)):
            if group:
                collect = m.Collect(number, message.request, client.number, message.tensor, quiet, client.bulk)
                self.out.append(Send(group, collect))
        self.counters.fetches += 1
        return True

    def _sources(self, record: MeshRecord, entry: Entry) -> tuple[tuple[bytes, ...], tuple[bytes, ...], dict[int, Any]]:
        """Who sends a part of a fetched tensor, who only says that its copy is sound, and the box that each sender holds."""
        key = (entry.spec, entry.home.layout)
        found = record.sources.get(key)
        if found is None:
            mesh = record.mesh
            holders, silent, boxes = [], [], {}
            known = {worker.number: worker.identity for worker in self.workers.values()}
            for rank, member in enumerate(mesh.members):
                at = mesh.coordinates(rank)
                first = all(at[axis] == 0 for axis, p in enumerate(entry.home.layout) if isinstance(p, Replicate))
                part = box(entry.spec.shape, entry.home.layout, mesh, rank)
                if part is not None and first and (all(extent(part)) or entry.spec.size == 0):
                    holders.append(known[member])
                    boxes[member] = [list(pair) for pair in part]
                else:
                    silent.append(known[member])
            if len(record.sources) >= MAX_SOURCES:
                record.sources.clear()
            found = record.sources[key] = (tuple(holders), tuple(silent), boxes)
        return found

    # workers

    def _from_worker(self, worker: Worker, message: Any) -> None:
        if isinstance(message, m.Done):
            self._done(worker, message.order)
        elif isinstance(message, m.Part):
            self._part(worker, message)
        elif isinstance(message, m.Landed):
            client = self.by_number.get(message.client)
            entry = client.table.get(message.tensor) if client else None
            if client is not None and entry is not None:
                client.table[message.tensor] = replace(entry, landing=entry.landing - {worker.number})
                self._pump(client)
        elif isinstance(message, m.Poisoned):
            self.counters.poisoned += 1
            self.log("error", f"worker {worker.number}, client {message.client}: {message.kind}: {message.text}")
        elif isinstance(message, m.Goodbye):
            self._lost(worker.identity, message.text or "it said goodbye")
        elif not isinstance(message, m.FROM_WORKER):
            self._refuse(worker.identity, f"{type(message).__name__} from a worker")

    def _done(self, worker: Worker, order: int) -> None:
        record = self.issued.get(order)
        if record is None:
            return  # of a mesh that is gone
        finished = record.finished(worker.number, order)
        for each in finished:
            del self.issued[each]
        if finished:
            client = self.by_number[record.client]
            self._credit(client)
            self._pump(client)

    def _credit(self, client: Client) -> None:
        """Tell a client how far the workers have come with what it sent."""
        inflight = client.inflight
        while inflight and inflight[0][1] not in self.issued:
            inflight.popleft()
        done = inflight[0][0] - 1 if inflight else client.arrived
        if done > client.credited:
            client.credited = done
            self._send(client.identity, m.Credit(done))

    def _order(self, mesh: Mesh) -> int:
        """The next number of the one global order, which all members of `mesh` now have before them."""
        self.order += 1
        record = self.issued[self.order] = self.meshes[mesh.number]
        record.issued(self.order)
        return self.order

    def _sent(self, client: Client, mesh: Mesh) -> int:
        """The order of a run or put, for which the client will be credited."""
        order = self._order(mesh)
        client.arrived += 1
        client.inflight.append((client.arrived, order))
        return order

    def _part(self, worker: Worker, part: m.Part) -> None:
        collection = self.collections.get(part.request)
        if collection is None or worker.number not in collection.waiting:
            return
        collection.waiting.discard(worker.number)
        if not collection.waiting:
            del self.collections[part.request]
        client = self.by_number[collection.client]
        if part.fault and not collection.failed:
            collection.failed = True
            self._send(client.identity, m.Failed(collection.request, part.fault[0], part.fault[-1]))
        if collection.failed and not part.bulk:
            return  # a bulk part is passed on all the same: the client hears it out, so that the worker can let it go
        part_box: list[Any] = collection.boxes.get(worker.number, [["silent"]])
        self._send(
            client.identity,
            m.Value(
                collection.request, pack_spec(collection.spec), collection.parts, part_box,
                worker.number, worker.bulk, part.bulk, part.data,
            ),
        )  # fmt: skip

    def _fail_collection(self, number: int, fault: Fault) -> None:
        collection = self.collections.pop(number)
        if not collection.failed:
            self._send(self.by_number[collection.client].identity, m.Failed(collection.request, *fault))

    def statistics(self, client: Client) -> dict[str, Any]:
        """Counters of the service and of one session."""
        counters = self.counters
        return {
            "workers": len(self.workers),
            "clients": len(self.clients),
            "runs": counters.runs,
            "instructions": counters.instructions,
            "plans": counters.plans,
            "refused": counters.refused,
            "poisoned": counters.poisoned,
            "fetches": counters.fetches,
            "puts": counters.puts,
            "session": {"tensors": len(client.table), "segments": len(client.segments), "plans_made": client.made,
                        "plan_hits": client.hits, "queued": len(client.queue), "gpipe": dict(client.gpipe),
                        "plans_improved": client.improved},
        }  # fmt: skip


def _waiting(client: Client) -> int:
    """Bytes of a client's puts that wait to be acted on."""
    return sum(len(message.data) for message in client.queue if isinstance(message, m.Put))


def _memory(number: int, entry: Entry) -> tuple[int, tuple[Spec, Layout]]:
    """Which memory a tensor takes, its own or what it shares with others, and how much."""
    if entry.root is None:
        return number, (entry.spec, entry.home.layout)
    return ~id(entry.root), (entry.root.spec, entry.root.layout)


def beside(client: Client, run: m.Run) -> tuple[Counter[tuple[Spec, Layout]], Lot]:
    """What a client holds besides the inputs of a run, and what becomes of those."""
    freed, dying = {*run.freed}, {run.inputs[position] for position in run.dying}
    taken: dict[int, tuple[Spec, Layout]] = {}
    users: Counter[int] = Counter()
    for number, entry in client.table.items():
        if number not in freed and entry.fault is None:
            key, memory = _memory(number, entry)
            taken[key] = memory
            users[key] += number not in dying
    own: dict[int, int] = {}
    for position, number in enumerate(run.inputs):
        entry = client.table[number]
        key, memory = _memory(number, entry)
        if memory == (entry.spec, entry.home.layout):
            own.setdefault(key, position)
    held = Counter(memory for key, memory in taken.items() if key not in own)
    lot = Lot(
        frozenset(position for key, position in own.items() if not users[key]),
        frozenset(range(len(run.inputs))) - {*own.values()},
    )
    return held, lot


def _dead(run: m.Run) -> list[int]:
    """The tensors that nobody needs after a run."""
    return [run.inputs[position] for position in run.dying if position < len(run.inputs)] + run.freed


def _remove(table: dict[int, Entry], tensors: Iterable[int]) -> None:
    """Take these out of a table, whether they are in it or not: a loop without a line of Python in it."""
    deque(map(table.pop, tensors, itertools.repeat(None)), maxlen=0)


def _check_scalars(scalars: list[Any], kinds: str) -> None:
    """A scalar is of the kind that its definition says (an integer may stand for a float)."""
    for value, kind in zip(scalars, kinds, strict=True):
        if type(value) not in SCALARS[kind]:
            raise ProtocolError(f"a scalar of kind {kind!r} is not {value!r}")


def _safe_spec(raw: Any) -> Spec:
    """The spec of a put that failed, or an empty one when that was what failed."""
    try:
        return unpack_spec(raw)
    except ProtocolError:
        return unpack_spec(["f32", [0]])
