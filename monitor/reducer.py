"""Events in, a `Snapshot` out: what a monitor knows about a service, in bounded memory, without clock, socket or thread.

The time is that of the newest event, on the dispatcher's clock. Differences of counters over about a second give rates and
shares. When the service reports that it was restarted, everything but the log begins anew.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from gt.ir.ops import OPS
from gt.wire import telemetry as t

from .snapshot import ClientView, Hot, LogLine, Matrix, Snapshot, Split, Status, Task, TensorView, WorkerView

SECOND: Final = 1_000_000_000
MIN_WINDOW_NS: Final = SECOND
"""The least time, in nanoseconds, over which rates and shares are computed."""
HISTORY_SECONDS: Final = 300
"""The seconds of a worker's history that are kept."""
MAX_TASKS: Final = 400
"""The most slices that are kept of a track."""
MAX_LOG_LINES: Final = 1000
"""The most lines that are kept of the log."""
MAX_PLANS: Final = 4096
"""The most plans that are remembered."""
HOT_SECONDS: Final = 60
"""The seconds over which hot ops and signals are added up."""
MAX_HOT_NAMES: Final = 256
"""The most different hot names in one second; the rest is summed up as one."""
OTHERS_NAME: Final = "(others)"
WAITING_VALID_NS: Final = SECOND
"""The nanoseconds for which a report of waiting is valid."""
SILENT_AFTER_NS: Final = 3 * SECOND
LOST_SHOWN_NS: Final = 30 * SECOND
"""The nanoseconds for which a lost worker is shown."""
MAX_NUMBERS: Final = 16
"""The most numbers of one session that are remembered."""
MAX_GONE_CLIENTS: Final = 256
"""The most clients that have left and are remembered."""
_STATES: Final = ("compute", "communication", "runtime", "waiting", "idle")


class SampleSeries:
    """The latest samples of counters: enough for differences over `MIN_WINDOW_NS`."""

    __slots__ = ("samples",)

    def __init__(self) -> None:
        self.samples: deque[Any] = deque(maxlen=64)

    def add(self, sample: Any) -> None:
        """Add a later sample."""
        samples = self.samples
        samples.append(sample)
        while len(samples) > 2 and sample.time - samples[1].time >= MIN_WINDOW_NS:
            samples.popleft()

    @property
    def last(self) -> Any:
        """The latest sample; None if there is none."""
        return self.samples[-1] if self.samples else None

    def rate(self, value: Callable[[Any], float]) -> float:
        """By how much a counter grows per second."""
        if len(self.samples) < 2:
            return 0.0
        first, last = self.samples[0], self.samples[-1]
        passed = last.time - first.time
        return max(0.0, value(last) - value(first)) * SECOND / passed if passed > 0 else 0.0

    def split(self) -> Split:
        """The shares of a worker's time."""
        if len(self.samples) < 2:
            return Split()
        return _split(self.samples[0], self.samples[-1])


@dataclass(slots=True)
class _Worker:
    joined: t.WorkerJoined
    counters: SampleSeries = field(default_factory=SampleSeries)
    traffic: SampleSeries = field(default_factory=SampleSeries)
    gauges: t.Gauges | None = None
    gpu: t.Device | None = None
    graphs: t.Graphs | None = None
    heard: int = 0
    lost: int = -1
    duty: str = "in service"
    waiting: t.Waiting | None = None
    recent: deque[Task] = field(default_factory=lambda: deque(maxlen=MAX_TASKS))
    history: deque[Split] = field(default_factory=lambda: deque(maxlen=HISTORY_SECONDS))
    marked: t.Utilisation | None = None
    """The counters at the end of the last second of the history."""


@dataclass(slots=True)
class _Client:
    joined: t.ClientJoined
    numbers: list[int]
    states: SampleSeries = field(default_factory=SampleSeries)
    waiting: t.Waiting | None = None
    tensors: tuple[TensorView, ...] = ()
    recent: deque[Task] = field(default_factory=lambda: deque(maxlen=MAX_TASKS))


