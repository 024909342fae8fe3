"""Fetches in progress: each part of a tensor comes from one worker, and all workers report whether their copies have values."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gt.bounds import KIB, MAX_INLINE_BYTES
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.message_state import DONE, WAITING_ANSWERS, WAITING_PUT, MessageState
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord, FetchRecord, MeshRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.errors import ProtocolError
from gt.ir.spec import pack_spec
from gt.sharding.partition import box, extent
from gt.sharding.placement import Replicate
from gt.wire import messages as m
from gt.wire.faults import Fault, error_of

MAX_UNDER_WAY: Final = 32
MAX_UNDER_WAY_BYTES: Final = 512 * KIB
"""The most fetches of one principal that workers are to answer at a time, of all its sessions together, and the most bytes that
the dispatcher passes on for them; each session may have one in any case. Who fetches next waits for those."""
ANSWER_OVERHEAD_BYTES: Final = 1024
"""The most bytes of the answer to a fetch besides the values."""
ANSWER_NANOSECONDS: Final = 50_000
NANOSECONDS_PER_BYTE: Final = 1
"""What a worker's answer to a fetch counts in its principal's share of that worker's time, as a plan of so long would."""
FETCHES_PER_TURN: Final = 256
"""The fetches per turn that are searched for what a lost worker owed."""
MAX_SOURCES: Final = 1024
"""The most combinations of spec and layout for which a mesh remembers who answers a fetch."""


class RunFetch(NamedTuple):
    """The fetch of what a run makes: the tensor's entry, None if the run makes no such tensor; the number of the fetch, None if
    there is no value; and what workers are told of it with the run, or [] if behind that."""

    message: m.Fetch
    entry: Entry | None
    number: int | None = None
    told: list[int] = []  # noqa: RUF012 — it is never changed


