"""Records what the dispatcher tells watchers: who is there, what was issued, planned, fetched and refused, and why a
client's work does not go on.

The core and its parts call a method where something happens, and nothing while nobody watches. What is said of whole tables
(tensors, clients) is found out in turns: the first one when a batch is due, the others by a job; so the rest is in the batch
after it. Of tensors it is said at a slow rate, slower for more of them. The time is the core's; no socket, clock or thread in
here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from gt.dispatcher.state.events import Recovery
from gt.dispatcher.state.message_state import (
    WAITING_CREDIT,
    WAITING_MARK,
    WAITING_OPERATOR,
    WAITING_PUT,
    WAITING_RATE,
    WAITING_RESTORE,
    WAITING_SHARE,
    WAITING_WORKERS,
)
from gt.dispatcher.state.plan_cache import CachedPart, CachedPlan
from gt.dispatcher.state.records import ClientRecord, FetchRecord, MeshRecord, WorkerRecord
from gt.dispatcher.usage.ledger import RowKey
from gt.dispatcher.usage.rows import UsageRow
from gt.ir.instruction import MOVE, Plan
from gt.sharding.placement import Mesh, collective_name
from gt.turns import finish
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.event_buffer import EventBuffer

from .births import Birth, Births
from .tensor_look import MAX_TENSOR_ROWS, TENSORS_PER_TURN, look

if TYPE_CHECKING:
    from gt.dispatcher.state.shared_state import DispatcherState

WORKER_EVENT_RATES: Final = {t.SUMMARY: 40, t.TRACE: 300}
"""Events a second that go by themselves from each worker, by level: each takes some 7 µs to pack, check and pass on. And of all
workers together:"""
SERVICE_EVENT_RATES: Final = {t.SUMMARY: 500, t.TRACE: 1000}
DISPATCHER_EVENT_RATES: Final = {t.SUMMARY: (10, 2), t.TRACE: (300, 300)}
"""Of the dispatcher itself, a second and at once."""
SECOND: Final = t.SECOND
TENSORS_PERIOD: Final = SECOND
"""Nanoseconds between two looks at all of a client's tensors, at least."""
ENTRY_COST: Final = 30_000
"""And for each of them: a hundred times what looking at it takes."""
STUCK_TIME: Final = SECOND // 20
"""Nanoseconds after which it is said what a client's work waits for."""
WAITING_FOR: Final = {
    WAITING_WORKERS: "workers", WAITING_PUT: "put", WAITING_CREDIT: "credit", WAITING_RESTORE: "restore",
    WAITING_MARK: "mark", WAITING_SHARE: "share", WAITING_OPERATOR: "operator", WAITING_RATE: "rate",
}  # fmt: skip
"""How watchers are told of a wait (`telemetry.Waiting`); all others are for a plan."""
MAX_USED: Final = 64
"""The most sums of what was used that are told in one batch."""
BUSY_TIME: Final = SECOND // 2
"""Nanoseconds without a word from a worker, with plans before it, after which it is said to be busy."""
WORK_PER_TURN: Final = TENSORS_PER_TURN
"""How much is looked at in one turn: so many tensors, or as many clients and workers as count for that."""
CLIENT_WORK: Final = 8
"""What a client counts for that is told of, and what each of the tensors that are told of."""
TELL_OF_SESSIONS: Final = "tell of all clients and workers"
LOOK_AT_TENSORS: Final = "look at the tensors that are due"
DESCRIBE_PLANS: Final = "describe long plans"
DESCRIBED_PER_TURN: Final = 2048
"""How many instructions of a plan are looked at in one turn."""
_OVER: Final = object()
MAX_SIGNAL_RUNS: Final = 64
"""Runs back to which the signal is looked for in which a client is."""
MAX_ASKED: Final = 4096
MAX_ISSUES: Final = 1024
MAX_CHUNKS: Final = 16
MAX_MOVES: Final = 100
"""Moves, signals and sites of one plan that are told of: a batch of many plans must fit a frame."""
_SITE: Final = re.compile(r" at (\S+:\d+)")
_OP: Final = attrgetter("op")
_TAG: Final = attrgetter("tag")
_SIGNAL: Final = attrgetter("signal")
_SITE_OF: Final = attrgetter("site")
_ORDER: Final = itemgetter(0)
_PLAN: Final = itemgetter(1)


