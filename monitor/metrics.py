"""The metrics of a service for Prometheus: events in, families of samples out. Pure; `exporter.py` serves them.

Counters only grow, whatever restarts: workers count anew whenever recording changes, and the counts are added up. Labels are
bounded: present workers and clients, a fixed set of words, and principals and signals as far as the dispatcher keeps sums of
them, never the program's names of ops. Units are in the names, as is Prometheus' custom: seconds, bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from gt.errors import KINDS
from gt.wire import telemetry as t

from .usage_totals import UsageTotals

MAX_CLIENTS: Final = 256
"""The most clients with samples of their own: those that joined first."""
MAX_KINDS: Final = 32
"""The most values of a label (collectives, causes); further ones become `OTHER_LABEL`."""
OTHER_LABEL: Final = "other"
STATES: Final = ("compute", "communication", "runtime", "waiting", "idle")
BUCKET_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds, in seconds, of the histograms."""


class Family(NamedTuple):
    """One metric: its name (without `_total`); 'counter', 'gauge' or 'histogram'; a description; the names of the labels; and
    by the labels' values the number, or for histograms [(upper bound, cumulative count), …] and the sum."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], Any]]


class DurationHistogram:
    """A histogram of durations."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float, times: int) -> None:
        """Add some durations with this sum; each counts with their mean."""
        if times > 0:
            self.counts[bisect_left(BUCKET_SECONDS, seconds / times)] += times
            self.sum += seconds

    def sample(self) -> tuple[list[tuple[str, int]], float]:
        """The cumulative counts, as Prometheus has them."""
        bounds = [*(f"{bound:g}" for bound in BUCKET_SECONDS), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True)), self.sum


