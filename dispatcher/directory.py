"""What the dispatcher knows of every tensor, client and worker: plain records, changed only by `core.py`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from gt.instruction import Segment
from gt.messages import Fault
from gt.placement import Mesh
from gt.spec import Spec

from .caching import Entry, Plans
from .cost import Link, Speeds
from .health import Health
from .plan import Planner


@dataclass(slots=True)
class Moving:
    """A session on its way to another mesh: the new planner, a mesh of all workers of both when some join, and the tensors
    that are still on the old one."""

    config: Any
    planner: Planner
    both: Mesh | None
    left: list[int]


@dataclass(slots=True, eq=False)
class Client:
    """One session. `queue` holds what it sent and was not yet acted on, in order."""

    identity: bytes
    number: int
    facts: dict[str, Any]
    bulk: bytes
    program: Hashable = None
    """Whose turns it shares (`turns.py`)."""
    expected: int = 1
    heard: float = 0.0
    found: tuple[Any, Any] | None = None
    """What was worked out for the message at the head of its queue: a key that says what it is, and the result."""
    own: Any = None
    """The config that the client sent, which goes over the service's."""
    config: Any = None
    """The two together, once a mesh was made of them."""
    planner: Planner | None = None
    moving: Moving | None = None
    verify: float = 0.0
    """The share of instructions that are computed again, gathered, and compared."""
    tf32: bool = False
    """Whether GPUs may round what its products of float32 multiply."""
    runs: int = 0
    """How many there were since then, by which those that check are drawn."""
    warned: set[tuple[str, float]] = field(default_factory=set)
    """Signals with their deadlines of which the program knows that they should take longer."""
    fault: Fault | None = None
    cancelled: bool = False
    """Whether its work was cancelled and it does not know yet: all it sends up to its next fetch is dropped."""
    segments: dict[int, Segment | Fault] = field(default_factory=dict)
    table: dict[int, Entry] = field(default_factory=dict)
    queue: deque[Any] = field(default_factory=deque)
    plans: Plans = field(default_factory=Plans)
    roomy: int = 0
    """The number of tensors up to which known plans run without a look at memory."""
    arrived: int = 0
    credited: int = 0
    inflight: deque[tuple[int, int]] = field(default_factory=deque)
    """(position in the client's stream of runs and puts, order) of what the workers may not have finished."""
    gpipe: Counter[str] = field(default_factory=Counter)
    """Runs that could not be 1f1b, by the reason."""
    made: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    """Why plans were made: a segment was `new` (or its plans had gone), or its inputs lay in other `placements`."""
    improved: int = 0
    hits: int = 0

    @property
    def mesh(self) -> Mesh | None:
        """The session's mesh, once its first tensor made one necessary."""
        return self.planner.mesh if self.planner else None


@dataclass(slots=True)
class Worker:
    """One worker."""

    identity: bytes
    number: int
    facts: dict[str, Any]
    address: str
    bulk: bytes
    expected: int = 1
    heard: float = 0.0
    health: Health = field(default_factory=Health)
    """Of its GPU."""
    links: dict[int, Link] = field(default_factory=dict)
    """Those that it has measured, by the number of the worker at the other end."""
    fresh: deque[tuple[int, int]] = field(default_factory=deque)
    """(order, instructions) of the plans that it has before it and must compile, whosever they are or were."""
    to_compile: int = 0
    """All these instructions."""


@dataclass(slots=True)
class Collection:
    """A fetch under way: who has yet to answer."""

    client: int
    request: int
    spec: Spec
    parts: int
    waiting: set[int]
    boxes: dict[int, list[list[int]]]
    """What each worker that sends data holds; the others only say that they are sound."""
    silent: int
    """How many of these have yet to say so."""
    failed: bool = False


@dataclass(slots=True)
class MeshRecord:
    """A mesh in use by `client`. `workers` are its living members, `identities` theirs; `plans` are those that they know.

    Issuing costs the same on any number of workers, and so does a worker's word that it is done, on the average: how far
    all have come is only looked at when the last of them has finished the oldest order under way.
    """

    client: int
    mesh: Mesh
    speeds: Speeds
    workers: list[Worker]
    identities: tuple[bytes, ...]
    cards: tuple[int, ...] = ()
    """Of the members, in order of rank (`cards.py`)."""
    fault: Fault | None = None
    plans: set[int] = field(default_factory=set)
    sources: dict[Any, tuple[tuple[bytes, ...], tuple[bytes, ...], dict[int, Any]]] = field(default_factory=dict)
    """Who answers a fetch of some spec and layout, remembered."""
    pending: deque[int] = field(default_factory=deque)
    """The orders that some member has not finished."""
    done: dict[int, int] = field(default_factory=dict)
    """By worker: the last order that it has finished here."""
    lagging: int = 0
    """How many members have not finished the first of `pending`."""

    def __post_init__(self) -> None:
        self.done = dict.fromkeys(self.mesh.members, 0)

    def issued(self, order: int) -> None:
        """All members have `order` before them."""
        if not self.pending:
            self.lagging = len(self.done)
        self.pending.append(order)

    def finished(self, worker: int, order: int) -> list[int]:
        """A member has finished everything up to `order`; the orders that all have finished now and had not before."""
        before = self.done.get(worker)
        if before is None or not self.pending or order <= before:
            return []
        self.done[worker] = order
        if not before < self.pending[0] <= order:
            return []
        self.lagging -= 1
        if self.lagging:
            return []
        upto, finished = min(self.done.values()), []
        while self.pending and self.pending[0] <= upto:
            finished.append(self.pending.popleft())
        if self.pending:
            self.lagging = sum(last < self.pending[0] for last in self.done.values())
        return finished