class DispatcherRecorder:
    """The recording of one dispatcher, while somebody watches."""

    def __init__(self, service: DispatcherState, level: int) -> None:
        self.service = service
        self.level = level
        self.recorder = EventBuffer(self.now, *DISPATCHER_EVENT_RATES[level])
        self.issues: list[Birth] = []
        """What was issued and not gone through yet."""
        self.recent: deque[list[Birth]] = deque(maxlen=MAX_CHUNKS)
        """And what was gone through lately."""
        self.carries: dict[int, tuple[int, int]] = {}
        """By order: plan and client."""
        self.last: dict[int, Birth] = {}
        """By client: what was issued last, of what was gone through."""
        self.asked: dict[int, tuple[int, int]] = {}
        """By collection: when it was asked for, and after which plan."""
        self.births: dict[int, Births] = {}
        """By client: where its tensors come from."""
        self.stuck: dict[int, tuple[int, int]] = {}
        """By client: the first message that waits, and since when."""
        self.look_at: dict[int, int] = {}
        """By client: when all its tensors are looked at again."""
        self.held: dict[int, int] = {}
        """By client: the bytes of its tensors at the last look."""
        self.states: dict[int, list[t.Event]] = {}
        """By client: what the next batch says of it."""
        self.tensors: dict[int, t.Tensors] = {}
        """By client: and of its tensors."""
        self.busy: dict[int, t.Waiting] = {}
        """By worker: what the next batch says of it."""
        self.describing: deque[Generator[None, None, t.PlanDescribed]] = deque()
        """What is said of long plans, which is found out in turns."""
        self.under_way: dict[str, Iterator[None]] = {}
        """What is done in turns, of which some are left."""
        self.gpus: dict[int, t.Device] = {}
        """By worker: how its GPU is, where that was told since the last batch."""

    def now(self) -> int:
        """Nanoseconds on the core's clock."""
        return int(self.service.now * SECOND)

    # who is there

    def client_joined(self, client: ClientRecord) -> None:
        """A client is there."""
        self.recorder.add(joined_client(self.now(), client))

    def client_left(self, client: ClientRecord, reason: str) -> None:
        """It is gone."""
        self._settle()
        births = self.births.pop(client.number, None)
        if births is not None:
            self.service.dispose_parts([*births.by_base.values()])
        for table in (self.last, self.stuck, self.look_at, self.held, self.states, self.tensors):
            table.pop(client.number, None)
        self.recorder.add(t.ClientLeft(self.now(), t.DISPATCHER, client.number, reason))

    def rewound(self, old: ClientRecord, client: ClientRecord, lost: int, reason: str) -> None:
        """A session goes back, and has another number from now on."""
        self._settle()
        self.recorder.add(t.SessionRewound(self.now(), t.DISPATCHER, client.number, old.number, lost, reason))
        self.client_left(old, reason)
        self.client_joined(client)

    def recovered(self, client: ClientRecord, mark: int, since: float) -> None:
        """A session that lost a worker at `since` goes on from a mark."""
        began = int(since * SECOND)
        self.recorder.add(t.SessionRecovered(began, t.DISPATCHER, self.now() - began, client.number, mark))

    def mark_stored(self, client: ClientRecord, mark: int, seconds: float) -> None:
        """A mark of a session is whole."""
        took = int(seconds * SECOND)
        self.recorder.add(t.MarkStored(self.now() - took, t.DISPATCHER, took, client.number, mark))

    def worker_joined(self, worker: WorkerRecord) -> None:
        """A worker is there."""
        self.recorder.add(joined_worker(self.now(), worker))

    def duty_changed(self, worker: WorkerRecord) -> None:
        """A worker is there for something else now."""
        self.recorder.add(duty_of(self.now(), worker))

    def worker_lost(self, worker: WorkerRecord, reason: str) -> None:
        """It is gone."""
        self.gpus.pop(worker.number, None)
        self.busy.pop(worker.number, None)
        self.recorder.add(t.WorkerLost(self.now(), t.DISPATCHER, worker.number, reason))

    def sampled(self, worker: WorkerRecord) -> None:
        """Its GPU told how it is."""
        for event in sampled(worker):
            self.gpus[worker.number] = event

    # plans and runs

    def described(
        self, client: ClientRecord, segment: int, cached: CachedPlan, members: tuple[int, ...], reason: str
    ) -> None:
        """A plan was made, and the workers were told."""
        plan = cached.planned.plan
        for each in cached.parts or (cached,):
            part = each.planned.plan
            self._describe(part, describe(self.now(), client.number, segment, each.number, part, members, reason))
        if reason in ("new", "placements"):
            site = plan.tags[plan.instructions[0].tag].site[: t.MAX_TEXT_LENGTH] if plan.instructions else ""
            self.recorder.add(
                t.CacheMiss(self.now(), t.DISPATCHER, 1, client.number, "plan", reason, cached.number, site)
            )

    def carried(self, client: ClientRecord, number: int, plan: Plan, mesh: Mesh, order: int) -> None:
        """A plan of one use takes tensors to another mesh."""
        self._describe(plan, describe(self.now(), client.number, -1, number, plan, mesh.members, "carry"))
        if len(self.carries) >= MAX_ISSUES:
            self.carries.clear()
        self.carries[order] = (number, client.number)

    def _describe(self, plan: Plan, turns: Generator[None, None, t.PlanDescribed]) -> None:
        """Say what a plan is like, at once or, of a long one, once that is found out."""
        if len(plan.instructions) <= DESCRIBED_PER_TURN:
            self.recorder.add(finish(turns))
            return
        self.describing.append(turns)
        if DESCRIBE_PLANS not in self.under_way:
            self.under_way[DESCRIBE_PLANS] = self._describe_long()

    def _describe_long(self) -> Iterator[None]:
        """Finds out what is said of long plans, in turns."""
        while self.describing:
            event = yield from self.describing.popleft()
            self.recorder.add(event)

    def defined(self, client: ClientRecord) -> None:
        """A segment came whole."""
        self.recorder.add(t.CacheMiss(self.now(), t.DISPATCHER, 1, client.number, "definition", "", -1, ""))

    def issued(self, client: ClientRecord, base: int, cached: CachedPlan | CachedPart, order: int) -> None:
        """A run became an execution of a plan. The hot path: what follows from it is worked out for many at once."""
        issues = self.issues
        issues.append((order, cached.number, base, self.service.now, client.number, cached.planned))
        if len(issues) >= MAX_ISSUES:
            self._settle()

    def _settle(self) -> None:
        """Go through what was issued: of a trace as many go by themselves as may, the rest is counted by plan."""
        issues, self.issues = self.issues, []
        if not issues:
            return
        recorder, single = self.recorder, 0
        for issue in issues:
            if self.level != t.TRACE or not recorder.bucket.take(int(issue[3] * SECOND)):
                break
            recorder.keep(_issued(issue, 1))
            single += 1
        rest = issues[single:]
        firsts = dict(zip(map(_PLAN, reversed(rest)), reversed(rest), strict=True))
        for number, times in Counter(map(_PLAN, rest)).items():
            recorder.collapse(_issued(firsts[number], times))
        self.recent.append(issues)
        by_client: dict[int, list[Birth]] = {}
        for issue in issues:
            by_client.setdefault(issue[4], []).append(issue)
        for client, mine in by_client.items():
            self.last[client] = mine[-1]
            self._born(client, mine)

    def put(self, client: ClientRecord, message: m.Put | m.Restore) -> None:
        """A put, or a tensor from a snapshot, was placed."""
        signal = "/".join(message.signal)
        self._born(client.number, [(-1, -1, message.tensor, self.service.now, client.number, signal)])

    def _born(self, client: int, some: list[Birth]) -> None:
        """Record where tensors come from; if there is no room for more, it is looked at once which of them live."""
        births = self._births(client)
        births.add(some)
        if births.is_full:
            self.look_at[client] = 0
            if LOOK_AT_TENSORS not in self.under_way:
                self.under_way[LOOK_AT_TENSORS] = self._look_at_due()

    def _births(self, client: int) -> Births:
        found = self.births.get(client)
        if found is None:
            found = self.births[client] = Births()
        return found

    def _ran(self, order: int) -> tuple[int, int]:
        """The plan and the client of what was issued lately as this order."""
        for chunk in reversed(self.recent):
            if chunk[0][0] <= order <= chunk[-1][0]:
                at = bisect_left(chunk, order, key=_ORDER)
                if chunk[at][0] == order:
                    return chunk[at][1], chunk[at][4]
        return self.carries.get(order, (-1, -1))

    def decided(self, client: int, what: str, level: str, text: str) -> None:
        """Something was decided, or written to the log."""
        self.recorder.add(t.Decision(self.now(), t.DISPATCHER, 1, client, what, level, text))

    def failed(self, worker: int, client: int, order: int, kind: str, text: str) -> None:
        """Something went wrong."""
        site = _SITE.search(text)
        self.recorder.add(t.Failure(self.now(), worker, 1, client, order, kind, text, site[1] if site else ""))

    # fetches

    def fetch_asked(self, number: int, client: ClientRecord) -> None:
        """A client wants a tensor."""
        if len(self.asked) < MAX_ASKED:
            issued = next((issue for issue in reversed(self.issues) if issue[4] == client.number), None)
            last = issued or self.last.get(client.number)
            self.asked[number] = (self.now(), -1 if last is None else last[1])

    def fetch_answered(self, number: int, collection: FetchRecord) -> None:
        """All workers have answered."""
        known = self.asked.pop(number, None)
        if known is not None:
            began, plan = known
            self.recorder.add(
                t.Fetched(began, t.DISPATCHER, self.now() - began, 1, collection.client, plan, collection.request,
                          collection.spec.nbytes)
            )  # fmt: skip

    # batches

    def take(self, wall: int, heard: dict[int, int], watchers: int, started: int) -> tuple[list[t.Event], int]:
        """All that was recorded, with samples of how it is now, and how many events were dropped. `heard`: when each worker
        told something last. Afterwards there may be work to do."""
        self._settle()
        if TELL_OF_SESSIONS not in self.under_way:
            self.under_way[TELL_OF_SESSIONS] = self._tell(heard)
        if LOOK_AT_TENSORS not in self.under_way:
            self.under_way[LOOK_AT_TENSORS] = self._look_at_due()
        self.work()
        events, dropped = self.recorder.take()
        events += self._used()
        events += self.gpus.values()
        self.gpus.clear()
        events.append(self._service(self.now(), wall, watchers, started))
        events += self.tensors.values()
        events += chain.from_iterable(self.states.values())
        events += self.busy.values()
        for told in (self.tensors, self.states, self.busy):
            told.clear()
        return events, dropped

    def work(self) -> None:
        """Do one turn of what is under way."""
        for what, turns in [*self.under_way.items()]:
            if next(turns, _OVER) is _OVER:
                del self.under_way[what]

    def _used(self) -> list[t.Used]:
        """Sums of what was used that have changed, some of them."""
        ledger, now = self.service.ledger, self.now()
        few = [*islice(ledger.changed, MAX_USED)]
        for key in few:
            del ledger.changed[key]
        return [used(now, key, ledger.rows[key]) for key in few]

    def _service(self, now: int, wall: int, watchers: int, started: int) -> t.Service:
        service, counters = self.service, self.service.counters
        clients = service.clients.values()
        return t.Service(
            now, t.DISPATCHER, wall, started, service.address, service.version, len(service.workers), len(clients), watchers,
            counters.runs, counters.instructions, counters.plans,
            counters.plan_hits + sum(client.hits for client in clients),
            counters.plans_improved + sum(client.improved for client in clients),
            counters.refused, counters.poisoned, counters.fetches, counters.puts,
            counters.internal_errors, counters.marks, counters.recoveries, counters.plans_refused,
        )  # fmt: skip

    def _tell(self, heard: dict[int, int]) -> Iterator[None]:
        """Finds out, in turns, what is to be said of clients, and of workers that are busy. A client's tensors are looked at
        first if they have never been."""
        spent, signals = 0, self._signals()
        for client in [*self.service.clients.values()]:
            number = client.number
            fresh = number not in self.look_at
            work = _wait_work(client) + (self._look_work(client) if fresh else 0)
            spent += work
            if spent > WORK_PER_TURN and spent > work:
                yield
                spent, signals = work, self._signals()
            if fresh and number not in self.look_at:
                yield from self._look(client)
            if number in self.held and self._is_there(client):
                now = self.now()
                self.states[number] = [self._state(client, now, signals), *self._stuck(client, now)]
        meshes = len(self.service.meshes)
        for worker in [*self.service.workers.values()]:
            since = heard.get(worker.number)
            if since is None or self.now() - since < BUSY_TIME:
                continue
            spent += 1 + meshes
            if spent > WORK_PER_TURN:
                yield
                spent = 1 + meshes
            self._busy(worker, since)

    def _look_at_due(self) -> Iterator[None]:
        """Looks at the tensors of each client for which it is time, in turns."""
        spent = 0
        for client in [*self.service.clients.values()]:
            if client.number not in self.look_at or self.now() < self.look_at[client.number]:
                continue
            work = self._look_work(client)
            spent += work
            if spent > WORK_PER_TURN and spent > work:
                yield
                spent = work
            if self._is_there(client):
                yield from self._look(client)

    def _look(self, client: ClientRecord) -> Iterator[None]:
        """Looks at a client's tensors, in turns, unless it leaves meanwhile."""
        number, now, length = client.number, self.now(), len(client.table)
        self.look_at[number] = now + TENSORS_PERIOD + ENTRY_COST * length
        turns = look(client, self.service.meshes, self._births(number), now)
        while True:
            try:
                next(turns)
            except StopIteration as end:
                self.held[number] = end.value.nbytes
                self.tensors[number] = t.Tensors(now, t.DISPATCHER, number, end.value.rows)
                return
            yield
            if not self._is_there(client):
                return

    def _look_work(self, client: ClientRecord) -> int:
        """How much it is to look at a client's tensors, of which some are told of."""
        count, births = len(client.table), self.births.get(client.number, ())
        return CLIENT_WORK + count + len(births) + CLIENT_WORK * min(count, MAX_TENSOR_ROWS)

    def _is_there(self, client: ClientRecord) -> bool:
        return self.service.by_number.get(client.number) is client

    def _state(self, client: ClientRecord, now: int, signals: dict[int, tuple[str, str]]) -> t.ClientState:
        """How a client is. It is where it was last in a signal, or else where its latest run was."""
        signal, site = signals.get(client.number) or _place(self.last.get(client.number))[1:]
        runs = client.hits + sum(client.misses.values())
        recovery, members = client.recovery, 0 if client.mesh is None else len(client.mesh.members)
        return t.ClientState(
            now, t.DISPATCHER, client.number, len(client.table), self.held[client.number], len(client.queue),
            len(client.inflight), runs, client.made, client.hits, client.improved, signal, site, recovery.stored,
            _nanoseconds(recovery.stored_at), _nanoseconds(recovery.stored_seconds), recovery.recoveries,
            _nanoseconds(recovery.recovery_seconds), _phase(client), members - len(recovery.restoring), members,
            self.service.pacer.kind(client.number), int(client.paused), round(client.weight * 1000),
        )  # fmt: skip

    def _signals(self) -> dict[int, tuple[str, str]]:
        """By client: the signal and site where it is, of its latest runs' last instruction that has a signal. Each turn of a
        training loop ends with its optimizer, which has none."""
        found: dict[int, tuple[str, str]] = {}
        latest = islice((issue for chunk in reversed(self.recent) for issue in reversed(chunk)), MAX_SIGNAL_RUNS)
        for *_, whose, planned in latest:
            if whose not in found and not isinstance(planned, str):
                tag = next((tag for tag in reversed(planned.plan.tags) if tag.signal), None)
                if tag is not None:
                    found[whose] = "/".join(tag.signal), tag.site
        return found

    def _stuck(self, client: ClientRecord, now: int) -> list[t.Waiting]:
        """What keeps the first message of a client's queue waiting, if it has waited for a while."""
        if not client.queue:
            self.stuck.pop(client.number, None)
            return []
        head = client.queue[0]
        before, since = self.stuck.get(client.number, (0, now))
        if before != id(head):
            since = now
            self.stuck[client.number] = (id(head), now)
        if now - since < STUCK_TIME:
            return []
        what, peers = self._reason(client, head)
        plan, signal, site = _place(self.last.get(client.number))
        return [
            t.Waiting(now, t.DISPATCHER, since, what, client.number, plan, -1, "", peers, len(peers), 0, signal, site)
        ]

    def _reason(self, client: ClientRecord, head: Any) -> tuple[str, list[int]]:
        """What the message at the head of a client's queue waits for, and at which workers."""
        peers: list[int] = []
        if client.head is WAITING_PUT:
            read = head.inputs if isinstance(head, m.Run) else [head.tensor]
            peers = sorted({worker for tensor in read for worker in client.table[tensor].landing})
        elif client.head is WAITING_CREDIT and client.mesh is not None:
            record = self.service.meshes[client.mesh.number]
            peers = [worker for worker, last in record.done.items() if last < record.pending[0]]
        elif client.head is WAITING_SHARE and client.mesh is not None:
            peers = list(client.mesh.members)
        elif client.head is WAITING_RESTORE:
            peers = sorted(client.recovery.restoring)
        return WAITING_FOR.get(client.head, "plan"), peers

    def _busy(self, worker: WorkerRecord, since: int) -> None:
        """A worker has told nothing since a time: note that, if it has plans before it."""
        firsts = (_before(record, worker.number) for record in self.service.meshes.values())
        order = min((first for first in firsts if first), default=-1)
        if order >= 0 and worker.identity in self.service.workers:
            plan, client = self._ran(order)
            self.busy[worker.number] = t.Waiting(
                self.now(), t.DISPATCHER, since, "busy", client, plan, order, "", [worker.number], 0, 0, "", ""
            )