# what is told of the service: name, field of `Service`, sentence
SERVICE_COUNTERS: Final = (
    ("gt_runs", "runs", "Runs that clients asked for."),
    ("gt_instructions", "instructions", "Instructions in these runs."),
    ("gt_plans_made", "plans", "Plans that were made."),
    ("gt_plan_hits", "plan_hits", "Runs whose plan was there."),
    ("gt_plans_improved", "plans_improved", "Plans that were replaced by a better one."),
    ("gt_refused", "refused", "Requests of clients that were refused."),
    ("gt_poisoned", "poisoned", "Tensors lost to errors."),
    ("gt_fetches", "fetches", "Fetches that clients asked for."),
    ("gt_puts", "puts", "Puts of clients."),
    ("gt_marks", "marks", "Marks of sessions, to which they can go back."),
    ("gt_recoveries", "recoveries", "How often a session lost a worker and went on."),
    ("gt_plans_refused", "plans_refused", "Runs that were refused because workers had ended while they computed them."),
    ("gt_internal_errors", "internal_errors", "Bugs that the dispatcher met; its log has the tracebacks."),
)
SERVICE_GAUGES: Final = (
    ("gt_workers", "workers", "Workers that are there."),
    ("gt_clients", "clients", "Clients that are there."),
    ("gt_watchers", "watchers", "Watchers that are there, this one among them."),
)
# of each worker: name, field, sentence
WORKER_COUNTERS: Final = (
    ("gt_worker_plans", "plans", "Plans that the worker has finished."),
    ("gt_worker_instructions", "instructions", "Instructions that the worker has finished."),
    ("gt_worker_compiled_plans", "compiled", "Plans that the worker has compiled."),
)
WORKER_GAUGES: Final = (
    ("gt_worker_queue_messages", "queue", "Messages that wait for their turn."),
    ("gt_worker_unreported_plans", "unreported", "Plans and puts that are done and not yet said to be."),
    ("gt_worker_tensors", "tensors", "Tensors that are stored."),
    ("gt_worker_held_bytes", "held", "Bytes of stored tensors."),
    ("gt_worker_process_bytes", "process", "Memory of the process."),
    ("gt_worker_memory_limit_bytes", "limit", "Memory of the machine or device; 0: not known."),
    ("gt_worker_lent_bytes", "lent", "Shared memory that others are reading."),
    ("gt_worker_spilled_bytes", "spilled", "Bytes of tensors that are out in the worker's file."),
    ("gt_worker_pool_bytes", "pool", "What the worker's tensors may take in memory; 0: no limit was set."),
)
# of each worker's GPU: name, field, times what, sentence
GPU_GAUGES: Final = (
    ("gt_gpu_temperature_celsius", "temperature", 1.0, "Temperature of the worker's GPU."),
    ("gt_gpu_power_watts", "power", 1e-3, "Power that it takes."),
    ("gt_gpu_power_limit_watts", "power_limit", 1e-3, "Power that it may take."),
    ("gt_gpu_busy_ratio", "busy", 1e-2, "Share of the last moment in which a kernel ran on it, whoever's."),
    ("gt_gpu_used_bytes", "used", 1.0, "Its memory that is in use, by whomever."),
    ("gt_gpu_memory_bytes", "total", 1.0, "Its memory in all."),
    ("gt_gpu_uncorrected_errors", "errors", 1.0, "Errors of its memory since the driver was loaded."),
)
# of each worker with a GPU: name, field, sentence
GRAPH_COUNTERS: Final = (
    ("gt_worker_graphs_captured", "captured", "CUDA graphs that the worker has captured."),
    ("gt_worker_graph_launches", "launched", "Launches of CUDA graphs."),
)
# of each client: name, field, sentence
CLIENT_COUNTERS: Final = (
    ("gt_client_runs", "runs", "Runs of the client."),
    ("gt_client_plans_made", "plans_made", "Plans that were made for the client."),
    ("gt_client_plan_hits", "plan_hits", "Runs of the client whose plan was there."),
    ("gt_client_marks", "marks", "Marks of the client's session."),
    ("gt_client_recoveries", "recoveries", "How often the client's session lost a worker and went on."),
)
CLIENT_GAUGES: Final = (
    ("gt_client_tensors", "tensors", "Live tensors of the client."),
    ("gt_client_held_bytes", "nbytes", "Bytes of the client's live tensors over all workers."),
    ("gt_client_queued_messages", "queued", "Messages of the client that wait."),
    ("gt_client_inflight_runs", "inflight", "Runs and puts of the client that are under way."),
)
COLLECTIVES: Final = (
    ("gt_collectives", "times", 1.0, "Workers' parts in collectives."),
    ("gt_collective_seconds", "duration", 1e-9, "Time that workers were in collectives, with waiting."),
    ("gt_collective_waiting_seconds", "waiting", 1e-9, "Of that, waiting for pieces of others."),
    ("gt_collective_sent_bytes", "sent", 1.0, "Bytes that were sent in collectives."),
)
# what was used: name, field of `Used`, times what, sentence
USAGE: Final = (
    ("gt_usage_device_seconds", "device", 1e-9, "Time of devices that plans took, of all workers together."),
    ("gt_usage_predicted_device_seconds", "predicted", 1e-9, "Of that, what nobody could measure."),
    ("gt_usage_runs", "runs", 1.0, "Plans that were run."),
    ("gt_usage_instructions", "instructions", 1.0, "Instructions of these plans."),
    ("gt_usage_moved_bytes", "moved", 1.0, "Bytes moved between workers."),
    ("gt_usage_put_bytes", "put", 1.0, "Bytes that were put."),
    ("gt_usage_fetched_bytes", "fetched", 1.0, "Bytes that were fetched."),
    ("gt_usage_held_byte_seconds", "held", 1.0, "Bytes of tensors times the seconds for which they were held."),
    ("gt_usage_joules", "energy", 1e-3, "Energy of devices, where they tell their power."),
)
MISSES: Final = (("plan", "new"), ("plan", "placements"), ("definition", ""))
"""Label values that are present from the beginning, with 0. Prometheus takes the first value of a counter for what was there
before, so otherwise the first error of a kind would not count as an increase. The same holds for `KINDS` of errors, transfers
and spills."""
TRANSFERS: Final = (
    ("gt_transfers", "times", 1.0, "Workers' parts of puts and fetches."),
    ("gt_transferred_bytes", "nbytes", 1.0, "Bytes of these."),
)
SPILLS: Final = (
    ("gt_spills", "times", 1.0, "Buffers that went out to a worker's file, or came back."),
    ("gt_spilled_bytes", "nbytes", 1.0, "Bytes of these."),
    ("gt_spill_seconds", "duration", 1e-9, "Time that this held up workers' threads."),
)


