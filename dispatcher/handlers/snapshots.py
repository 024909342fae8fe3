"""Snapshots: workers write parts of tensors to files, one of them makes a snapshot of these, and tensors come back from there.

The dispatcher opens no file. It says who writes or reads what, and in whose name: that of the client's principal.

A session that loses a worker goes back and asks for its snapshots again, with other part files: those of the first time are
removed once nobody writes them any more. What one worker does for all, another one does again. Snapshots of one name are
committed in the order in which they were asked for, so none can replace a later one. The files of a snapshot that was replaced
stay for as long as a session may go back to before it restored tensors from them.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

from gt.dispatcher.jobs.job_scheduler import JOB_NAMES
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.publishing.held_version import HeldVersion
from gt.dispatcher.publishing.share import checked_share, checked_source, names_of, published_layout
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.message_state import (
    DONE,
    WAITING_CREDIT,
    WAITING_MARK,
    WAITING_PUT,
    WAITING_TURN,
    WAITING_WORKERS,
    MessageState,
)
from gt.dispatcher.state.plan_cache import Entry
from gt.errors import ProtocolError, SnapshotError
from gt.ir.signal_path import check_path
from gt.ir.spec import pack_spec, unpack_spec
from gt.sharding.partition import box, extent
from gt.sharding.placement import format_layout
from gt.snapshot_files.snapshot_names import earlier_attempts, published_by, publisher_of
from gt.turns import ITEMS_PER_TURN
from gt.wire import messages as m
from gt.wire.faults import Fault, error_of

from .new_tensors import check_new, fail_new

if TYPE_CHECKING:
    from gt.dispatcher.session_meshes.session_mesh import SessionMeshes
    from gt.dispatcher.state.records import ClientRecord, WorkerRecord
    from gt.dispatcher.state.shared_state import DispatcherState

_FAULT: Final = attrgetter("fault")
_LANDING: Final = attrgetter("landing")
MAX_UNDER_WAY: Final = 8
"""The most snapshots of one session that are being written or looked up at a time."""
MAX_ASKED: Final = 5
"""How many workers are asked, one after the other, to do what one of them can do, when each is lost meanwhile."""

REQUESTS_PER_TURN: Final = 64
"""How many requests are looked at in one turn when a worker is lost, or has come."""
READING_SECONDS: Final = 10.0
"""How long a version stays for whoever was told that it is there, until it is read."""
MAX_DIGITS: Final = 15
"""The most digits of the number of a version that a client asks for."""
MAX_DISCARDED: Final = 64
"""Of how many removals by a worker it is known that they may have to be done again."""


class SnapshotStage(Enum):
    """What workers do for a request."""

    WRITING = "writing"
    COMMITTING = "committing"
    READING = "reading"
    REVOKING = "revoking"


@dataclass(slots=True)
class SnapshotRequest:
    """A request of which some workers have not said that they are done. It goes on when its client leaves."""

    client: int
    request: int
    stage: SnapshotStage
    principal: str
    name: str
    parts: str = ""
    waiting: Counter[int] = field(default_factory=Counter)
    """How many answers each worker owes."""
    files: list[Any] = field(default_factory=list)
    which: list[int] = field(default_factory=list)
    specs: list[Any] = field(default_factory=list)
    body: bytes = b""
    failed: bool = False
    may_be_again: bool = False
    """Whether the client may have asked for it before, also of another dispatcher."""
    task: m.Message | None = None
    """What one worker is to do, also while there is none."""
    asked: int = 0
    """How many workers were asked to do it."""
    share: list[Any] = field(default_factory=list)
    """Of what is published, what is said of that in `CommitSnapshot`."""
    version: int = 0
    """The number of the version that was published."""
    owner: str = ""
    """Who has published what was read."""


class SnapshotHandler:
    """All snapshots that are being written or looked up, and tensors that come from one."""

    def __init__(self, service: DispatcherState, meshes: SessionMeshes) -> None:
        self.service = service
        self.meshes = meshes
        self.numbers = itertools.count(1)
        self.requests: dict[int, SnapshotRequest] = {}
        self.awaited: dict[int, tuple[int, int]] = {}
        """By client, the request that waits, and a tensor that has yet to arrive: the rest is not looked at before."""
        self.replaced: list[m.DiscardParts] = []
        """Part files of snapshots that were replaced, which sessions may need once more."""
        self.reading: dict[tuple[str, str, str], float] = {}
        """Versions of which somebody was told that they are there, with the time until when they stay although they are
        replaced."""
        self.undiscarded: list[m.DiscardParts] = []
        """Part files that the next worker is to remove."""
        self.unasked = False
        """Whether a worker has come that may do what had to wait for one."""
        self.lacking: set[int] = set()
        """Workers that are lost, of which not all requests have been told."""
        self.held: list[tuple[WorkerRecord, m.SnapshotReport]] = []
        """The errors that may be due to that, which clients are not told if they go back."""
        self.discarded: dict[int, deque[m.DiscardParts]] = {}
        """By worker, the last part files that it was to remove: nobody hears whether it has."""

    # out

    def snapshot(self, client: ClientRecord, message: m.WriteSnapshot) -> MessageState:
        """Have the workers write tensors, once those have arrived there."""
        if not self.service.ready(client):
            return WAITING_WORKERS
        share = checked_share(message.share)
        distinct = self._arrived(client, message)
        if distinct is None:
            return WAITING_PUT
        self._check_room(client)
        packed = self._packed(client, distinct)
        if packed is None:
            return WAITING_TURN
        entries = list(map(client.table.__getitem__, message.tensors))
        numbers = dict(zip(packed, itertools.count(), strict=False))
        which = list(map(numbers.__getitem__, entries))
        kinds: list[Any] = list(packed.values())
        owner = client.principal.name
        of = {entry.mesh for entry in distinct}
        request = SnapshotRequest(
            client.number, message.request, SnapshotStage.WRITING, published_by(owner) if share else owner, message.name,
            message.parts, which=which, specs=list(map(itemgetter(0), kinds)), body=bytes(message.body),
            may_be_again=client.recovery.recoveries > 0,
        )  # fmt: skip
        number = next(self.numbers)
        self.requests[number] = request
        holder, readers = 0, []
        if share is not None:
            sizes = list(self.service.meshes[min(of)].mesh.sizes) if len(of) == 1 else []
            request.share = [*share, list(map(itemgetter(1), kinds)), sizes, request.may_be_again]
            holder, readers = self._hold(request, of), [owner, *share[0]]
        for mesh in sorted(of):
            everything = list(range(len(entries)))
            places = everything if len(of) == 1 else [at for at in everything if entries[at].mesh == mesh]
            record = self.service.meshes[mesh]
            write = m.WritePart(
                number, client.number, request.principal, message.name, message.parts, mesh,
                list(map(message.tensors.__getitem__, places)), places, list(map(which.__getitem__, places)), kinds, holder,
                readers,
            )  # fmt: skip
            self.service.out.append(Send(record.identities, write))
            request.waiting.update(worker.number for worker in record.workers)
        self._go_on(number, request)
        return DONE

    def _packed(self, client: ClientRecord, entries: set[Entry]) -> dict[Entry, list[Any]] | None:
        """What workers are told of each of these entries, once a job has worked it out."""
        key, what = frozenset(entries), JOB_NAMES[WAITING_TURN]
        found = self.meshes.plan_selection.worked_out(client, what, key, lambda: _packed_kinds(entries))
        if isinstance(found, Exception):
            raise found
        packed: dict[Entry, list[Any]] | None = found
        return packed

    def look(self, client: ClientRecord, request: int, name: str) -> MessageState:
        """Have a worker read a manifest, or list all snapshots of a principal."""
        if not self.service.ready(client):
            return WAITING_WORKERS
        self._check_room(client)
        number = next(self.numbers)
        found = self.requests[number] = SnapshotRequest(
            client.number, request, SnapshotStage.READING, client.principal.name, name
        )
        self._ask_one(number, found, m.ReadSnapshots(number, found.principal, name))
        return DONE

    def look_at_published(self, client: ClientRecord, ask: m.Ask) -> MessageState:
        """Have a worker read the manifest of what is published, list all that a client may read, or withdraw what it has
        published. Raises `ProtocolError`."""
        if not self.service.ready(client):
            return WAITING_WORKERS
        self._check_room(client)
        what, *words = ask.topic.split(" ", 3)
        number = next(self.numbers)
        own = client.principal.name
        if what == "revoke":
            name, place = " ".join(words), published_by(own)
            found = SnapshotRequest(client.number, ask.request, SnapshotStage.REVOKING, place, name)
            task: m.Message = m.RevokePublished(number, place, name, client.recovery.recoveries > 0)
        else:
            version, name, owner = (*words, "", "", "")[:3]
            if not (version.isascii() and version.isdecimal() and len(version) <= MAX_DIGITS and name) and words:
                raise ProtocolError("'published VERSION NAME OWNER' has a number and a name")
            found = SnapshotRequest(client.number, ask.request, SnapshotStage.READING, published_by(own), name)
            task = m.ReadPublished(number, owner, name, int(version or 0), names_of(client.principal))
        self.requests[number] = found
        self._ask_one(number, found, task)
        return DONE

    def _hold(self, request: SnapshotRequest, meshes: Iterable[int]) -> int:
        """Have the workers of meshes keep in memory what is being published. Returns the number in whose place they do."""
        workers = {worker.identity: None for mesh in meshes for worker in self.service.meshes[mesh].workers}
        holder = next(self.service.session_numbers)
        key = (request.principal, request.name, request.parts)
        self.service.held[key] = HeldVersion(publisher_of(request.principal), holder, tuple(workers))
        return holder

    def _let_go(self, principal: str, name: str, parts: str) -> None:
        """Have workers keep a version in memory no more, if they do."""
        held = self.service.held.pop((principal, name, parts), None)
        if held is not None:
            for identity in held.workers:
                if identity in self.service.workers:
                    self.service.send(identity, m.Forget(held.holder))

    def _check_room(self, client: ClientRecord) -> None:
        if sum(each.client == client.number for each in self.requests.values()) >= MAX_UNDER_WAY:
            raise SnapshotError(f"{MAX_UNDER_WAY} snapshots of this session are under way: wait for one of them")

    def _arrived(self, client: ClientRecord, message: m.WriteSnapshot | m.ConfirmTensors) -> set[Entry] | None:
        """The distinct entries of tensors; None if one has yet to arrive. Raises the error of one that has a fault."""
        table, tensors = client.table, message.tensors
        request, last = self.awaited.pop(client.number, (-1, -1))
        awaited = table.get(last)
        if request == message.request and awaited is not None and awaited.landing:
            self.awaited[client.number] = request, last
            return None
        found = set(map(table.get, tensors))
        if None in found:
            raise ProtocolError("a tensor of a snapshot does not exist")
        distinct = cast("set[Entry]", found)
        fault = next(filter(None, map(_FAULT, distinct)), None)
        if fault is not None:
            raise error_of(*fault)
        if any(map(_LANDING, distinct)):
            last = next(tensor for tensor in reversed(tensors) if table[tensor].landing)
            self.awaited[client.number] = message.request, last
            return None
        return distinct

    def report(self, worker: WorkerRecord, message: m.SnapshotReport) -> None:
        """Process a worker's answer."""
        request = self.requests.get(message.request)
        if request is None or not request.waiting[worker.number]:
            return
        if message.fault and self.lacking and self._may_go_back(request):
            self.held.append((worker, message))
            return
        request.waiting[worker.number] -= 1
        request.task = None
        if message.fault:
            self._fail(request, (message.fault[0], message.fault[-1]))
        elif message.files:
            request.files.append(message.files)
        if request.stage is SnapshotStage.READING:
            request.body = bytes(message.body)
            if len(message.files) == 2 and not message.fault:
                request.owner, parts = map(str, message.files)
                self.reading[published_by(request.owner), request.name, parts] = self.service.now + READING_SECONDS
        elif request.share or request.stage is SnapshotStage.REVOKING:
            self._published(request, message)
        elif request.stage is SnapshotStage.COMMITTING and not message.fault:
            replaced_parts = bytes(message.body).decode("ascii", "replace").split()
            for parts in (*replaced_parts, *(earlier_attempts(request.parts) if request.may_be_again else ())):
                replaced = m.DiscardParts(request.principal, request.name, parts)
                self.replaced += [replaced] * (replaced not in self.replaced)
            self.tick()
        self._go_on(message.request, request)

    def _published(self, request: SnapshotRequest, message: m.SnapshotReport) -> None:
        """A version was published, or a name withdrawn: what is not read any more goes, also from memory."""
        if message.fault or request.stage is SnapshotStage.WRITING:
            return
        said = json.loads(bytes(message.body))
        request.version = int(said.get("version", 0))
        for parts in map(str, said["replaced"]):
            replaced = m.DiscardParts(request.principal, request.name, parts)
            self.replaced += [replaced] * (replaced not in self.replaced)
        self.tick()

    def _may_go_back(self, request: SnapshotRequest) -> bool:
        """Whether the session of a request has lost a worker, or one was lost that wrote for it, and it has yet to be told."""
        client = self.service.by_number.get(request.client)
        return client is not None and (bool(client.undecided) or any(map(request.waiting.get, self.lacking)))

    def _go_on(self, number: int, request: SnapshotRequest) -> None:
        """Begin the next stage of a request when the last one is over."""
        if any(request.waiting.values()) or request.task is not None:
            return
        client = self.service.by_number.get(request.client)
        if request.failed:
            del self.requests[number]
            if request.parts:
                self._let_go(request.principal, request.name, request.parts)
                self._discard(m.DiscardParts(request.principal, request.name, request.parts))
            self._let_follow(request)
        elif request.stage is SnapshotStage.WRITING:
            if self._is_behind(number, request):
                return
            request.stage = SnapshotStage.COMMITTING
            commit = m.CommitSnapshot(
                number, request.principal, request.name, request.parts, request.files, request.which, request.specs,
                request.share, request.body,
            )  # fmt: skip
            self._ask_one(number, request, commit)
        else:
            del self.requests[number]
            if client is not None:
                client.unread_bytes += len(request.body)
                facts: dict[str, Any] = {"body": request.body} if request.stage is SnapshotStage.READING else {}
                if request.version:
                    facts["version"] = request.version
                if request.owner:
                    facts["owner"] = request.owner
                self.service.send(client.identity, m.Answer(request.request, facts))
            self._let_follow(request)

    def _is_behind(self, number: int, request: SnapshotRequest) -> bool:
        """Whether an earlier snapshot of this name has yet to be committed."""
        return any(
            before < number and not other.failed and _are_of_one_snapshot(request, other)
            for before, other in self.requests.items()
        )

    def _let_follow(self, over: SnapshotRequest) -> None:
        """Commit the next snapshot of a name, which may have waited for one that is over or has failed."""
        for number, request in list(self.requests.items()):
            waited = request.stage is SnapshotStage.WRITING and _are_of_one_snapshot(request, over)
            if waited and request is not over and self.requests.get(number) is request:
                self._go_on(number, request)

    def _ask_one(self, number: int, request: SnapshotRequest, task: m.Message) -> None:
        """Have any worker do something, all see the same folder; if there is none, the next one that is expected."""
        worker = self.service.any_worker()
        if worker is not None and request.asked < MAX_ASKED:
            request.task = task
            request.asked += 1
            request.waiting[worker.number] += 1
            self.service.send(worker.identity, task)
        elif worker is None and self.service.is_short:
            request.task = task
        else:
            request.task = None
            lost = f"{MAX_ASKED} workers were lost that were to do it" if worker is not None else "there is no worker"
            self._fail(request, ("WorkerLost", f"the snapshot {request.name!r} was not written or read: {lost}"))
            self._go_on(number, request)

    def _fail(self, request: SnapshotRequest, fault: Fault) -> None:
        """Tell a client that a request has failed; the files of it are removed when all who write them are done."""
        if not request.failed:
            request.failed = True
            client = self.service.by_number.get(request.client)
            if client is not None:
                self.service.send(client.identity, m.Failed(request.request, *fault))

    def _discard(self, parts: m.DiscardParts) -> None:
        """Have any worker remove part files, or the next one that comes."""
        worker = self.service.any_worker()
        if worker is not None:
            self.service.send(worker.identity, parts)
            self.discarded.setdefault(worker.number, deque(maxlen=MAX_DISCARDED)).append(parts)
        else:
            self.undiscarded.append(parts)

    def tick(self) -> None:
        """Have the files of replaced snapshots removed that no session needs any more."""
        self.reading = {which: until for which, until in self.reading.items() if until > self.service.now}
        for parts in list(self.replaced):
            which = parts.principal, parts.name, parts.parts
            if which not in self.reading:
                self._let_go(*which)
                if not self._is_needed(parts):
                    self.replaced.remove(parts)
                    self._discard(parts)

    def _is_needed(self, parts: m.DiscardParts) -> bool:
        """Whether a session restored tensors from part files and may go back to before that, or is sending again what it said."""
        if self.service.away:
            return True
        for client in self.service.clients.values():
            recovery = client.recovery
            if (client.principal.name == parts.principal or publisher_of(parts.principal)) and recovery.resends:
                returns = recovery.awaited or recovery.over < recovery.taken
                if returns or recovery.restored.get((parts.principal, parts.name, parts.parts), 0) > recovery.settled:
                    return True
        return False

    def awaits(self, worker: WorkerRecord) -> bool:
        """Whether a worker has yet to do something for a snapshot."""
        return any(request.waiting[worker.number] for request in self.requests.values())

    def ask_again(self) -> Iterator[None]:
        """Have workers that have come do what had to wait for one, in turns."""
        while self.unasked:
            self.unasked = False
            while self.undiscarded and self.service.workers:
                for parts in (self.undiscarded.pop() for _ in range(min(len(self.undiscarded), REQUESTS_PER_TURN))):
                    self._discard(parts)
                yield
            for at, (number, request) in enumerate(list(self.requests.items()), 1):
                if not at % REQUESTS_PER_TURN:
                    yield
                waits = request.task is not None and not any(request.waiting.values())
                if request.task is not None and waits and self.requests.get(number) is request:
                    self._ask_one(number, request, request.task)

    def written_by(self, worker: WorkerRecord) -> list[ClientRecord]:
        """The clients of snapshots of which a worker has yet to write its part."""
        found = {
            request.client: None
            for request in self.requests.values()
            if request.stage is SnapshotStage.WRITING and request.waiting.get(worker.number)
        }
        return [self.service.by_number[client] for client in found if client in self.service.by_number]

    def lost(self, worker: WorkerRecord, fault: Fault) -> Iterator[None]:
        """Have another worker do what a lost one was to do for all; what was to be written of its own tensors fails. In turns."""
        for parts in self.discarded.pop(worker.number, ()):
            self._discard(parts)
        for at, (number, request) in enumerate(list(self.requests.items()), 1):
            if not at % REQUESTS_PER_TURN:
                yield
            if self.requests.get(number) is not request or not request.waiting.pop(worker.number, 0):
                continue
            if request.task is not None:
                self._ask_one(number, request, request.task)
            else:
                self._fail(request, (fault[0], f"{fault[1]}, so the snapshot {request.name!r} was not finished"))
                self._go_on(number, request)
                self._let_follow(request)
        self.lacking.discard(worker.number)
        held, self.held = self.held, []
        for other, report in held:
            self.report(other, report)
            yield

    def forget(self, client: ClientRecord) -> None:
        """A client has left: what it began is finished, and nobody is told."""
        self.awaited.pop(client.number, None)

    def abandon(self, client: ClientRecord) -> None:
        """A client has gone back, and asks again for what it was not answered: nothing more of this is committed."""
        for number, request in list(self.requests.items()):
            if request.client == client.number and request.stage is SnapshotStage.WRITING:
                request.failed = True
                self._go_on(number, request)
                self._let_follow(request)

    # in

    def restore(self, client: ClientRecord, message: m.Restore) -> MessageState:
        """Place a tensor that workers read from a snapshot. Raises `GTError`."""
        service = self.service
        if client.recovery.due and client.landing:
            return WAITING_MARK
        if not service.ready(client):
            return WAITING_WORKERS
        spec = unpack_spec(message.spec)
        path = check_path(message.signal)
        check_new(client, message.tensor)
        planner = self.meshes.planner(client)
        if isinstance(planner, MessageState):
            return planner
        mesh = planner.mesh
        if not service.has_credit(mesh):
            return WAITING_CREDIT
        like = client.table.get(message.like)
        if like is not None and like.fault is None and like.mesh == mesh.number and like.spec.shape == spec.shape:
            resident = ResidentPlacement(like.resident.layout)
        else:
            resident = ResidentPlacement(planner.policy.put_layout(path, spec))
        principal, holder, position, readers = client.principal.name, 0, 0, []
        if message.published:
            owner, position, layout, sizes = checked_source(message.published)
            principal, readers = published_by(owner), names_of(client.principal)
            held = service.held.get((principal, message.name, message.parts))
            holder = 0 if held is None else held.holder
            before = published_layout(layout, spec, mesh) if sizes == mesh.sizes else None
            if like is None and before is not None:
                resident = ResidentPlacement(before)
        order = service.place_for(client, mesh)
        service.multicast(
            mesh,
            m.LoadPart(
                order, client.number, message.tensor, message.spec, mesh.number, format_layout(resident.layout),
                message.signal, principal, message.name, message.parts, message.key, holder, position, readers,
            ),
        )  # fmt: skip
        parts = [(member, box(spec.shape, resident.layout, mesh, rank)) for rank, member in enumerate(mesh.members)]
        landing = frozenset(member for member, part in parts if part is not None and all(extent(part)))
        client.table[message.tensor] = Entry(spec, mesh.number, resident, landing=landing)
        if landing:
            client.landing.add(message.tensor)
        restored, recovery = client.recovery.restored, client.recovery
        for source in [source for source, position in restored.items() if position <= recovery.settled]:
            del restored[source]
        restored[principal, message.name, message.parts] = recovery.over + 1
        service.counters.puts += 1
        if service.recording is not None:
            service.recording.put(client, message)
        return DONE

    def fail_restore(self, client: ClientRecord, message: m.Restore, fault: Fault) -> None:
        """Give a tensor a fault instead of a value from a snapshot."""
        fail_new(self.service, client, message.tensor, message.spec, fault)
        self.service.credit(client)

    def loaded(self, worker: WorkerRecord, message: m.Loaded) -> ClientRecord | None:
        """A worker has read its part of a tensor, or cannot. Returns the client whose messages may have waited for that."""
        client = self.service.by_number.get(message.client)
        entry = client.table.get(message.tensor) if client else None
        if client is None or entry is None or worker.number not in entry.landing:
            return None
        if message.fault:  # nobody keeps a part of what has a fault: runs count on that
            fault = (message.fault[0], message.fault[-1])
            client.table[message.tensor] = replace(entry, fault=fault, landing=frozenset())
            client.landing.discard(message.tensor)
            if not client.undecided:
                self.service.multicast(self.service.meshes[entry.mesh].mesh, m.Release(client.number, [message.tensor]))
            return client
        left = entry.landing - {worker.number}
        client.table[message.tensor] = replace(entry, landing=left)
        if left:
            return None
        client.landing.discard(message.tensor)
        return client

    def confirm(self, client: ClientRecord, message: m.ConfirmTensors) -> MessageState:
        """Answer when tensors have arrived. Raises the error of one that cannot."""
        if self._arrived(client, message) is None:
            return WAITING_PUT
        self.service.send(client.identity, m.Answer(message.request, {}))
        return DONE


def _packed_kinds(entries: Iterable[Entry]) -> Generator[None, None, dict[Entry, list[Any]]]:
    """What workers are told of each of these entries, which are distinct: dtype and shape, and layout; made in turns."""
    found: dict[Entry, list[Any]] = {}
    for at, entry in enumerate(entries, 1):
        if not at % ITEMS_PER_TURN:
            yield
        found[entry] = [pack_spec(entry.spec), format_layout(entry.resident.layout)]
    return found


def _are_of_one_snapshot(one: SnapshotRequest, other: SnapshotRequest) -> bool:
    """Whether both are to write a snapshot of the same name."""
    reads = SnapshotStage.READING in (one.stage, other.stage)
    return (
        not reads
        and SnapshotStage.REVOKING not in (one.stage, other.stage)
        and (one.principal, one.name) == (other.principal, other.name)
    )
