"""Sums over the events of a recording, made in one pass, for reports and advice.

Pure: events in, numbers out; nothing is drawn or worded here. Memory grows with the program (its lines, plans and ops), and,
for the timeline only, with the recording.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gt.ir.ops import OPS
from gt.wire import telemetry as t

TIME_SHARES: Final = ("compute", "communication", "runtime", "waiting", "idle")
GATHER_KINDS: Final = ("all-gather", "gather")
MAX_KEPT_EVENTS: Final = 500
"""The most errors and decisions that are kept verbatim."""
OP_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "products": (
        "matmul",
        "conv",
        "attention",
        "attention_grad",
        "recurrence",
        "recurrence_grad",
        "linalg",
        "solve",
        "fft",
    ),
    "element-wise": ("unary", "binary", "cast", "where", "creation", "random", "follow", "tag"),
    "reductions": ("reduction", "arg", "along", "search"),
    "indexing": (
        "gather",
        "scatter_add",
        "take",
        "segment_sum",
        "scatter",
        "compress",
        "rows",
        "update_slice",
        "slice",
    ),
}
"""The colour groups of op families; all other families rearrange."""
_GROUP_OF: Final = {family: group for group, families in OP_GROUPS.items() for family in families}


def group_of(op: str) -> str:
    """The colour group of an op (of fused ones, that of the first)."""
    known = OPS.get(op.partition("+")[0])
    return _GROUP_OF.get(known.family, "rearranging") if known else "rearranging"


class PlanSite(NamedTuple):
    """Something that a plan does at a line of the program."""

    plan: int
    name: str
    signal: str
    site: str


@dataclass(slots=True)
class OpSums:
    """Sampled op slices: their number, their time, and the elements of their results."""

    times: int = 0
    duration: int = 0
    elements: int = 0


@dataclass(slots=True)
class CollectiveSums:
    """Sums over collectives."""

    times: int = 0
    duration: int = 0
    waiting: int = 0
    sent: int = 0


@dataclass(slots=True)
class SpillSums:
    """Sums over evictions to a worker's file: bytes `out` and `back`, of these bytes read `ahead`, and how long the worker's
    thread was delayed."""

    times: int = 0
    duration: int = 0
    out: int = 0
    back: int = 0
    ahead: int = 0


@dataclass(slots=True)
class PlanFindings:
    """Sums over the runs of a plan. `compute` and `times` are by worker."""

    number: int
    described: t.PlanDescribed | None = None
    runs: int = 0
    times: Counter[int] = field(default_factory=Counter)
    compute: Counter[int] = field(default_factory=Counter)
    duration: int = 0
    fetches: int = 0
    fetching: int = 0
    """The nanoseconds of fetches after it."""
    told: int = 0
    waited: int = 0
    """Of the fetches that were reported individually: all, and those for which the program seems to have waited."""

    @property
    def blocking(self) -> float:
        """The share of its fetches for which the program waited."""
        return self.waited / self.told if self.told else 1.0

    @property
    def signal(self) -> str:
        """The outermost signal of its instructions."""
        return min((name for name in self.described.signals if name), key=len, default="") if self.described else ""

    @property
    def first(self) -> str:
        """The line where it begins."""
        return self.described.sites[0] if self.described and self.described.sites else ""

    @property
    def last(self) -> str:
        """The line where it ends: a fetch that follows is near."""
        return self.described.sites[-1] if self.described and self.described.sites else ""


@dataclass(slots=True)
class WorkerFindings:
    """What is known about a worker: its first and last counters, what it held, and what it sent."""

    number: int
    joined: t.WorkerJoined | None = None
    before: t.Utilisation | None = None
    counters: t.Utilisation | None = None
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """(time, bytes held, bytes of the process)."""
    limit: int = 0
    sent_before: dict[int, int] | None = None
    sent: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class ClientFindings:
    """What is known about a client."""

    number: int
    joined: t.ClientJoined | None = None
    state: t.ClientState | None = None
    peak: int = 0
    runs: int = 0
    ran: int = 0
    """When its last run began."""
    fetches: int = 0
    fetching: int = 0
    waiting: tuple[PlanFindings, int] | None = None
    """The last fetch for which it seems to have waited: after which plan, and until when."""
    marks: int = 0
    marking: int = 0
    """The nanoseconds that their slowest workers took to write these."""


class TimelineSlice(NamedTuple):
    """One slice on a track of the timeline. `what` is the kind of an event or a colour group."""

    start: int
    duration: int
    name: str
    what: str
    times: int
    signal: str
    site: str
    nbytes: int


@dataclass(slots=True)
class Findings:
    """Everything that a recording amounts to."""

    start: int = 0
    end: int = 0
    service: t.Service | None = None
    workers: dict[int, WorkerFindings] = field(default_factory=dict)
    clients: dict[int, ClientFindings] = field(default_factory=dict)
    sessions: dict[int, int] = field(default_factory=dict)
    """By the later numbers of sessions that went back: the first one, under which everything of them is added up."""
    losses: dict[int, t.SessionRewound] = field(default_factory=dict)
    """By the number that it gave: the last time that a session went back."""
    recoveries: list[tuple[t.SessionRewound | None, t.SessionRecovered]] = field(default_factory=list)
    """Sessions that went back and on, and why."""
    plans: dict[int, PlanFindings] = field(default_factory=dict)
    ops: defaultdict[PlanSite, OpSums] = field(default_factory=lambda: defaultdict(OpSums))
    moves: defaultdict[tuple[str, str, str], CollectiveSums] = field(
        default_factory=lambda: defaultdict(CollectiveSums)
    )
    """By collective, signal and site."""
    spills: defaultdict[tuple[int, str, str], SpillSums] = field(default_factory=lambda: defaultdict(SpillSums))
    """By worker, and by signal and site of the run that caused them."""
    waits: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The nanoseconds in which the dispatcher delayed a client's queue, by reason and client."""
    misses: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By cache, reason and site."""
    told: list[t.Failure | t.Decision] = field(default_factory=list)
    tracks: dict[tuple[str, int, str], list[TimelineSlice]] = field(default_factory=dict)
    """Slices by ('worker' or 'client', number, stream)."""

    @property
    def span(self) -> int:
        """The nanoseconds from the first to the last moment that the recording covers."""
        return max(0, self.end - self.start)

    def time_of(self, worker: WorkerFindings) -> dict[str, int]:
        """Where a worker's time went during the recording."""
        last, first = worker.counters, worker.before
        if last is None:
            return dict.fromkeys(TIME_SHARES, 0)
        return {name: getattr(last, name) - (getattr(first, name) if first else 0) for name in TIME_SHARES}

    @property
    def time(self) -> dict[str, int]:
        """The same over all workers."""
        total = dict.fromkeys(TIME_SHARES, 0)
        for worker in self.workers.values():
            for name, value in self.time_of(worker).items():
                total[name] += value
        return total

    def sent(self, worker: WorkerFindings) -> dict[int, int]:
        """The bytes that a worker sent to each other worker during the recording."""
        before = worker.sent_before or {}
        return {peer: nbytes - before.get(peer, 0) for peer, nbytes in worker.sent.items()}

    def estimated(self) -> list[tuple[PlanSite, OpSums, float]]:
        """The time in kernels by place: the computing time of each plan, divided as its samples suggest. The longest first.

        A plan without samples counts as a whole, at its own signal and first line.
        """
        sampled: Counter[int] = Counter()
        for place, op in self.ops.items():
            sampled[place.plan] += op.duration
        whole = {number: sum(plan.compute.values()) for number, plan in self.plans.items()}
        found = [
            (place, op, whole.get(place.plan, 0) * op.duration / sampled[place.plan])
            for place, op in self.ops.items()
            if sampled[place.plan] and whole.get(place.plan, 0)
        ]
        for number, compute in whole.items():
            if compute and not sampled[number]:
                plan = self.plans[number]
                found.append((PlanSite(number, "not sampled", plan.signal, plan.first), OpSums(), float(compute)))
        return sorted(found, key=lambda each: -each[2])


