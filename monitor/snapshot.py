"""The state of a service at one moment, as everything that shows it gets it: immutable, made by `reducer.py` from events.

Whoever draws reads snapshots and never the stream. Times are nanoseconds on the dispatcher's clock, as in the events;
`Snapshot.wall` turns them into dates. Rates are per second, shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gt.wire.telemetry import ClientState, Device, Gauges, Graphs, PlanDescribed, Service, Utilisation, Waiting

CONNECTING: Final = "connecting"
LIVE: Final = "live"
RECONNECTING: Final = "reconnecting"
CLOSED: Final = "closed"


@dataclass(frozen=True, slots=True)
class Status:
    """The status of the stream: its `state`, the address, the seconds since the last batch (`age`; None before the first), the
    events lost because this side was slow or the service's buffer full, and why it is not live (`text`)."""

    state: str = CONNECTING
    address: str = ""
    age: float | None = None
    dropped: int = 0
    text: str = ""
    capabilities: tuple[str, ...] = ()
    """What the service allows besides watching, according to its welcome ('cancel', …)."""


@dataclass(frozen=True, slots=True)
class Split:
    """The shares of a worker's time: they add up to 1, or are all 0 while nothing is known."""

    compute: float = 0.0
    communication: float = 0.0
    runtime: float = 0.0
    waiting: float = 0.0
    idle: float = 0.0

    @property
    def used(self) -> float:
        """Everything but waiting and idling."""
        return self.compute + self.communication + self.runtime


@dataclass(frozen=True, slots=True)
class Task:
    """One slice of a track. `kind` is 'plan', 'op', 'collective', 'put', 'fetch' or 'spill'; `name` is its label: the op, the
    collective, or the plan's signal; `family` is that of an op (`gt/ir/ops.py`), for its colour. `times` > 1 marks several in
    one."""

    time: int
    duration: int
    kind: str
    name: str
    family: str
    times: int
    client: int
    plan: int
    order: int
    signal: str
    site: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker. `state` is 'running', 'waiting' (for pieces), 'busy' (in something long), 'idle', 'spare' (an idle one that
    is on no session's mesh), 'leaving' (an idle one that is drained), 'silent' (for some seconds) or 'lost'."""

    number: int
    host: str
    pid: int
    device: str
    kind: str
    cores: int
    joined: int
    state: str
    split: Split
    """Over the last second or so."""
    history: tuple[Split, ...]
    """One per second, the oldest first; at most `reducer.HISTORY`."""
    queue: int
    gauges: Gauges | None
    counters: Utilisation | None
    bytes_per_s: float
    """Sent to peers."""
    age: int
    """The time since its last event."""
    recent: tuple[Task, ...]
    """Its latest tasks, in order of beginning; at most `reducer.TASKS`."""
    waiting: Waiting | None
    """What it waits for now."""
    gpu: Device | None = None
    """The health of its GPU; None for a CPU, or if unknown."""
    graphs: Graphs | None = None
    """The CUDA graphs that it has captured and launched; None for a CPU, or without graphs."""
    duty: str = "in service"
    """What it is there for: 'in service', 'spare' or 'leaving'."""


@dataclass(frozen=True, slots=True)
class ClientView:
    """One client."""

    number: int
    host: str
    pid: int
    program: str
    joined: int
    state: ClientState | None
    runs_per_s: float
    waiting: Waiting | None
    recent: tuple[Task, ...]
    """Its last fetches."""
    numbers: tuple[int, ...]
    """The numbers that its session has had, the first and the latest ones: each recovery gives it another."""
    mark_age: int = -1
    """The time since its last mark; -1 if there is none."""
    principal: str = ""
    """Whose it is."""

    @property
    def key(self) -> int:
        """What tells the session apart for as long as it lasts: its first number."""
        return self.numbers[0]


@dataclass(frozen=True, slots=True)
class Hot:
    """An op or a signal that takes time (sampled); `share` is that of all sampled time."""

    name: str
    family: str
    times: int
    duration: int
    share: float
    site: str
    """The line that takes most of it."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """One of the largest tensors. `age` is in nanoseconds; -1 if the tensor is older than the recording."""

    client: int
    tensor: int
    spec: str
    layout: str
    nbytes: int
    signal: str
    site: str
    age: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """An event as a line. `level` is as in logging; `source` is 'dispatcher', 'worker 3' or 'client 2'."""

    time: int
    level: str
    source: str
    what: str
    text: str
    site: str
    times: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """The bytes from each worker (row) to each (column), since recording began and per second."""

    workers: tuple[int, ...] = ()
    total: tuple[tuple[int, ...], ...] = ()
    rate: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A service at one moment."""

    status: Status
    now: int
    """On the dispatcher's clock."""
    wall: int
    """The wall clock at `now`, in nanoseconds since 1970; 0 if unknown."""
    service: Service | None
    uptime: float
    """Seconds."""
    runs_per_s: float
    ops_per_s: float
    bytes_per_s: float
    """Between workers."""
    hit_rate: float | None
    """The recent share of runs that found their plan; None without runs."""
    workers: tuple[WorkerView, ...]
    clients: tuple[ClientView, ...]
    matrix: Matrix
    hot_ops: tuple[Hot, ...]
    hot_signals: tuple[Hot, ...]
    tensors: tuple[TensorView, ...]
    log: tuple[LogLine, ...]
    waiting: tuple[Waiting, ...]
    """All that waits now."""
    misses: Mapping[str, int]
    """Cache misses since the stream began, by 'cache: reason'."""
    plans: Mapping[int, PlanDescribed]
    """The known plans, by number."""