def _wait_work(client: ClientRecord) -> int:
    """How much it is to tell of a client, and of what it waits for."""
    if not client.queue:
        return CLIENT_WORK
    members = 0 if client.mesh is None else len(client.mesh.members)
    return CLIENT_WORK + members + len(getattr(client.queue[0], "inputs", ()))


def _phase(client: ClientRecord) -> str:
    """How far a session is with its recovery, as `ClientState` says it; '' if there is none."""
    recovery = client.recovery
    if recovery.awaited:
        return "rewound"
    if recovery.restoring:
        return "restoring"
    if recovery.begins or (client.queue and isinstance(client.queue[0], Recovery)):
        return "workers"
    if client.paused:
        return ""  # it computes nothing, until an operator lets it
    return "repeating" if recovery.resends and recovery.over < recovery.taken else ""


def _nanoseconds(seconds: float) -> int:
    """-1 where it is not known."""
    return -1 if seconds < 0 else int(seconds * SECOND)


def _before(record: MeshRecord, worker: int) -> int | None:
    """The first order that a worker has not finished on a mesh."""
    last = record.done.get(worker)
    return None if last is None else next((order for order in record.pending if order > last), None)


def _issued(issue: Birth, times: int) -> t.RunIssued:
    """What is said of the issue of a run, and so many others of its plan."""
    order, number, _, now, client, _ = issue
    return t.RunIssued(int(now * SECOND), t.DISPATCHER, times, number, client, order)