class FetchHandler:
    """All fetches that some worker has not answered yet."""

    def __init__(self, service: DispatcherState) -> None:
        self.service = service
        self.numbers = itertools.count(1)
        self.collections: dict[int, FetchRecord] = {}
        self.of: dict[int, dict[int, FetchRecord]] = {}
        """The same by client; none is empty."""
        self.under_way: Counter[str] = Counter()
        """How many of them each principal has, if any."""
        self.under_way_bytes: Counter[str] = Counter()
        """What is passed on for them."""
        self.freed: list[ClientRecord] = []
        """Clients that have waited until one of theirs was over."""
        self.held: dict[int, list[tuple[WorkerRecord, m.Part]]] = {}
        """By client: the errors of a session that has lost a worker, which it is not told if it goes back."""

    def fetch(self, client: ClientRecord, message: m.Fetch) -> MessageState:
        """Ask the workers for a tensor, once it has arrived there."""
        entry = client.table.get(message.tensor)
        if entry is None:
            raise ProtocolError(f"tensor {message.tensor} does not exist")
        if entry.fault is not None:
            raise error_of(*entry.fault)
        if entry.landing:
            return WAITING_PUT
        record = self.service.meshes[entry.mesh]
        _, _, boxes = self._sources(record, entry)
        if self.has_enough(client, len(boxes) * min(entry.spec.nbytes, MAX_INLINE_BYTES)):
            return WAITING_ANSWERS
        self._collect(client, message, entry, self._begin(client, message.request, entry))
        return DONE

    def has_enough(self, client: ClientRecord, nbytes: int = MAX_INLINE_BYTES) -> bool:
        """Whether workers answer some fetches of a client, and so many of its principal that one of so many bytes is too much."""
        principal = client.program.principal
        return client.number in self.of and (
            self.under_way[principal] >= MAX_UNDER_WAY
            or self.under_way_bytes[principal] + ANSWER_OVERHEAD_BYTES + nbytes > MAX_UNDER_WAY_BYTES
        )

    def begin_with_run(self, client: ClientRecord, run: m.Run, entry: Entry | None, *, whole: bool) -> RunFetch:
        """Begin the fetch of what a run makes which is about to be issued: by what workers are told of the run where one has all
        of it, it is small, and the plan is `whole`; else by a message behind that (`end_with_run`)."""
        request, output = run.fetch
        message = m.Fetch(request, run.base + output)
        if entry is None or entry.fault is not None:
            return RunFetch(message, entry)
        mesh = self.service.meshes[entry.mesh].mesh
        rides = whole and len(mesh.members) == 1 and entry.spec.nbytes <= MAX_INLINE_BYTES and not client.verify
        number = self._begin(client, request, entry)
        return RunFetch(message, entry, number, [number, output] if rides else [])

    def end_with_run(self, client: ClientRecord, fetch: RunFetch) -> None:
        """Go on with that once the run is issued."""
        message, entry, number, told = fetch
        if entry is None or number is None:
            kind, text = "ProtocolError", f"tensor {message.tensor} does not exist"
            fault = (kind, text) if entry is None or entry.fault is None else entry.fault
            self.service.send(client.identity, m.Failed(message.request, *fault))
        elif not told:
            self._collect(client, message, entry, number)

    def _begin(self, client: ClientRecord, request: int, entry: Entry) -> int:
        """Note a fetch that workers are about to be asked for. Returns its number."""
        record = self.service.meshes[entry.mesh]
        mesh = record.mesh
        _, silent, boxes = self._sources(record, entry)
        parts = len(boxes) + bool(silent)  # those who only say that they are sound are one part together
        nbytes = ANSWER_OVERHEAD_BYTES + min(entry.spec.nbytes, len(boxes) * MAX_INLINE_BYTES)
        principal = client.program.principal
        number = next(self.numbers)
        client.asked_bytes += nbytes
        self.service.ledger.fetched(client.account, entry.spec.nbytes)
        took = ANSWER_NANOSECONDS + NANOSECONDS_PER_BYTE * entry.spec.nbytes // max(1, len(boxes))
        self.service.pacer.answers(entry.mesh, took)
        collection = self.collections[number] = FetchRecord(
            client.number, request, entry.spec, parts, set(mesh.members), boxes, len(silent), nbytes, principal
        )  # fmt: skip
        self.of.setdefault(client.number, {})[number] = collection
        self.under_way[principal] += 1
        self.under_way_bytes[principal] += nbytes
        self.service.counters.fetches += 1
        if self.service.recording is not None:
            self.service.recording.fetch_asked(number, client)
        return number

    def _collect(self, client: ClientRecord, message: m.Fetch, entry: Entry, number: int) -> None:
        """Ask the workers for a tensor, by a message of its own."""
        holders, silent, _ = self._sources(self.service.meshes[entry.mesh], entry)
        for group, quiet in ((holders, False), (silent, True)):
            if group:
                collect = m.Collect(number, message.request, client.number, message.tensor, quiet, client.bulk)
                self.service.out.append(Send(group, collect))

    def _sources(self, record: MeshRecord, entry: Entry) -> tuple[tuple[bytes, ...], tuple[bytes, ...], dict[int, Any]]:
        """Which workers send a part of a fetched tensor (and which box they hold), and which only report that their copy has a
        value."""
        key = (entry.spec, entry.resident.layout)
        found = record.sources.get(key)
        if found is None:
            mesh = record.mesh
            holders, silent, boxes = [], [], {}
            known = {worker.number: worker.identity for worker in self.service.workers.values()}
            for rank, member in enumerate(mesh.members):
                at = mesh.coordinates(rank)
                first = all(at[axis] == 0 for axis, p in enumerate(entry.resident.layout) if isinstance(p, Replicate))
                part = box(entry.spec.shape, entry.resident.layout, mesh, rank)
                if part is not None and first and (all(extent(part)) or entry.spec.size == 0):
                    holders.append(known[member])
                    boxes[member] = [list(pair) for pair in part]
                else:
                    silent.append(known[member])
            if len(record.sources) >= MAX_SOURCES:
                record.sources.clear()
            found = record.sources[key] = (tuple(holders), tuple(silent), boxes)
        return found

    def part(self, worker: WorkerRecord, part: m.Part) -> ClientRecord | None:
        """Pass on a worker's answer. Returns the client that it is for, if it still waits."""
        collection = self.collections.get(part.request)
        if collection is None or worker.number not in collection.waiting:
            return None
        client = self.service.by_number[collection.client]
        if part.fault and client.undecided:
            self.held.setdefault(client.number, []).append((worker, part))
            return None
        collection.waiting.discard(worker.number)
        client.unread_bytes += len(part.data)
        if not collection.waiting:
            self._over(part.request)
            if self.service.recording is not None:
                self.service.recording.fetch_answered(part.request, collection)
        if part.fault and not collection.failed:
            collection.failed = True
            self.service.send(client.identity, m.Failed(collection.request, part.fault[0], part.fault[-1]))
        holds = worker.number in collection.boxes
        if not holds:
            collection.silent -= 1
            if collection.silent:
                return client
        if collection.failed and not part.bulk:
            return client  # a bulk part is passed on all the same: the client hears it out, so that the worker can let it go
        part_box: list[Any] = collection.boxes[worker.number] if holds else [["silent"]]
        self.service.send(
            client.identity,
            m.Value(
                collection.request, pack_spec(collection.spec), collection.parts, part_box,
                worker.number, worker.bulk, part.bulk, part.data,
            ),
        )  # fmt: skip
        client.answered = True
        return client

    def _over(self, number: int) -> None:
        """A fetch is no longer in progress."""
        collection = self.collections.pop(number)
        principal = collection.principal
        self.under_way[principal] -= 1
        self.under_way_bytes[principal] -= collection.nbytes
        if not self.under_way[principal]:
            del self.under_way[principal], self.under_way_bytes[principal]
        others = self.of[collection.client]
        del others[number]
        if not others:
            del self.of[collection.client]
        client = self.service.by_number.get(collection.client)
        if client is not None:
            client.asked_bytes -= collection.nbytes
            if client.head is WAITING_ANSWERS:
                self.freed.append(client)

    def forget(self, client: ClientRecord) -> None:
        """Drop the fetches of a client that has left."""
        self.held.pop(client.number, None)
        for number in list(self.of.get(client.number, ())):
            self._over(number)

    def fail(self, client: ClientRecord, fault: Fault) -> int:
        """Fail all fetches of a client at once. Returns how many. Later answers of workers to them are still accepted."""
        waiting = [each for each in self.of.get(client.number, {}).values() if not each.failed]
        for collection in waiting:
            self._fail(collection, fault)
        return len(waiting)

    def awaits(self, worker: WorkerRecord) -> bool:
        """Whether a worker has yet to answer a fetch."""
        return any(worker.number in collection.waiting for collection in self.collections.values())

    def broken(self, client: ClientRecord, fault: Fault) -> None:
        """Fail the fetches of a client that has nothing left."""
        for number, collection in list(self.of.get(client.number, {}).items()):
            self._over(number)  # the others' parts are forgotten with the mesh
            self._fail(collection, fault)

    def lost(self, worker: WorkerRecord, client: ClientRecord, fault: Fault) -> None:
        """Fail the fetches of a client of which a lost worker had yet to send a part, and those with errors that were held."""
        for number in list(self.of.get(client.number, ())):
            self._without(number, worker, fault)
        for other, part in self.held.pop(client.number, ()):
            self.part(other, part)

    def all_lost(self, worker: WorkerRecord, fault: Fault) -> Iterator[None]:
        """Fail all fetches of which a lost worker had yet to send a part, in turns."""
        for at, number in enumerate(list(self.collections), 1):
            if not at % FETCHES_PER_TURN:
                yield
            if number in self.collections:
                self._without(number, worker, fault)

    def _without(self, number: int, worker: WorkerRecord, fault: Fault) -> None:
        """A worker is gone that may have been asked for a part of a fetched tensor."""
        collection = self.collections[number]
        if worker.number not in collection.waiting:
            return
        collection.waiting.discard(worker.number)
        if not collection.waiting:
            self._over(number)
        if worker.number in collection.boxes:
            self._fail(collection, fault)
        else:
            self._sound(collection, worker)

    def _fail(self, collection: FetchRecord, fault: Fault) -> None:
        if not collection.failed:
            collection.failed = True
            client = self.service.by_number[collection.client]
            self.service.send(client.identity, m.Failed(collection.request, *fault))

    def _sound(self, collection: FetchRecord, worker: WorkerRecord) -> None:
        """A worker that was only to report that its copy has a value is gone: what the others say counts."""
        collection.silent -= 1
        if not collection.silent and not collection.failed:
            client = self.service.by_number[collection.client]
            spec, silent = pack_spec(collection.spec), [["silent"]]
            value = m.Value(collection.request, spec, collection.parts, silent, worker.number, worker.bulk, False, b"")
            self.service.send(client.identity, value)