def gather(events: Iterable[t.Event]) -> Findings:
    """Sum up a recording as `reading.read` yields it, in which waiting that goes on is a single event."""
    found = Findings()
    first, last = 1 << 63, -(1 << 63)
    for event in events:
        begins, ends = _when(event)
        first, last = min(first, begins), max(last, ends)
        add = _ADDERS.get(type(event))
        if add is not None:
            add(found, event)
    if first <= last:
        found.start, found.end = first, last
    return found


def _when(event: Any) -> tuple[int, int]:
    """The time of an event. For peers that joined long before, it is the time of the report, which other events tell."""
    if isinstance(event, (t.ClientJoined, t.WorkerJoined, t.PlanDescribed)):
        return 1 << 63, -(1 << 63)
    if isinstance(event, t.Waiting):
        return event.since, event.time
    return event.time, event.time + (getattr(event, "duration", 0) if getattr(event, "times", 1) == 1 else 0)


def _plan(found: Findings, number: int) -> PlanFindings:
    plan = found.plans.get(number)
    if plan is None:
        plan = found.plans[number] = PlanFindings(number)
    return plan


def _worker(found: Findings, number: int) -> WorkerFindings:
    worker = found.workers.get(number)
    if worker is None:
        worker = found.workers[number] = WorkerFindings(number)
    return worker