class Reducer:
    """What is known about one service. `feed` it events, and ask for a `snapshot`."""

    def __init__(self) -> None:
        self.log: deque[LogLine] = deque(maxlen=MAX_LOG_LINES)
        self._begin()

    def _begin(self) -> None:
        self.now = 0
        self.service = SampleSeries()
        self.workers: dict[int, _Worker] = {}
        self.clients: dict[int, _Client] = {}
        self.gone: deque[int] = deque(maxlen=MAX_GONE_CLIENTS)
        """The clients that left last, so that late events do not bring them back."""
        self.plans: dict[int, t.PlanDescribed] = {}
        self.misses: Counter[str] = Counter()
        self.hot: deque[tuple[int, dict[tuple[str, str], list[Any]]]] = deque(maxlen=HOT_SECONDS)
        """By second, for ops and signals: (how often, how long, where last)."""
        self.failures: deque[str] = deque(maxlen=64)

    def feed(self, events: Iterable[t.Event]) -> None:
        """Process events."""
        for event in events:
            take = _HANDLERS.get(type(event))
            if take is not None:
                take(self, event)

    # who is there

    def _service(self, event: t.Service) -> None:
        last = self.service.last
        if last is not None and last.started != event.started:
            self._begin()  # another dispatcher: nothing of before is there any more
        self.now = max(self.now, event.time)
        self.service.add(event)
        for number in [n for n, w in self.workers.items() if 0 <= w.lost < self.now - LOST_SHOWN_NS]:
            del self.workers[number]

    def _worker_joined(self, event: t.WorkerJoined) -> None:
        known = self.workers.get(event.number)
        if known is None or known.lost >= 0 or known.joined.device == "":
            made = self.workers[event.number] = _Worker(event, heard=event.time)
            if known is not None:
                made.history = known.history

    def _duty_changed(self, event: t.DutyChanged) -> None:
        self._worker(event.number, event.time).duty = event.duty

    def _worker_lost(self, event: t.WorkerLost) -> None:
        worker = self._worker(event.number, event.time)
        if worker.duty == "leaving":
            del self.workers[event.number]  # it went in order
        worker.lost = event.time

    def _worker(self, number: int, time: int) -> _Worker:
        """The record of a worker, created if its joining was not reported."""
        found = self.workers.get(number)
        if found is None:
            found = self.workers[number] = _Worker(t.WorkerJoined(time, t.DISPATCHER, number, "", -1, "", "", 0))
        return found

    def _client_joined(self, event: t.ClientJoined) -> None:
        client = self.clients.setdefault(event.client, _Client(event, [event.client]))
        client.joined = event if len(client.numbers) == 1 else event._replace(time=client.joined.time)

    def _rewound(self, event: t.SessionRewound) -> None:
        """The session goes on under another number: it stays what it was."""
        client = self.clients.pop(event.old, None)
        self.gone.append(event.old)
        if client is None:
            client = self._client(event.client, event.time)
        self.clients[event.client] = client
        client.joined = client.joined._replace(client=event.client)
        client.tensors, client.waiting = (), None
        if event.client not in client.numbers:
            client.numbers.append(event.client)
        if len(client.numbers) > MAX_NUMBERS:
            del client.numbers[1]

    def _client_left(self, event: t.ClientLeft) -> None:
        self.clients.pop(event.client, None)
        self.gone.append(event.client)

    def _client(self, number: int, time: int) -> _Client:
        """The record of a client, created if its joining was not reported."""
        found = self.clients.get(number)
        if found is None:
            found = _Client(t.ClientJoined(time, t.DISPATCHER, number, "", -1, ""), [number])
            if number not in self.gone:
                self.clients[number] = found
        return found

    def _client_state(self, event: t.ClientState) -> None:
        self._client(event.client, event.time).states.add(event)

    def _tensors(self, event: t.Tensors) -> None:
        rows = [row for row in event.largest if list(map(type, row)) == [int, str, str, int, str, str, int]]
        self._client(event.client, event.time).tensors = tuple(TensorView(event.client, *row) for row in rows)

    # workers

    def _utilisation(self, event: t.Utilisation) -> None:
        worker = self._worker(event.worker, event.time)
        worker.heard = max(worker.heard, event.time)
        last = worker.counters.last
        if last is not None and _total(event) < _total(last):
            worker.counters, worker.marked = SampleSeries(), None  # it began to record anew
        worker.counters.add(event)
        if worker.marked is None:
            worker.marked = event
        elif event.time - worker.marked.time >= SECOND:
            worker.history.append(_split(worker.marked, event))
            worker.marked = event

    def _gauges(self, event: t.Gauges) -> None:
        self._worker(event.worker, event.time).gauges = event

    def _device(self, event: t.Device) -> None:
        self._worker(event.worker, event.time).gpu = event

    def _graphs(self, event: t.Graphs) -> None:
        self._worker(event.worker, event.time).graphs = event

    def _traffic(self, event: t.Traffic) -> None:
        worker = self._worker(event.worker, event.time)
        last = worker.traffic.last
        if last is not None and sum(event.nbytes) < sum(last.nbytes):
            worker.traffic = SampleSeries()
        worker.traffic.add(event)

    def _waiting(self, event: t.Waiting) -> None:
        self.now = max(self.now, event.time)
        if event.worker >= 0:
            self._worker(event.worker, event.time).waiting = event
        elif event.what == "busy" and event.peers:
            self._worker(event.peers[0], event.time).waiting = event
        else:
            self._client(event.client, event.time).waiting = event

    # slices

    def _plan_slice(self, event: t.PlanSlice) -> None:
        plan = self.plans.get(event.plan)
        signal = next((name for name in plan.signals if name), "") if plan else ""
        site = plan.sites[0] if plan and plan.sites else ""
        self._task(event, "plan", signal or f"plan {event.plan}", "", event.order, signal, site, 0)

    def _op_slice(self, event: t.OpSlice) -> None:
        op = OPS.get(event.op)
        family = op.family if op is not None else "move" if event.op == "move" else "fused"
        self._task(event, "op", event.op, family, event.order, event.signal, event.site, event.nbytes)
        second = event.time // SECOND
        if not self.hot or self.hot[-1][0] < second:
            self.hot.append((second, {}))
        bucket = self.hot[-1][1]
        for kind, name in (("op", event.op), ("signal", event.signal)):
            key = (kind, name)
            if key not in bucket and len(bucket) >= MAX_HOT_NAMES:
                key = (kind, OTHERS_NAME)
            found = bucket.setdefault(key, [0, 0, event.site])
            found[0] += event.times
            found[1] += event.duration

    def _collective(self, event: t.Collective) -> None:
        nbytes = event.sent + event.received
        self._task(event, "collective", event.kind, "move", event.order, event.signal, event.site, nbytes)

    def _transfer(self, event: t.Transfer) -> None:
        task = Task(event.time, event.duration, event.kind, event.kind, "transfer", event.times, event.client, -1, -1, "",
                    "", event.nbytes)  # fmt: skip
        self._worker(event.worker, event.time).recent.append(task)

    def _spill(self, event: t.Spill) -> None:
        plan = self.plans.get(event.plan)
        signal = event.signal or (next((name for name in plan.signals if name), "") if plan else "")
        self._task(event, "spill", f"spill {event.kind}", "spill", event.order, signal, event.site, event.nbytes)

    def _task(
        self, event: Any, kind: str, name: str, family: str, order: int, signal: str, site: str, nbytes: int
    ) -> None:
        task = Task(event.time, event.duration, kind, name, family, event.times, event.client, event.plan, order, signal,
                    site, nbytes)  # fmt: skip
        self._worker(event.worker, event.time).recent.append(task)

    def _fetched(self, event: t.Fetched) -> None:
        plan = self.plans.get(event.plan)
        site = plan.sites[-1] if plan and plan.sites else ""
        task = Task(event.time, event.duration, "fetch", "fetch", "transfer", event.times, event.client, event.plan, -1, "",
                    site, event.nbytes)  # fmt: skip
        self._client(event.client, event.time).recent.append(task)

    # plans and the log

    def _described(self, event: t.PlanDescribed) -> None:
        self.plans[event.plan] = event
        if len(self.plans) > MAX_PLANS:
            del self.plans[next(iter(self.plans))]

    def _miss(self, event: t.CacheMiss) -> None:
        self.misses[f"{event.cache}: {event.reason}" if event.reason else event.cache] += event.times

    def _failure(self, event: t.Failure) -> None:
        self.failures.append(event.text)
        source = f"worker {event.worker}" if event.worker >= 0 else "dispatcher"
        if event.client >= 0:
            source += f", client {event.client}"
        text = f"{event.kind}: {event.text}"
        self.log.append(LogLine(event.time, "error", source, "failure", text, event.site, event.times))

    def _decision(self, event: t.Decision) -> None:
        if event.what in ("log", "refused") and any(event.text.endswith(text) for text in self.failures):
            return  # the failure itself was told
        source = f"client {event.client}" if event.client >= 0 else "dispatcher"
        self.log.append(LogLine(event.time, event.level, source, event.what, event.text, "", event.times))

    # out

    def snapshot(self, status: Status) -> Snapshot:
        """The present state, with the status of the stream."""
        service: t.Service | None = self.service.last
        runs = self.service.rate(lambda each: each.runs)
        hits = self.service.rate(lambda each: each.plan_hits)
        workers = tuple(self._worker_view(number) for number in sorted(self.workers))
        return Snapshot(
            status=status,
            now=self.now,
            wall=service.wall + self.now - service.time if service else 0,
            service=service,
            uptime=(self.now - service.started) / SECOND if service else 0.0,
            runs_per_s=runs,
            ops_per_s=self.service.rate(lambda each: each.instructions),
            bytes_per_s=sum(worker.bytes_per_s for worker in workers),
            hit_rate=min(1.0, hits / runs) if runs else None,
            workers=workers,
            clients=tuple(
                self._client_view(number)
                for number in sorted(self.clients, key=lambda number: self.clients[number].numbers[0])
            ),
            matrix=self._matrix(),
            hot_ops=self._hottest("op"),
            hot_signals=self._hottest("signal"),
            tensors=tuple(
                sorted(
                    (each for client in self.clients.values() for each in client.tensors), key=lambda each: -each.nbytes
                )
            ),
            log=tuple(self.log),
            waiting=tuple(self._all_waiting()),
            misses=MappingProxyType(dict(self.misses)),
            plans=MappingProxyType(dict(self.plans)),
        )

    def _all_waiting(self) -> Iterator[t.Waiting]:
        said = [worker.waiting for worker in self.workers.values()] + [
            client.waiting for client in self.clients.values()
        ]
        return (waiting for waiting in said if waiting is not None and self._still(waiting))

    def _still(self, waiting: t.Waiting | None) -> bool:
        return waiting is not None and self.now - waiting.time <= WAITING_VALID_NS

    def _worker_view(self, number: int) -> WorkerView:
        worker = self.workers[number]
        joined = worker.joined
        age = max(0, self.now - worker.heard)
        split = worker.counters.split()
        waiting = worker.waiting if self._still(worker.waiting) and worker.lost < 0 else None
        if worker.lost >= 0:
            state = "lost"
        elif waiting is not None:
            state = "busy" if waiting.what == "busy" else "waiting"
        elif age > SILENT_AFTER_NS:
            state = "silent"
        else:
            state = "running" if split.used > 0.02 else "idle" if worker.duty == "in service" else worker.duty
        if state in ("lost", "silent"):
            split = Split()
        alive = worker.lost < 0 and age <= SILENT_AFTER_NS
        return WorkerView(
            number=number, host=joined.host, pid=joined.pid, device=joined.device, kind=joined.kind, cores=joined.cores,
            joined=joined.time, state=state, split=split, history=tuple(worker.history),
            queue=worker.gauges.queue if worker.gauges else 0, gauges=worker.gauges, counters=worker.counters.last,
            bytes_per_s=worker.traffic.rate(lambda each: sum(each.nbytes)) if alive else 0.0, age=age,
            recent=tuple(sorted(worker.recent, key=lambda task: task.time)), waiting=waiting,
            gpu=worker.gpu, graphs=worker.graphs, duty=worker.duty,
        )  # fmt: skip

    def _client_view(self, number: int) -> ClientView:
        client = self.clients[number]
        joined, state = client.joined, client.states.last
        return ClientView(
            number=number, host=joined.host, pid=joined.pid, program=joined.program, joined=joined.time,
            state=state, runs_per_s=client.states.rate(lambda each: each.runs),
            waiting=client.waiting if self._still(client.waiting) else None, recent=tuple(client.recent),
            numbers=tuple(client.numbers),
            mark_age=max(0, self.now - state.marked) if state is not None and state.marked >= 0 else -1,
            principal=joined.principal,
        )  # fmt: skip

    def _matrix(self) -> Matrix:
        numbers = tuple(sorted(number for number, worker in self.workers.items() if worker.lost < 0))

        def sent(sample: Any, to: int) -> int:
            return sum(nbytes for peer, nbytes in zip(sample.peers, sample.nbytes, strict=False) if peer == to)

        total, rate = [], []
        for number in numbers:
            series = self.workers[number].traffic
            total.append(tuple(sent(series.last, to) if series.last else 0 for to in numbers))
            rate.append(tuple(series.rate(lambda each, to=to: sent(each, to)) for to in numbers))  # type: ignore[misc]
        return Matrix(numbers, tuple(total), tuple(rate))

    def _hottest(self, kind: str) -> tuple[Hot, ...]:
        sums: dict[str, list[Any]] = {}
        for second, bucket in self.hot:
            if second < self.now // SECOND - HOT_SECONDS:
                continue
            for (which, name), (times, duration, site) in bucket.items():
                if which == kind:
                    found = sums.setdefault(name, [0, 0, "", 0])
                    found[0] += times
                    found[1] += duration
                    if duration >= found[3]:
                        found[2], found[3] = site, duration
        whole = sum(found[1] for found in sums.values()) or 1
        hottest = sorted(sums.items(), key=lambda each: -each[1][1])
        return tuple(
            Hot(name, _family(name) if kind == "op" else "", times, duration, duration / whole, site)
            for name, (times, duration, site, _) in hottest[:MAX_HOT_NAMES]
        )


