"""Events as a trace: the JSON that Perfetto and Chrome's tracing open, written as the events come.

A process in the trace is a client, the dispatcher or a worker, a thread one of its streams: what it computes, instruction by
instruction, what it moves, what it takes in, what it waits for. Arrows lead from a client's run to the plan on every worker,
and from there to its collectives. What is remembered is bounded, whatever comes, so a trace may be as long as the disk.

Nothing is lost: `monitor/reading.py` makes the events again, so that reports are made from traces. Pure: no file, socket or
clock in here. The format: "Trace Event Format" (Chromium project); one event is one line, in which the time comes first and
names, which may have escapes, after it: older versions of Perfetto look no further.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from gt.wire import telemetry as t

HEAD_LINE: Final = '{"traceEvents":['
"""The first line of every trace."""
ORIGIN_NAME: Final = "gt.origin"
"""The name of the second line: metadata that says at which time the trace's clock is 0."""
SAMPLE_PREFIX: Final = "gt."
"""The prefix of metadata that are samples: they are for reports, and no viewer shows them."""
CLOCK_LEAD_NS: Final = 10_000_000_000
"""Nanoseconds before the first word at which that clock is 0: what was under way by then may have begun earlier. Counted from
there times are small enough for the floating-point numbers in which viewers read microseconds."""
MAX_EXACT_NS: Final = 1 << 47
"""Nanoseconds (39 hours) up to which microseconds as floating-point numbers are exact; arguments say what is beyond."""
RUN_MARK_NS: Final = 1_000
"""The nanoseconds for which a run is drawn on its client's track, where it only begins."""
MAX_LANES: Final = 16
"""The most threads for overlapping slices of one stream."""
MAX_REMEMBERED: Final = 16_384
"""Plans whose names, runs whose places, and collectives whose plans are remembered until they are needed."""

DISPATCHER_PROCESS: Final = 1
FIRST_WORKER_PROCESS: Final = 1_000
FIRST_CLIENT_PROCESS: Final = 100_000
"""Process numbers in the trace: the dispatcher, worker 0, client 0."""
STREAMS: Final = (
    "events", "runs", "fetches", "compute", "instructions", "communication", "transfers", "spills", "waiting",
    "runs (added up)", "fetches (added up)", "compute (added up)", "instructions (added up)",
    "communication (added up)", "transfers (added up)", "spills (added up)",
)  # fmt: skip
"""Threads of a process in the trace, in the order in which they are shown. What was too much to be told one by one was added
up, and stands as one slice in a stream of its own: its length is the sum, where it stands only about right."""
COUNTERS: Final[dict[type[Any], tuple[tuple[str, tuple[str, ...]], ...]]] = {
    t.Gauges: (
        ("memory (bytes)", ("held", "process", "lent", "spilled")),
        ("work", ("queue", "unreported")),
        ("live", ("tensors",)),
    ),
    t.Device: (
        ("GPU (°C)", ("temperature",)),
        ("GPU (mW)", ("power",)),
        ("GPU (%)", ("busy",)),
        ("GPU (bytes)", ("used",)),
    ),
    t.Graphs: (("CUDA graphs (bytes)", ("held",)), ("CUDA graphs", ("captured",))),
    t.ClientState: (("memory (bytes)", ("nbytes",)), ("work", ("queued", "inflight")), ("live", ("tensors",))),
    t.Service: (("peers", ("workers", "clients", "watchers")),),
}
"""Which fields of samples are drawn as counters, and under which name: viewers show both, as 'work queue'."""
TIME_SHARES: Final = ("compute", "communication", "runtime", "waiting", "idle")
"""Of a worker's time: drawn as per cent of the time between two samples."""


def process_of(worker: int, client: int = -1) -> int:
    """The process in the trace of a client, or (-1) of the worker or dispatcher that tells."""
    if client >= 0:
        return FIRST_CLIENT_PROCESS + client
    return DISPATCHER_PROCESS if worker < 0 else FIRST_WORKER_PROCESS + worker


