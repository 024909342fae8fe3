"""What the dispatcher knows of every tensor, client and worker: plain records, changed only by `core.py`."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from gt.instruction import Segment
from gt.messages import Fault
from gt.placement import Mesh
from gt.spec import Spec

from .cost import Speeds
from .plan import Home, Planned, Planner


@dataclass(slots=True)
class Entry:
    """One tensor of one client. `fault` is why it has no value; `landing` the workers that a bulk put has not reached yet."""

    spec: Spec
    mesh: int
    home: Home
    fault: Fault | None = None
    landing: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Cached:
    """A plan that the workers of its mesh know under `number`."""

    number: int
    planned: Planned


@dataclass(slots=True)
class Client:
    """One session. `queue` holds what it sent and was not yet acted on, in order; `plans` its plan cache."""

    identity: bytes
    number: int
    facts: dict[str, Any]
    bulk: bytes
    expected: int = 1
    heard: float = 0.0
    config: Any = None
    planner: Planner | None = None
    fault: Fault | None = None
    segments: dict[int, Segment | Fault] = field(default_factory=dict)
    table: dict[int, Entry] = field(default_factory=dict)
    queue: deque[Any] = field(default_factory=deque)
    plans: OrderedDict[Any, Cached] = field(default_factory=OrderedDict)
    arrived: int = 0
    credited: int = 0
    inflight: deque[tuple[int, int]] = field(default_factory=deque)
    """(position in the client's stream of runs and puts, order) of what the workers may not have finished."""
    gpipe: Counter[str] = field(default_factory=Counter)
    """Runs that could not be 1f1b, by the reason."""
    made: int = 0
    hits: int = 0

    @property
    def mesh(self) -> Mesh | None:
        """The session's mesh, once its first tensor made one necessary."""
        return self.planner.mesh if self.planner else None


@dataclass(slots=True)
class Worker:
    """One worker. `outstanding` are the orders that it has and has not finished."""

    identity: bytes
    number: int
    facts: dict[str, Any]
    address: str
    bulk: bytes
    expected: int = 1
    heard: float = 0.0
    outstanding: deque[int] = field(default_factory=deque)


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
    """A mesh in use. `workers` are its living members, `identities` theirs; `plans` are those that they know."""

    mesh: Mesh
    speeds: Speeds
    workers: list[Worker]
    identities: tuple[bytes, ...]
    fault: Fault | None = None
    plans: set[int] = field(default_factory=set)
    sources: dict[Any, tuple[tuple[bytes, ...], tuple[bytes, ...], dict[int, Any]]] = field(default_factory=dict)
    """Who answers a fetch of some spec and layout, remembered."""