def _family(op: str) -> str:
    known = OPS.get(op)
    return known.family if known is not None else "move" if op == "move" else "fused"


def _total(sample: t.Utilisation) -> int:
    return sum(getattr(sample, state) for state in _STATES)


def _split(first: t.Utilisation, last: t.Utilisation) -> Split:
    parts = [max(0, getattr(last, state) - getattr(first, state)) for state in _STATES]
    whole = sum(parts)
    return Split(*(part / whole for part in parts)) if whole else Split()


_HANDLERS: Final[dict[type[Any], Callable[[Reducer, Any], None]]] = {
    t.Service: Reducer._service,
    t.WorkerJoined: Reducer._worker_joined,
    t.DutyChanged: Reducer._duty_changed,
    t.WorkerLost: Reducer._worker_lost,
    t.ClientJoined: Reducer._client_joined,
    t.ClientLeft: Reducer._client_left,
    t.SessionRewound: Reducer._rewound,
    t.ClientState: Reducer._client_state,
    t.Tensors: Reducer._tensors,
    t.Utilisation: Reducer._utilisation,
    t.Gauges: Reducer._gauges,
    t.Device: Reducer._device,
    t.Graphs: Reducer._graphs,
    t.Traffic: Reducer._traffic,
    t.Waiting: Reducer._waiting,
    t.PlanSlice: Reducer._plan_slice,
    t.OpSlice: Reducer._op_slice,
    t.Collective: Reducer._collective,
    t.Transfer: Reducer._transfer,
    t.Fetched: Reducer._fetched,
    t.PlanDescribed: Reducer._described,
    t.CacheMiss: Reducer._miss,
    t.Failure: Reducer._failure,
    t.Decision: Reducer._decision,
    t.Spill: Reducer._spill,
}
"""The handler of each kind of event; kinds that are missing (`RunIssued`) are only for traces, metrics or reports."""