def thread_of(process: int, stream: str, lane: int = 0) -> int:
    """The thread of a stream; no two processes have the same one."""
    return process << 8 | STREAMS.index(stream) << 4 | lane


def microseconds(nanoseconds: int) -> str:
    """As a JSON number, from which a reader that cuts off what is behind the third digit gets exactly the same back."""
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 1000)
    text = f"{sign}{whole}.{rest:03}"
    return text if int(float(text) * 1000.0) == nanoseconds else f"{text}2"


class TraceWriter:
    """A trace being written: events go in, lines go to `write`. `facts` (versions, …) are put into its metadata."""

    def __init__(self, write: Callable[[str], object], facts: dict[str, Any] | None = None) -> None:
        self.write = write
        self.facts = facts or {}
        self.begun = False
        self.origin = self.first = 0
        """The time that is 0, and that of the first word."""
        self.events = 0
        self.dropped = 0
        self.service: t.Service | None = None
        self.names: OrderedDict[int, str] = OrderedDict()
        """The labels of each plan's slices."""
        self.ends: dict[int, int] = {}
        """By thread, when its last slice ends. A thread in here has been named."""
        self.processes: set[int] = set()
        self.runs: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By order: the thread and time of the client's run, for arrows from there."""
        self.early: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """By (order, worker): thread and time of a plan whose run was not reported yet."""
        self.inner: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()
        """By (order, worker): threads and times of collectives whose plan has not ended yet."""
        self.arrows = 0
        self.used: dict[int, t.Utilisation] = {}
        self.waits: dict[Hashable, t.Waiting] = {}
        """The waiting in progress, which has ended when something else is reported."""

    def add(self, events: Iterable[t.Event], dropped: int = 0) -> None:
        """Process a batch; `dropped` events before it were lost."""
        self.dropped += dropped
        events = list(events)
        if events and not self.begun:
            self.first = max(event.time for event in events)
            self.origin = self.first - CLOCK_LEAD_NS
            self._line({"ph": "M", "name": ORIGIN_NAME, "pid": DISPATCHER_PROCESS, "args": {"time": self.origin}})
        for event in events:
            self.events += 1
            _WRITERS.get(type(event), TraceWriter._sample)(self, event)

    def close(self) -> None:
        """Write what is still open, and the metadata."""
        for waiting in self.waits.values():
            self._waited(waiting)
        self.waits.clear()
        known = self.service
        clock = {} if known is None else {"monotonic_ns": known.time, "wall_ns": known.wall}
        about = {
            "gt": "" if known is None else known.version,
            "address": "" if known is None else known.address,
            "events_version": t.VERSION,
            "events": self.events,
            "dropped": self.dropped,
            "clock": clock,
            **self.facts,
        }
        if not self.begun:
            self.write(HEAD_LINE)
        self.write(f'\n],"otherData":{_compact(about)}}}\n')

    # what each kind becomes

    def _plan(self, event: t.PlanSlice) -> None:
        name = self.names.get(event.plan) or f"plan {event.plan}"
        thread, start = self._slice(event, process_of(event.worker), "compute", name)
        if event.times != 1:
            return
        key = (event.order, event.worker)
        run = self.runs.get(event.order)
        if run is not None:
            self._arrow("run", run, (thread, start))
        else:
            _keep(self.early, key, (thread, start))
        for inner in self.inner.pop(key, ()):
            self._arrow("collective", (thread, inner[1]), inner)

    def _op(self, event: t.OpSlice) -> None:
        self._slice(event, process_of(event.worker), "instructions", event.op)

    def _collective(self, event: t.Collective) -> None:
        place = self._slice(event, process_of(event.worker), "communication", event.kind)
        if event.times == 1:
            key = (event.order, event.worker)
            if key in self.inner:
                self.inner[key].append(place)
            else:
                _keep(self.inner, key, [place])

    def _transfer(self, event: t.Transfer) -> None:
        self._slice(event, process_of(event.worker), "transfers", event.kind)

    def _spill(self, event: t.Spill) -> None:
        self._slice(event, process_of(event.worker), "spills", f"spill: {event.kind}")

    def _fetched(self, event: t.Fetched) -> None:
        self._slice(event, process_of(-1, event.client), "fetches", "fetch")

    def _run(self, event: t.RunIssued) -> None:
        name = self.names.get(event.plan) or f"plan {event.plan}"
        place = self._slice(event, process_of(-1, event.client), "runs", name)
        if event.times == 1:
            _keep(self.runs, event.order, place)
            for key in [key for key in self.early if key[0] == event.order]:
                self._arrow("run", place, self.early.pop(key))

    def _instant(self, event: Any) -> None:
        kind = type(event)
        process = process_of(event.worker, getattr(event, "client", -1))
        named = {
            t.ClientJoined: "client joined", t.ClientLeft: "client left", t.WorkerJoined: "worker joined",
            t.WorkerLost: "worker lost", t.SessionRewound: "session goes back", t.MarkStored: "mark stored",
            t.DutyChanged: "worker's duty",
        }  # fmt: skip
        if kind is t.CacheMiss:
            name = f"{event.cache} made: {event.reason}" if event.reason else f"{event.cache} made"
        elif kind is t.Failure:
            name = event.kind
        else:
            name = event.what if kind is t.Decision else named[kind]
        self._mark(event, process, name)

    def _recovered(self, event: t.SessionRecovered) -> None:
        """On the track of what a client waits for."""
        thread, start = self._place(process_of(-1, event.client), "waiting", event.time, event.duration)
        fields = event._asdict()
        if 0 <= event.duration < MAX_EXACT_NS:
            del fields["duration"]
        if self._exact(start, event.time):
            del fields["time"]
        self._draw("SessionRecovered", "recovery", thread, start, event.duration, fields)

    def _described(self, event: t.PlanDescribed) -> None:
        signal = min((name for name in event.signals if name), key=len, default="")
        what = signal or (str(event.ops[0][0]) if event.ops and event.ops[0] else "")
        _keep(self.names, event.plan, f"{what} · plan {event.plan}" if what else f"plan {event.plan}")
        self._mark(event, DISPATCHER_PROCESS, f"plan {event.plan} made: {event.reason}")

    def _joined(self, event: t.WorkerJoined) -> None:
        device = event.device or event.kind
        self._process(process_of(event.number), f"worker {event.number}: {device} ({event.host}, pid {event.pid})")
        self._instant(event)

    def _client(self, event: t.ClientJoined) -> None:
        program = event.program or "client"
        self._process(process_of(-1, event.client), f"client {event.client}: {program} ({event.host}, pid {event.pid})")
        self._instant(event)

    def _sample(self, event: Any) -> None:
        """A sample: whole for reports, and its counters for viewers."""
        if type(event) is t.Service:
            self.service = event
        process = process_of(event.worker, getattr(event, "client", -1))
        self._process(process)
        for name, fields in COUNTERS.get(type(event), ()):
            told = {field: getattr(event, field) for field in fields if getattr(event, field) >= 0}
            if told:
                self._count(process, name, event.time, told)
        self._line(
            {
                "ph": "M",
                "name": f"{SAMPLE_PREFIX}{type(event).__name__}",
                "pid": process,
                "args": {"event": t.encode_event(event)},
            }
        )

    def _utilisation(self, event: t.Utilisation) -> None:
        before = self.used.get(event.worker)
        self.used[event.worker] = event
        self._sample(event)
        if before is not None:
            spent = {name: max(0, getattr(event, name) - getattr(before, name)) for name in TIME_SHARES}
            total = sum(spent.values())
            if total:
                shares = {name: round(100 * value / total, 2) for name, value in spent.items()}
                self._count(process_of(event.worker), "time (%)", before.time, shares)

    def _waiting(self, event: t.Waiting) -> None:
        key = (event.worker, event.client if event.worker < 0 else -1)
        before = self.waits.get(key)
        if before is not None and before.since != event.since:
            self._waited(before)
        self.waits[key] = event

    def _waited(self, event: t.Waiting) -> None:
        """Waiting that has ended: it lasted at least until it was told last."""
        process = process_of(event.worker, event.client if event.worker < 0 else -1)
        if event.what == "busy" and event.peers:
            process = process_of(event.peers[0])
        name = {"pieces": f"waiting for pieces ({event.kind})", "busy": "busy"}.get(
            event.what, f"waiting: {event.what}"
        )
        fields = event._asdict()
        thread, start = self._place(process, "waiting", event.since, event.time - event.since)
        if self._exact(start, event.since) and 0 <= event.time - event.since < MAX_EXACT_NS:
            del fields["since"], fields["time"]
        self._draw("Waiting", name, thread, start, max(0, event.time - event.since), fields)

    # lines

    def _slice(self, event: Any, process: int, stream: str, name: str) -> tuple[int, int]:
        """Draw what has a duration (or, a run, a beginning); the thread and time that it got."""
        duration = getattr(event, "duration", RUN_MARK_NS)
        if event.times != 1:
            stream = f"{stream} (added up)"
            name = f"{event.times} × {name}"
        thread, start = self._place(process, stream, event.time, duration)
        fields = event._asdict()
        if 0 <= duration < MAX_EXACT_NS:
            fields.pop("duration", None)
        if self._exact(start, event.time):
            del fields["time"]
        self._draw(type(event).__name__, name, thread, start, duration, fields)
        return thread, start

    def _place(self, process: int, stream: str, start: int, duration: int) -> tuple[int, int]:
        """The first thread of the stream where this overlaps nothing; where all are full, in a stream of what was added up, or
        of runs, many of which begin at once, it begins when there is room."""
        start = max(start, self.origin)
        lanes = 1 if stream == "runs" or stream.endswith("(added up)") else MAX_LANES
        thread = 0
        for lane in range(lanes):
            thread = thread_of(process, stream, lane)
            if thread not in self.ends:
                self._process(process)
                name = f"{stream} {lane + 1}" if lane else stream
                self._thread(process, thread, name)
                break
            if self.ends[thread] <= start:
                break
        else:
            start = self.ends[thread]
        self.ends[thread] = start + max(0, duration)
        return thread, start

    def _process(self, process: int, name: str = "") -> None:
        """Name a process, at its first mention at the latest."""
        if process in self.processes and not name:
            return
        if process not in self.processes:
            place = 1 if process == DISPATCHER_PROCESS else 0 if process >= FIRST_CLIENT_PROCESS else 2
            self._meta(
                process,
                process,
                "process_sort_index",
                {"sort_index": place * FIRST_CLIENT_PROCESS + process % FIRST_CLIENT_PROCESS},
            )
        self.processes.add(process)
        plain = "dispatcher" if process == DISPATCHER_PROCESS else f"worker {process - FIRST_WORKER_PROCESS}"
        plain = f"client {process - FIRST_CLIENT_PROCESS}" if process >= FIRST_CLIENT_PROCESS else plain
        self._meta(process, process, "process_name", {"name": name or plain})

    def _thread(self, process: int, thread: int, name: str) -> None:
        self.ends[thread] = -(1 << 63)
        self._meta(process, thread, "thread_name", {"name": name})
        self._meta(process, thread, "thread_sort_index", {"sort_index": thread & 255})

    def _mark(self, event: Any, process: int, name: str) -> None:
        """Draw what has no duration."""
        thread = thread_of(process, "events")
        if thread not in self.ends:
            self._process(process)
            self._thread(process, thread, "events")
        fields = event._asdict()
        at = event.time if event.time >= self.origin else self.first  # of who had joined long before
        if self._exact(at, event.time):
            del fields["time"]
        args = _compact(fields)
        self._raw(
            f'{{"ph":"i","ts":{self._time(at)},"pid":{process},"tid":{thread},"s":"t",'
            f'"cat":"{type(event).__name__}","name":{_compact(name)},"args":{args}}}'
        )

    def _draw(self, kind: str, name: str, thread: int, start: int, duration: int, fields: dict[str, Any]) -> None:
        self._raw(
            f'{{"ph":"X","ts":{self._time(start)},"dur":{microseconds(max(0, duration))},"pid":{thread >> 8},'
            f'"tid":{thread},"cat":"{kind}","name":{_compact(name)},"args":{_compact(fields)}}}'
        )

    def _arrow(self, kind: str, out: tuple[int, int], into: tuple[int, int]) -> None:
        """An arrow between two slices, forward in time."""
        if out[1] > into[1]:
            return  # clocks of two hosts differ by a little
        self.arrows += 1
        for phase, (thread, time) in (('"s"', out), ('"f","bp":"e"', into)):
            self._raw(
                f'{{"ph":{phase},"ts":{self._time(time)},"pid":{thread >> 8},"tid":{thread},"id":{self.arrows},'
                f'"cat":"flow","name":"{kind}"}}'
            )

    def _count(self, process: int, name: str, time: int, values: dict[str, Any]) -> None:
        self._raw(
            f'{{"ph":"C","ts":{self._time(time)},"pid":{process},"cat":"counter","name":"{name}","args":{_compact(values)}}}'
        )

    def _meta(self, process: int, thread: int, name: str, args: dict[str, Any]) -> None:
        self._line({"ph": "M", "name": name, "pid": process, "tid": thread, "args": args})

    def _exact(self, drawn: int, time: int) -> bool:
        """Whether a time can be had again from where it is drawn."""
        return drawn == time and time - self.origin < MAX_EXACT_NS

    def _time(self, time: int) -> str:
        return microseconds(max(0, time - self.origin))

    def _line(self, event: dict[str, Any]) -> None:
        self._raw(_compact(event))

    def _raw(self, line: str) -> None:
        self.write(f",\n{line}" if self.begun else f"{HEAD_LINE}\n{line}")
        self.begun = True