def _client(found: Findings, number: int) -> ClientFindings:
    number = found.sessions.get(number, number)
    client = found.clients.get(number)
    if client is None:
        client = found.clients[number] = ClientFindings(number)
    return client


def _draw(found: Findings, who: str, number: int, stream: str, piece: TimelineSlice) -> None:
    if who == "client":
        number = found.sessions.get(number, number)
    if piece.times != 1:
        stream = f"{stream} (added up)"
    found.tracks.setdefault((who, number, stream), []).append(piece)


def _plan_slice(found: Findings, event: t.PlanSlice) -> None:
    _worker(found, event.worker)
    plan = _plan(found, event.plan)
    plan.times[event.worker] += event.times
    plan.compute[event.worker] += event.compute
    plan.duration += event.duration
    name = f"{plan.signal} · plan {plan.number}" if plan.signal else f"plan {plan.number}"
    piece = TimelineSlice(event.time, event.duration, name, "plan", event.times, plan.signal, plan.first, 0)
    _draw(found, "worker", event.worker, "plans", piece)


def _op_slice(found: Findings, event: t.OpSlice) -> None:
    op = found.ops[PlanSite(event.plan, event.op, event.signal, event.site)]
    op.times += event.times
    op.duration += event.duration
    op.elements += event.elements
    piece = TimelineSlice(
        event.time, event.duration, event.op, group_of(event.op), event.times, event.signal, event.site, event.nbytes
    )
    _draw(found, "worker", event.worker, "instructions", piece)


def _collective(found: Findings, event: t.Collective) -> None:
    moved = found.moves[event.kind, event.signal, event.site]
    moved.times += event.times
    moved.duration += event.duration
    moved.waiting += event.waiting
    moved.sent += event.sent
    piece = TimelineSlice(
        event.time, event.duration, event.kind, "collective", event.times, event.signal, event.site, event.sent
    )
    _draw(found, "worker", event.worker, "communication", piece)


def _transfer(found: Findings, event: t.Transfer) -> None:
    piece = TimelineSlice(event.time, event.duration, event.kind, "transfer", event.times, "", "", event.nbytes)
    _draw(found, "worker", event.worker, "transfers", piece)


def _spill(found: Findings, event: t.Spill) -> None:
    plan = found.plans.get(event.plan)
    signal, site = event.signal, event.site
    if plan is not None and not site:
        signal, site = signal or plan.signal, plan.first
    gone = found.spills[event.worker, signal, site]
    gone.times += event.times
    gone.duration += event.duration
    if event.kind == "out":
        gone.out += event.nbytes
    elif event.kind != "full":
        gone.back += event.nbytes
        gone.ahead += event.nbytes if event.kind == "ahead" else 0
    piece = TimelineSlice(
        event.time, event.duration, f"spill: {event.kind}", "spill", event.times, signal, site, event.nbytes
    )
    _draw(found, "worker", event.worker, "spills", piece)


def _utilisation(found: Findings, event: t.Utilisation) -> None:
    worker = _worker(found, event.worker)
    if worker.counters is None:
        # Counters that began before this recording did, because somebody else was watching, count from here.
        began = event.time - sum(getattr(event, name) for name in TIME_SHARES)
        worker.before = event if found.service is not None and began < found.service.time - MAX_LATE_NS else None
    elif event.time < worker.counters.time:
        return
    worker.counters = event


MAX_LATE_NS: Final = 1_000_000_000
"""Nanoseconds that a worker's recording may begin before the first word, if it began because of it."""


def _gauges(found: Findings, event: t.Gauges) -> None:
    worker = _worker(found, event.worker)
    worker.memory.append((event.time, event.held, event.process))
    worker.limit = event.limit


