"""How a service is at one moment, as everything that shows it is given it: immutable, made by `reducer.py` from events alone.

Whoever draws reads these and never the stream. Times are nanoseconds on the dispatcher's clock, as in the events; `Snapshot.wall`
turns them into dates. Rates are a second, shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gt.telemetry import ClientState, Device, Gauges, Graphs, PlanDescribed, Service, Utilisation, Waiting

CONNECTING: Final = "connecting"
LIVE: Final = "live"
RECONNECTING: Final = "reconnecting"
CLOSED: Final = "closed"


@dataclass(frozen=True, slots=True)
class Status:
    """How the stream itself is: its `state`, the address, seconds since the last batch came (`age`, None: none yet), events
    lost because this side was slow or the service's memory for them full, and why it is not live (`text`)."""

    state: str = CONNECTING
    address: str = ""
    age: float | None = None
    dropped: int = 0
    text: str = ""
    capabilities: tuple[str, ...] = ()
    """What the service can do beyond watching, as its welcome said ('cancel', …)."""


@dataclass(frozen=True, slots=True)
class Split:
    """Shares of a worker's time; they add up to 1, or are all 0 while nothing is known."""

    compute: float = 0.0
    communication: float = 0.0
    runtime: float = 0.0
    waiting: float = 0.0
    idle: float = 0.0

    @property
    def used(self) -> float:
        """All but waiting and idleness."""
        return self.compute + self.communication + self.runtime


@dataclass(frozen=True, slots=True)
class Task:
    """One slice of a track. `kind` 'plan', 'op', 'collective', 'put', 'fetch', 'spill'; `name` is what to write on it: the op,
    the collective, or the plan's signal; `family` of an op (`gt/ops.py`), for its colour. `times` > 1: several as one."""

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
    """One worker. `state`: 'running', 'waiting' (for pieces), 'busy' (in something long), 'idle', 'silent' (nothing was heard
    of it for some seconds) or 'lost'."""

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
    """One a second, oldest first; at most `reducer.HISTORY`."""
    queue: int
    gauges: Gauges | None
    counters: Utilisation | None
    bytes_per_s: float
    """Sent to peers."""
    age: int
    """Since it was heard of last."""
    recent: tuple[Task, ...]
    """What it did last, in order of beginning; at most `reducer.TASKS`."""
    waiting: Waiting | None
    """What it waits for now."""
    gpu: Device | None = None
    """How its GPU is; None for a CPU, and where that is not told."""
    graphs: Graphs | None = None
    """What it has captured and launched; None for a CPU, and where there are no graphs."""


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


@dataclass(frozen=True, slots=True)
class Hot:
    """What takes time: an op, or a signal, over the time that is remembered (sampled; `share` of all sampled time)."""

    name: str
    family: str
    times: int
    duration: int
    share: float
    site: str
    """Where most of it is."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """One of the largest tensors. `age` in nanoseconds, -1: older than the recording."""

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
    """Something that happened. `level` as in logging; `source` 'dispatcher', 'worker 3', 'client 2'."""

    time: int
    level: str
    source: str
    what: str
    text: str
    site: str
    times: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """Bytes from each worker (row) to each (column) since recording began, and a second."""

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
    """The wall clock at `now`, in nanoseconds since 1970; 0: not known yet."""
    service: Service | None
    uptime: float
    """Seconds."""
    runs_per_s: float
    ops_per_s: float
    bytes_per_s: float
    """Between workers."""
    hit_rate: float | None
    """Share of runs that found their plan, lately; None without runs."""
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
    """Those that are known, by number."""