class Metrics:
    """All metrics of one service."""

    def __init__(self) -> None:
        self.service: t.Service | None = None
        self.workers: dict[int, t.WorkerJoined] = {}
        self.clients: dict[int, t.ClientJoined] = {}
        self.gauges: dict[int, t.Gauges] = {}
        self.gpus: dict[int, t.Device] = {}
        self.graphs: dict[int, t.Graphs] = {}
        self.without: dict[str, None] = {}
        """The reasons why steps run without CUDA graphs."""
        self.states: dict[int, t.ClientState] = {}
        self.first: dict[int, int] = {}
        """By the present number of a session that went back: its first one, which stays its label."""
        self.counted: dict[tuple[str, int], int] = {}
        """The last reported value of each counter, by counter and worker."""
        self.totals: Counter[tuple[str, int]] = Counter()
        """The sums of the counters over all restarts."""
        self.collectives: Counter[tuple[str, str]] = Counter()
        self.transfers: Counter[tuple[str, str]] = _zeros(TRANSFERS, ("put", "fetch"))
        self.spills: Counter[tuple[str, str]] = _zeros(SPILLS, ("out", "full", "in", "ahead"))
        self.misses: Counter[tuple[str, str]] = Counter(dict.fromkeys(MISSES, 0))
        self.failures: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.fetches = DurationHistogram()
        self.plans = DurationHistogram()
        self.marks = DurationHistogram()
        self.recoveries = DurationHistogram()
        self.usage = UsageTotals()
        self.dropped = 0
        self.live = False

    def add(self, events: Iterable[t.Event], *, dropped: int = 0, live: bool = True) -> None:
        """Process a batch. `dropped` is the number of events lost in all; `live` tells whether the stream is live."""
        self.dropped = max(self.dropped, dropped)
        self.live = live
        for event in events:
            take = _HANDLERS.get(type(event))
            if take is not None:
                take(self, event)

    def _plan(self, event: t.PlanSlice) -> None:
        self.plans.add(event.duration / 1e9, event.times)

    def _collective(self, event: t.Collective) -> None:
        self._words(self.collectives, event.kind, tuple(field for _, field, _, _ in COLLECTIVES), event)

    def _transfer(self, event: t.Transfer) -> None:
        self._words(self.transfers, event.kind, tuple(field for _, field, _, _ in TRANSFERS), event)

    def _spill(self, event: t.Spill) -> None:
        self._words(self.spills, event.kind, tuple(field for _, field, _, _ in SPILLS), event)

    def _fetched(self, event: t.Fetched) -> None:
        self.fetches.add(event.duration / 1e9, event.times)

    def _missed(self, event: t.CacheMiss) -> None:
        key = (event.cache, event.reason)
        self.misses[key if key in self.misses or len(self.misses) < MAX_KINDS else (OTHER_LABEL, OTHER_LABEL)] += (
            event.times
        )

    def _failed(self, event: t.Failure) -> None:
        known = event.kind in self.failures or len(self.failures) < MAX_KINDS
        self.failures[event.kind if known else OTHER_LABEL] += event.times

    def _utilisation(self, event: t.Utilisation) -> None:
        for name in (*STATES, *(field for _, field, _ in WORKER_COUNTERS)):
            self._count(name, event.worker, getattr(event, name))

    def _traffic(self, event: t.Traffic) -> None:
        self._count("sent", event.worker, sum(event.nbytes))

    def _gauges(self, event: t.Gauges) -> None:
        self.gauges[event.worker] = event

    def _device(self, event: t.Device) -> None:
        self.gpus[event.worker] = event

    def _graphs(self, event: t.Graphs) -> None:
        self.graphs[event.worker] = event
        for _, field, _ in GRAPH_COUNTERS:
            self._count(field, event.worker, getattr(event, field))
        counts: Counter[str] = Counter()
        for reason, count in zip(event.reasons, event.counts, strict=False):
            if len(self.without) < MAX_KINDS:
                self.without[reason] = None
            counts[reason if reason in self.without else OTHER_LABEL] += count
        for reason, count in counts.items():
            self._count(f"without {reason}", event.worker, count)

    def _service(self, event: t.Service) -> None:
        self.service = event
        self.usage.begins(event.started)

    def _state(self, event: t.ClientState) -> None:
        self.states[event.client] = event

    def _joined(self, event: t.WorkerJoined) -> None:
        self.workers[event.number] = event

    def _lost(self, event: t.WorkerLost) -> None:
        self.workers.pop(event.number, None)
        self.gauges.pop(event.number, None)
        self.gpus.pop(event.number, None)
        self.graphs.pop(event.number, None)
        for known in (self.counted, self.totals):
            for key in [key for key in known if key[1] == event.number]:
                del known[key]

    def _client(self, event: t.ClientJoined) -> None:
        self.clients[event.client] = event

    def _left(self, event: t.ClientLeft) -> None:
        self.clients.pop(event.client, None)
        self.states.pop(event.client, None)
        self.first.pop(event.client, None)

    def _rewound(self, event: t.SessionRewound) -> None:
        """The session goes on under another number: its samples keep their labels."""
        tables: tuple[dict[int, Any], ...] = (self.clients, self.states)
        for known in tables:
            if event.old in known:
                known[event.client] = known.pop(event.old)
        self.first[event.client] = self.first.pop(event.old, event.old)

    def _recovered(self, event: t.SessionRecovered) -> None:
        self.recoveries.add(event.duration / 1e9, 1)

    def _used(self, event: t.Used) -> None:
        self.usage.take(event)

    def _marked(self, event: t.MarkStored) -> None:
        self.marks.add(event.duration / 1e9, 1)

    @staticmethod
    def _words(counts: Counter[tuple[str, str]], kind: str, fields: tuple[str, ...], event: Any) -> None:
        if (fields[0], kind) not in counts and len(counts) >= MAX_KINDS * len(fields):
            kind = OTHER_LABEL
        for field in fields:
            counts[field, kind] += getattr(event, field)

    def _count(self, name: str, worker: int, value: int) -> None:
        before = self.counted.get((name, worker), 0)
        self.counted[name, worker] = value
        self.totals[name, worker] += value - before if value >= before else value

    # out

    def families(self) -> Iterator[Family]:
        """All families, with the present values."""
        yield Family("gt_stream_up", "gauge", "Whether the dispatcher is heard.", (), [((), int(self.live))])
        yield Family("gt_events_dropped", "counter", "Events that got lost on the way here.", (), [((), self.dropped)])
        yield from self._of_service()
        yield from self._of_workers()
        yield from self._of_clients()
        for name, field, unit, about in COLLECTIVES:
            yield Family(name, "counter", about, ("kind",), _by_word(self.collectives, field, unit))
        for name, field, unit, about in TRANSFERS:
            yield Family(name, "counter", about, ("kind",), _by_word(self.transfers, field, unit))
        for name, field, unit, about in SPILLS:
            yield Family(name, "counter", about, ("kind",), _by_word(self.spills, field, unit))
        for name, field, unit, about in USAGE:
            used = [(key, _in_unit(value, unit)) for key, value in self.usage.sums(field)]
            yield Family(name, "counter", about, ("principal", "signal"), used)
        yield Family(
            "gt_cache_misses", "counter", "What was made that a loop should find.", ("cache", "reason"),
            [(key, times) for key, times in sorted(self.misses.items())],
        )  # fmt: skip
        failures = [((kind,), times) for kind, times in sorted(self.failures.items())]
        yield Family("gt_failures", "counter", "Errors, by class.", ("kind",), failures)
        yield Family("gt_fetch_seconds", "histogram", "From a fetch to its answer.", (), [((), self.fetches.sample())])
        yield Family("gt_plan_run_seconds", "histogram", "A plan on a worker.", (), [((), self.plans.sample())])
        marks, recoveries = self.marks.sample(), self.recoveries.sample()
        yield Family("gt_mark_seconds", "histogram", "Writing a mark, by its slowest worker.", (), [((), marks)])
        about = "From the loss of a worker until its session goes on."
        yield Family("gt_recovery_seconds", "histogram", about, (), [((), recoveries)])

    def _of_service(self) -> Iterator[Family]:
        service = self.service
        if service is None:
            return
        about = ((service.version, service.address), 1)
        yield Family("gt_service_info", "gauge", "Which service this is.", ("version", "address"), [about])
        started = (service.wall - service.time + service.started) / 1e9
        yield Family("gt_start_time_seconds", "gauge", "When the dispatcher started, since 1970.", (), [((), started)])
        for names, kind in ((SERVICE_COUNTERS, "counter"), (SERVICE_GAUGES, "gauge")):
            for name, field, about_it in names:
                yield Family(name, kind, about_it, (), [((), getattr(service, field))])

    def _of_workers(self) -> Iterator[Family]:
        known = sorted(self.workers.items())
        yield Family(
            "gt_worker_info", "gauge", "Which worker this is.", ("worker", "host", "device", "kind"),
            [((str(n), each.host, each.device or each.kind, each.kind), 1) for n, each in known],
        )  # fmt: skip
        yield Family(
            "gt_worker_time_seconds", "counter", "Where the worker's time went.", ("worker", "state"),
            [((str(n), state), self.totals[state, n] / 1e9) for n, _ in known for state in STATES],
        )  # fmt: skip
        for name, field, about in WORKER_COUNTERS:
            yield Family(name, "counter", about, ("worker",), [((str(n),), self.totals[field, n]) for n, _ in known])
        sent = [((str(n),), self.totals["sent", n]) for n, _ in known]
        yield Family("gt_worker_sent_bytes", "counter", "Bytes of pieces sent to other workers.", ("worker",), sent)
        for name, field, about in WORKER_GAUGES:
            samples = [((str(n),), getattr(self.gauges[n], field)) for n, _ in known if n in self.gauges]
            yield Family(name, "gauge", about, ("worker",), samples)
        gpus = [(str(n), self.gpus[n]) for n, _ in known if n in self.gpus]
        for name, field, unit, about in GPU_GAUGES:
            told = [((n,), getattr(gpu, field) * unit) for n, gpu in gpus if getattr(gpu, field) >= 0]
            yield Family(name, "gauge", about, ("worker",), told)
        slowed = [((n, why), 1) for n, gpu in gpus for why in list(dict.fromkeys(gpu.slowed))[:MAX_KINDS]]
        yield Family("gt_gpu_slowed", "gauge", "1: it is slowed down, and why.", ("worker", "reason"), slowed)

        graphs = [(str(n), n) for n, _ in known if n in self.graphs]
        for name, field, about in GRAPH_COUNTERS:
            yield Family(
                name, "counter", about, ("worker",), [((label,), self.totals[field, n]) for label, n in graphs]
            )
        held = [((label,), self.graphs[n].held) for label, n in graphs]
        yield Family("gt_worker_graph_bytes", "gauge", "Bytes of the device that CUDA graphs have.", ("worker",), held)
        without = [
            ((label, reason), self.totals[f"without {reason}", n])
            for label, n in graphs
            for reason in (*self.without, OTHER_LABEL)
            if self.totals[f"without {reason}", n]
        ]
        yield Family("gt_worker_without_graph", "counter", "What went without a graph.", ("worker", "reason"), without)

    def _of_clients(self) -> Iterator[Family]:
        there = sorted((self.first.get(n, n), n, each.program) for n, each in self.clients.items())
        known = [(first, self.states[n], program) for first, n, program in there[:MAX_CLIENTS] if n in self.states]
        for names, kind in ((CLIENT_COUNTERS, "counter"), (CLIENT_GAUGES, "gauge")):
            for name, field, about in names:
                samples = [((str(n), program), getattr(state, field)) for n, state, program in known]
                yield Family(name, kind, about, ("client", "program"), samples)
        recovering = [((str(n), program), int(state.phase != "")) for n, state, program in known]
        about = "1: the client's session recovers from the loss of a worker."
        yield Family("gt_client_recovering", "gauge", about, ("client", "program"), recovering)