def joined_client(now: int, client: ClientRecord) -> t.ClientJoined:
    """What is said of a client that is there."""
    facts = client.facts
    return t.ClientJoined(
        now, t.DISPATCHER, client.number, _text(facts, "host"), _number(facts, "pid"), _text(facts, "program"),
        client.program.principal,
    )  # fmt: skip


def joined_worker(now: int, worker: WorkerRecord) -> t.WorkerJoined:
    """What is said of a worker that is there."""
    facts = worker.facts
    return t.WorkerJoined(
        now, t.DISPATCHER, worker.number, _text(facts, "host"), _number(facts, "pid"), _text(facts, "device"),
        _text(facts, "kind"), _number(facts, "cores"),
    )  # fmt: skip


def duty_of(now: int, worker: WorkerRecord) -> t.DutyChanged:
    """What is said of what a worker is there for."""
    return t.DutyChanged(now, t.DISPATCHER, worker.number, str(worker.duty))


def used(now: int, key: RowKey, row: UsageRow) -> t.Used:
    """What is said of what a principal has used."""
    return t.Used(now, t.DISPATCHER, *key, *row.values())


def sampled(worker: WorkerRecord) -> list[t.Device]:
    """What is said of a worker's GPU, where anything is known of it."""
    health = worker.health
    return [] if health.said is None else [t.Device(int(health.at * SECOND), worker.number, *health.said)]


