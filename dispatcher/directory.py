"""What the dispatcher knows of every tensor, client and worker: plain records, changed only by `core.py`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gt.instruction import Segment
from gt.interned import Interned
from gt.messages import Fault
from gt.placement import Layout, Mesh
from gt.spec import Spec

from .cost import Speeds
from .memory import looks_at
from .plan import Planned, Planner
from .tables import Home

MAX_PLANS: Final = 1024
"""Plans kept for one session."""


class Memory:
    """Memory that several tensors look at: that of a tensor, which may be gone otherwise."""

    __slots__ = ("layout", "spec")

    def __init__(self, spec: Spec, layout: Layout) -> None:
        self.spec = spec
        self.layout = layout


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Entry(metaclass=Interned):
    """One tensor of one client, or several that are alike: what changes gets another entry.

    Entries are interned: inputs whose entries are those of an earlier run are just as sound, and in the same places.

    `fault` is why it has no value; `landing` the workers that a bulk put has not reached yet; `root` the memory
    that it looks at, when it is a view or some view looks at it.
    """

    spec: Spec
    mesh: int
    home: Home
    fault: Fault | None = None
    landing: frozenset[int] = frozenset()
    root: Memory | None = None


class Cached:
    """A plan that the workers of its mesh know under `number`, and what a run of it changes in the tensor table.

    `runs` counts how often it was asked for. A better one is searched at the third and takes over at a fixed one, so what
    is computed depends on no clock.
    """

    __slots__ = (
        "better", "homes", "length", "looks", "made", "number", "offsets", "planned", "rehomed", "runs", "scalar_types",
        "searched", "used",
    )  # fmt: skip

    def __init__(self, homes: tuple[Home, ...], planned: Planned, scalar_types: list[type]) -> None:
        self.homes = homes
        self.scalar_types = scalar_types
        self.used = 0
        """The look-up that found it last."""
        self.number = 0
        self.runs = 1
        self.searched = False
        """Whether a search is over."""
        self.better: Planned | None = None
        self.take(planned)

    def take(self, planned: Planned) -> None:
        """Have this plan from now on."""
        self.planned = planned
        self.looks = looks_at(planned.plan)
        """Survivors that are views, by position, and the plan's references to what they look at."""
        values, mesh = planned.plan.values, planned.plan.mesh
        self.length = len(planned.plan.instructions)
        pairs = zip(planned.plan.survivors, planned.survivors, strict=True)
        self.made = [Entry(values[index], mesh, home) for (_, index), home in pairs]
        """What the table says of each survivor."""
        self.offsets = [offset for offset, _ in planned.plan.survivors]
        """Their numbers in the segment."""
        changes = enumerate(zip(self.homes, planned.inputs, strict=True))
        self.rehomed = [(position, after) for position, (before, after) in changes if before is not after]
        """The inputs that have another home after it."""


class Plans:
    """The plans of one session: by segment and the homes of its inputs, and by the entries of those, which is quicker.

    At most `MAX_PLANS` are kept; when there are more, those that were not used for longest go, an eighth at a time.
    """

    __slots__ = ("by_entries", "by_homes", "look_ups")

    def __init__(self) -> None:
        self.by_homes: dict[Any, Cached] = {}
        self.by_entries: dict[tuple[int, tuple[Entry, ...]], Cached] = {}
        """A short cut that may be forgotten at any time: inputs that were all sound, where such a plan wants them."""
        self.look_ups = 0

    def __len__(self) -> int:
        return len(self.by_homes)

    def again(self, segment: int, entries: tuple[Entry, ...]) -> Cached | None:
        """The plan of a run whose inputs are just like those of one before."""
        found = self.by_entries.get((segment, entries))
        if found is not None:
            found.used = self.look_ups = self.look_ups + 1
        return found

    def met(self, segment: int, entries: tuple[Entry, ...], cached: Cached) -> None:
        """This plan is what a run with such inputs gets from now on."""
        if len(self.by_entries) >= MAX_PLANS:
            self.by_entries.clear()
        self.by_entries[segment, entries] = cached

    def get(self, key: Any) -> Cached | None:
        """The plan of a segment, its number first in `key`, for homes."""
        found = self.by_homes.get(key)
        if found is not None:
            found.used = self.look_ups = self.look_ups + 1
        return found

    def remember(self, key: Any, cached: Cached) -> list[Cached]:
        """Keep a plan; those that go for it."""
        cached.used = self.look_ups = self.look_ups + 1
        self.by_homes[key] = cached
        if len(self.by_homes) <= MAX_PLANS:
            return []
        oldest = sorted(self.by_homes, key=lambda key: self.by_homes[key].used)[: max(1, MAX_PLANS // 8)]
        return self._without(oldest)

    def drop(self, segment: int) -> list[Cached]:
        """Forget a segment's plans, which are these."""
        return self._without([key for key in self.by_homes if key[0] == segment])

    def clear(self) -> list[Cached]:
        """Forget all, which are these."""
        return self._without(list(self.by_homes))

    def values(self) -> Iterable[Cached]:
        """All of them."""
        return self.by_homes.values()

    def _without(self, keys: list[Any]) -> list[Cached]:
        self.by_entries.clear()
        return [self.by_homes.pop(key) for key in keys]


@dataclass(slots=True)
class Moving:
    """A session on its way to another mesh: the new planner, a mesh of all workers of both when some join, and the tensors
    that are still on the old one."""

    config: Any
    planner: Planner
    both: Mesh | None
    left: list[int]


@dataclass(slots=True)
class Job:
    """Something long that is done in small turns, when nothing else is to be done; `done` gets what came last."""

    client: int
    what: str
    turns: Iterator[Any]
    done: Callable[[Any], None]
    last: Any = None


@dataclass(slots=True)
class Client:
    """One session. `queue` holds what it sent and was not yet acted on, in order."""

    identity: bytes
    number: int
    facts: dict[str, Any]
    bulk: bytes
    expected: int = 1
    heard: float = 0.0
    own: Any = None
    """The config that the client sent, which goes over the service's."""
    config: Any = None
    """The two together, once a mesh was made of them."""
    planner: Planner | None = None
    moving: Moving | None = None
    verify: float = 0.0
    """The share of instructions that are computed again, gathered, and compared."""
    runs: int = 0
    """How many there were since then, by which those that check are drawn."""
    progress: bool = False
    fault: Fault | None = None
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