def _zeros(rows: Iterable[tuple[str, str, float, str]], kinds: Iterable[str]) -> Counter[tuple[str, str]]:
    return Counter({(field, kind): 0 for _, field, _, _ in rows for kind in kinds})


def _in_unit(value: int, unit: float) -> float | int:
    return value * unit if unit != 1.0 else value


def _by_word(counts: Counter[tuple[str, str]], field: str, unit: float) -> list[tuple[tuple[str, ...], Any]]:
    return [
        ((kind,), value * unit if unit != 1.0 else value)
        for (name, kind), value in sorted(counts.items())
        if name == field
    ]


_HANDLERS: Final[dict[type[Any], Callable[[Metrics, Any], None]]] = {
    t.PlanSlice: Metrics._plan,
    t.Collective: Metrics._collective,
    t.Transfer: Metrics._transfer,
    t.Spill: Metrics._spill,
    t.Fetched: Metrics._fetched,
    t.CacheMiss: Metrics._missed,
    t.Failure: Metrics._failed,
    t.Utilisation: Metrics._utilisation,
    t.Traffic: Metrics._traffic,
    t.Gauges: Metrics._gauges,
    t.Device: Metrics._device,
    t.Graphs: Metrics._graphs,
    t.Service: Metrics._service,
    t.ClientState: Metrics._state,
    t.WorkerJoined: Metrics._joined,
    t.WorkerLost: Metrics._lost,
    t.ClientJoined: Metrics._client,
    t.ClientLeft: Metrics._left,
    t.SessionRewound: Metrics._rewound,
    t.SessionRecovered: Metrics._recovered,
    t.MarkStored: Metrics._marked,
    t.Used: Metrics._used,
}