def _keep(known: OrderedDict[Any, Any], key: Hashable, value: object) -> None:
    """Remember an item, and forget the oldest beyond a limit."""
    known[key] = value
    if len(known) > MAX_REMEMBERED:
        known.popitem(last=False)


# Not as ASCII: Perfetto shows an escaped letter as its escape, unless there is a quotation mark in the name too.
_compact: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False).encode

_WRITERS: Final[dict[type[Any], Callable[[TraceWriter, Any], None]]] = {
    t.PlanSlice: TraceWriter._plan,
    t.OpSlice: TraceWriter._op,
    t.Collective: TraceWriter._collective,
    t.Transfer: TraceWriter._transfer,
    t.Utilisation: TraceWriter._utilisation,
    t.Gauges: TraceWriter._sample,
    t.Device: TraceWriter._sample,
    t.Graphs: TraceWriter._sample,
    t.Traffic: TraceWriter._sample,
    t.Waiting: TraceWriter._waiting,
    t.Service: TraceWriter._sample,
    t.ClientJoined: TraceWriter._client,
    t.ClientLeft: TraceWriter._instant,
    t.ClientState: TraceWriter._sample,
    t.WorkerJoined: TraceWriter._joined,
    t.WorkerLost: TraceWriter._instant,
    t.DutyChanged: TraceWriter._instant,
    t.PlanDescribed: TraceWriter._described,
    t.RunIssued: TraceWriter._run,
    t.Fetched: TraceWriter._fetched,
    t.CacheMiss: TraceWriter._instant,
    t.Failure: TraceWriter._instant,
    t.Decision: TraceWriter._instant,
    t.Tensors: TraceWriter._sample,
    t.Spill: TraceWriter._spill,
    t.MarkStored: TraceWriter._instant,
    t.SessionRewound: TraceWriter._instant,
    t.SessionRecovered: TraceWriter._recovered,
    t.Used: TraceWriter._sample,
}
"""What each kind becomes; one that is not here is kept for reports, and not drawn. A test compares."""