def describe(
    now: int, client: int, segment: int, number: int, plan: Plan, members: tuple[int, ...], reason: str,
    per_turn: int = DESCRIBED_PER_TURN,
) -> Generator[None, None, t.PlanDescribed]:  # fmt: skip
    """What is said of a plan, found out in turns of so many instructions."""
    ops: Counter[str] = Counter()
    known: set[int] = set()
    signals: dict[Any, None] = {}
    sites: dict[str, None] = {}
    moves: list[Any] = []
    for at in range(0, len(plan.instructions), per_turn):
        if at:
            yield
        few = plan.instructions[at : at + per_turn]
        ops.update(map(_OP, few))
        fresh = [tag for tag in dict.fromkeys(map(_TAG, few)) if tag not in known]
        known.update(fresh)
        tags = [*map(plan.tags.__getitem__, fresh)]
        signals.update(dict.fromkeys(map(_SIGNAL, tags)))
        sites.update(dict.fromkeys(map(_SITE_OF, tags)))
        if MOVE in ops and len(moves) < MAX_MOVES:
            moves += [instruction for instruction in few if instruction.op == MOVE]
    return t.PlanDescribed(
        now, t.DISPATCHER, number, client, segment, list(members[: t.MAX_LIST_ITEMS]), reason, len(plan.instructions),
        _first_of("/".join(signal)[: t.MAX_TEXT_LENGTH] for signal in signals),
        _first_of(site[: t.MAX_TEXT_LENGTH] for site in sites),
        [[op, count] for op, count in ops.most_common()],
        [_moved(plan, move) for move in islice(moves, MAX_MOVES)],
    )  # fmt: skip


def _first_of(names: Iterable[str]) -> list[str]:
    """The first names, without duplicates, as many as are told of."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        if len(found) >= MAX_MOVES:
            break
    return [*found]


def _moved(plan: Plan, move: Any) -> list[Any]:
    (source,), (output,) = move.inputs, move.outputs
    tag = plan.tags[move.tag]
    kind = collective_name(plan.layout(source), plan.layouts[output])
    return [kind, plan.values[output].nbytes, "/".join(tag.signal)[: t.MAX_TEXT_LENGTH], tag.site[: t.MAX_TEXT_LENGTH]]


def _place(issue: Birth | None) -> tuple[int, str, str]:
    """The plan of what was issued, and the signal and site of its last instruction."""
    if issue is None:
        return -1, "", ""
    _, number, _, _, _, planned = issue
    assert not isinstance(planned, str), "a put is not issued"
    plan = planned.plan
    if not plan.instructions:
        return number, "", ""
    tag = plan.tags[plan.instructions[-1].tag]
    return number, "/".join(tag.signal), tag.site


def _text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name)
    return value[: t.MAX_TEXT_LENGTH] if isinstance(value, str) else ""


def _number(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if type(value) is int and 0 <= value < 1 << 31 else -1