def _traffic(found: Findings, event: t.Traffic) -> None:
    worker = _worker(found, event.worker)
    counts = dict(zip(event.peers, event.nbytes, strict=False))
    if worker.sent_before is None:
        worker.sent_before = counts if worker.before is not None else {}
    worker.sent = counts


def _waiting(found: Findings, event: t.Waiting) -> None:
    lasted = max(0, event.time - event.since)
    if event.worker < 0:
        found.waits[event.what, found.sessions.get(event.client, event.client)] += lasted
    piece = TimelineSlice(
        event.since, lasted, f"waiting: {event.what}", "waiting", 1, event.signal, event.site, event.nbytes
    )
    if event.worker >= 0 or (event.what == "busy" and event.peers):
        _draw(found, "worker", event.worker if event.worker >= 0 else event.peers[0], "waiting", piece)
    elif event.client >= 0:
        _draw(found, "client", event.client, "waiting", piece)


def _service(found: Findings, event: t.Service) -> None:
    found.service = found.service if found.service and found.service.time > event.time else event


def _client_joined(found: Findings, event: t.ClientJoined) -> None:
    _client(found, event.client).joined = event


def _rewound(found: Findings, event: t.SessionRewound) -> None:
    found.sessions[event.client] = found.sessions.get(event.old, event.old)
    found.losses[event.client] = event


def _recovered(found: Findings, event: t.SessionRecovered) -> None:
    if len(found.recoveries) < MAX_KEPT_EVENTS:
        found.recoveries.append((found.losses.get(event.client), event))
    piece = TimelineSlice(event.time, event.duration, "recovery", "waiting", 1, "", "", 0)
    _draw(found, "client", event.client, "waiting", piece)


def _marked(found: Findings, event: t.MarkStored) -> None:
    client = _client(found, event.client)
    client.marks += 1
    client.marking += event.duration


def _client_state(found: Findings, event: t.ClientState) -> None:
    client = _client(found, event.client)
    client.state = event
    client.peak = max(client.peak, event.nbytes)


def _worker_joined(found: Findings, event: t.WorkerJoined) -> None:
    _worker(found, event.number).joined = event


def _described(found: Findings, event: t.PlanDescribed) -> None:
    _plan(found, event.plan).described = event


def _run(found: Findings, event: t.RunIssued) -> None:
    _plan(found, event.plan).runs += event.times
    client = _client(found, event.client)
    client.runs += event.times
    client.ran = max(client.ran, event.time)


def _fetched(found: Findings, event: t.Fetched) -> None:
    plan, client = _plan(found, event.plan), _client(found, event.client)
    plan.fetches += event.times
    plan.fetching += event.duration
    if event.times == 1:
        plan.told += 1
        if client.waiting is not None and event.time < client.waiting[1]:
            client.waiting[0].waited -= 1  # it went on and asked for this one
        client.waiting = None
        # While it waits a program asks for nothing; what it had asked for before begins in the first half of that time.
        if client.ran <= event.time + event.duration // 2:
            plan.waited += 1
            client.waiting = plan, event.time + event.duration
    client.fetches += event.times
    client.fetching += event.duration
    piece = TimelineSlice(
        event.time, event.duration, "fetch", "transfer", event.times, plan.signal, plan.last, event.nbytes
    )
    _draw(found, "client", event.client, "fetches", piece)


def _miss(found: Findings, event: t.CacheMiss) -> None:
    found.misses[event.cache, event.reason, event.site] += event.times


def _told(found: Findings, event: t.Failure | t.Decision) -> None:
    if len(found.told) < MAX_KEPT_EVENTS:
        found.told.append(event)


_ADDERS: Final[dict[type[Any], Any]] = {
    t.PlanSlice: _plan_slice,
    t.OpSlice: _op_slice,
    t.Collective: _collective,
    t.Transfer: _transfer,
    t.Utilisation: _utilisation,
    t.Gauges: _gauges,
    t.Traffic: _traffic,
    t.Waiting: _waiting,
    t.Service: _service,
    t.ClientJoined: _client_joined,
    t.ClientState: _client_state,
    t.WorkerJoined: _worker_joined,
    t.PlanDescribed: _described,
    t.RunIssued: _run,
    t.Fetched: _fetched,
    t.CacheMiss: _miss,
    t.Failure: _told,
    t.Decision: _told,
    t.Spill: _spill,
    t.MarkStored: _marked,
    t.SessionRewound: _rewound,
    t.SessionRecovered: _recovered,
}
