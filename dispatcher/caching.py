"""What a session's tensors are to the dispatcher, and the plans that are kept for runs on them.

Pure: who is told of a plan, and which plan is made, is said in `preparing.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from gt.interned import Interned
from gt.messages import Fault
from gt.placement import Layout
from gt.spec import Spec

from .memory import looks_at
from .plan import Planned
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

    def has(self, segment: int) -> bool:
        """Whether there is a plan for other homes of a segment's inputs."""
        return any(key[0] == segment for key in self.by_homes)

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
