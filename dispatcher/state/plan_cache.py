"""The dispatcher's record of each tensor of a session, and the plans that are kept for runs on them.

State only: `session_plans/plan_selection.py` decides which plan is made and which workers are told of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gt.dispatcher.cost.expected_run_time import PlanExpectation
from gt.dispatcher.cost.peak_memory import looks_at
from gt.dispatcher.pacing.priority import Priority
from gt.dispatcher.pacing.run_time import RunTime
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.plan_parts import PlanPart
from gt.dispatcher.planner.planner import Planned
from gt.ir.instruction import INPUT, OUTPUT, ref
from gt.ir.instruction_bytes import unpack_plan_in_turns
from gt.ir.spec import Spec
from gt.sharding.interned import Interned
from gt.sharding.placement import Layout
from gt.turns import ITEMS_PER_TURN, finish
from gt.wire.faults import Fault
from gt.wire.messages import Execute, Run

MAX_PLANS: Final = 1024
"""The most plans that are kept for one session."""
EFFECTS_PER_TURN: Final = 1024
"""How many entries of a tensor table are changed in one turn, of a run that changes many."""
MOVED_PER_TURN: Final = 128
"""How many inputs that a run moves get other entries in one turn; each may take some microseconds."""


class SharedStorage:
    """Memory that several tensors look at. It belonged to one tensor, which may have been freed since."""

    __slots__ = ("layout", "spec")

    def __init__(self, spec: Spec, layout: Layout) -> None:
        self.spec = spec
        self.layout = layout


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Entry(metaclass=Interned):
    """One tensor of a client, or several tensors that are alike. Entries never change: a tensor that changes gets another one.

    Entries are interned: inputs with the entries of an earlier run are as valid as that run's inputs, and in the same places.

    `fault` says why there is no value; `landing` names the workers that a bulk put has not reached yet; `root` is the memory
    that the tensor shares with views, if it does. Each run of a plan makes such memory anew, so what `sharing` gives is not
    interned, but knows what it was made from.
    """

    spec: Spec
    mesh: int
    resident: ResidentPlacement
    fault: Fault | None = None
    landing: frozenset[int] = frozenset()
    root: SharedStorage | None = None
    plain: Entry | None = field(default=None, init=False, repr=False)
    """The entry with memory of its own that this one was made from. Plans are the same for both."""

    def sharing(self, root: SharedStorage) -> Entry:
        """The same tensor in memory that it shares."""
        made: Entry = object.__new__(Entry)
        values = self.spec, self.mesh, self.resident, self.fault, self.landing, root, self.plain or self
        for name, value in zip(_ENTRY_FIELDS, values, strict=True):
            object.__setattr__(made, name, value)
        return made


_ENTRY_FIELDS: Final = (*Entry.__match_args__, "plain")


class ViewedValue(NamedTuple):
    """A value of a plan at whose memory survivors look."""

    spec: Spec
    layout: Layout
    source: int | None
    """The position of the input that it is, or ~position of the survivor; None if it is neither."""
    views: list[int]
    """The positions of those survivors."""


class TableChanges(NamedTuple):
    """How running a plan changes the tensor table."""

    viewed: list[ViewedValue]
    """The values of which survivors are views."""
    views: int
    """How many survivors that are."""
    made: list[Entry]
    """The entry of each survivor."""
    offsets: list[int]
    """The survivors' output numbers in the segment."""
    relocated: list[tuple[int, ResidentPlacement]]
    """The inputs whose resident placement the plan changes."""

    def entry(self, output: int) -> Entry | None:
        """The entry of an output, if it survives."""
        at = bisect_left(self.offsets, output)
        return self.made[at] if at < len(self.offsets) and self.offsets[at] == output else None


def table_changes(residents: tuple[ResidentPlacement, ...], planned: Planned) -> Generator[None, None, TableChanges]:
    """What a plan does to the table in which its inputs have these resident placements, found in turns."""
    plan = planned.plan
    looks = yield from looks_at(plan)
    viewed = yield from _viewed_values(looks, planned)
    if len(plan.survivors) > ITEMS_PER_TURN:
        yield
    offsets, specs = [offset for offset, _ in plan.survivors], [plan.values[index] for _, index in plan.survivors]
    made: list[Entry] = []
    if len(specs) > ITEMS_PER_TURN:
        yield
    for at in range(0, len(specs), ITEMS_PER_TURN):
        if at:
            yield
        few = slice(at, at + ITEMS_PER_TURN)
        kinds = [*zip(specs[few], planned.survivors[few], strict=True)]
        entries = {kind: Entry(kind[0], plan.mesh, kind[1]) for kind in {*kinds}}
        made.extend(map(entries.__getitem__, kinds))
    changes = enumerate(zip(residents, planned.inputs, strict=True))
    relocated = [(position, after) for position, (before, after) in changes if before is not after]
    return TableChanges(viewed, len(looks), made, offsets, relocated)


def _viewed_values(looks: Mapping[int, int], planned: Planned) -> Generator[None, None, list[ViewedValue]]:
    """The values of a plan that survivors look at, from the survivors that are views; found in turns."""
    if not looks:
        return []
    plan, space = planned.plan, len(planned.survivors[0].layout)
    survivor: dict[int, int] = {}
    for position, (_, index) in enumerate(plan.survivors):
        if position and not position % ITEMS_PER_TURN:
            yield
        survivor[ref(OUTPUT, index)] = ~position
    found: dict[int, ViewedValue] = {}
    for count, (position, at) in enumerate(looks.items(), 1):
        if not count % ITEMS_PER_TURN:
            yield
        value = found.get(at)
        if value is None:
            spec = plan.operand(at)
            assert isinstance(spec, Spec), "a view looks at a tensor"
            source = at >> 2 if at & 3 == INPUT else survivor.get(at)
            value = found[at] = ViewedValue(spec, plan.layout(at)[:space], source, [])
        value.views.append(position)
    return [*found.values()]


class RunEffects(NamedTuple):
    """What a run does to the tensor table of its session."""

    inputs: Sequence[int]
    before: Sequence[Entry]
    """The entries of the inputs."""
    changes: TableChanges
    made: list[int]
    """The tensors that it makes."""
    others: Mapping[int, Entry]
    """Tensors that get other entries then, or have an error in place of a value."""
    freed: list[int]
    dying: list[int]
    """The inputs that die with it, by position."""

    def apply(self, table: dict[int, Entry], landing: set[int]) -> Iterator[list[Entry | None]]:
        """Change the table, and which of its tensors have yet to arrive, in turns. Each turn gives what is to be freed of the
        table."""
        relocated = self.changes.relocated
        for at in range(0, len(relocated), MOVED_PER_TURN):
            for position, resident in relocated[at : at + MOVED_PER_TURN]:
                table[self.inputs[position]] = replace(self.before[position], resident=resident, root=None)
            yield []
        for fresh in (zip(self.made, self.changes.made, strict=True), iter(self.others.items())):
            while some := [*islice(fresh, EFFECTS_PER_TURN)]:
                table.update(some)
                yield []
        for at in range(0, len(self.freed), EFFECTS_PER_TURN):
            gone = self.freed[at : at + EFFECTS_PER_TURN]
            landing.difference_update(gone)
            yield [*map(table.pop, gone, repeat(None))]
        for at in range(0, len(self.dying), EFFECTS_PER_TURN):
            ending = map(self.inputs.__getitem__, self.dying[at : at + EFFECTS_PER_TURN])
            yield [*map(table.pop, ending, repeat(None))]


class CachedPart:
    """A part of a plan, as workers know it: under a number, once they have been told."""

    __slots__ = ("body", "number", "part", "planned", "run_time", "told")

    def __init__(self, part: PlanPart, body: bytes, run_time: RunTime) -> None:
        self.part = part
        self.body = body
        self.run_time = run_time
        self.planned = Planned(part.plan, (), ())
        self.number = 0
        self.told = False
        """Whether the workers know it: they are told when it is issued first."""


class ReadyPlan(NamedTuple):
    """What a better plan takes over with: its changes of the table, its bytes, with or without TF32, what it should take, and its
    parts if it is cut."""

    changes: TableChanges
    body: bytes
    tf32: bool
    expected: PlanExpectation
    parts: tuple[CachedPart, ...] = ()


class CachedPlan:
    """A plan that the workers of its mesh know as `number`, and how running it changes the tensor table.

    `runs` counts requests. A better plan is searched at the third one and takes over at a fixed one, so that results never
    depend on time.
    """

    __slots__ = (
        "better", "changes", "length", "number", "parts", "planned", "priority", "ready", "residents", "run_time", "runs",
        "scalar_types", "searched", "used",
    )  # fmt: skip

    def __init__(
        self,
        residents: tuple[ResidentPlacement, ...],
        planned: Planned,
        scalar_types: list[type],
        changes: TableChanges | None = None,
        run_time: RunTime | None = None,
        parts: tuple[CachedPart, ...] = (),
    ) -> None:
        self.residents = residents
        self.scalar_types = scalar_types
        self.used = 0
        """The number of the look-up that found it last."""
        self.number = 0
        self.runs = 1
        self.searched = False
        """Whether the search for a better plan has ended."""
        self.better: Planned | None = None
        self.ready: ReadyPlan | None = None
        """What is known of that, if it was found here."""
        self.run_time = run_time or RunTime()
        self.priority: Priority | None = None
        """Its class, if its signals say one."""
        self.take(planned, changes, parts)

    def take(self, planned: Planned, changes: TableChanges | None = None, parts: tuple[CachedPart, ...] = ()) -> None:
        """Replace the plan by this one, of which it may be known how it changes the table."""
        self.parts = parts
        """What workers run one after the other, if the plan is cut. The first one has its number."""
        self.planned = planned
        self.length = len(planned.plan.instructions)
        self.changes = changes or finish(table_changes(self.residents, planned))


class UnderwayRun:
    """A run of a plan in parts of which some are issued. The session's table changes with the last one. `at` is the part that is
    next."""

    __slots__ = ("at", "cached", "dying", "entries", "made", "mesh", "others")

    def __init__(
        self,
        run: Run,
        cached: CachedPlan,
        mesh: int,
        entries: Sequence[Entry],
        made: list[int],
        others: Mapping[int, Entry],
    ) -> None:
        self.at = 0
        self.cached = cached
        self.mesh = mesh
        self.entries = entries
        self.made = made
        self.others = others
        once = len({*run.inputs}) == len(run.inputs)
        self.dying: frozenset[int] = frozenset(run.dying) if once else frozenset()
        """The positions of inputs that die with the last part that reads them; the others that die do so with the whole run."""

    def execute(self, run: Run, order: int, client: int) -> Execute:
        """What workers are told of the next part."""
        cached = self.cached.parts[self.at]
        part, base = cached.part, run.base
        last = part.last.items() if self.dying else ()
        dying = [*part.ends, *[here for position, here in last if position in self.dying]]
        freed: list[int] = []
        if self.at == len(self.cached.parts) - 1:
            freed = [
                *run.freed,
                *map(run.inputs.__getitem__, run.dying),
            ]  # those that died before are not there any more
        inputs = [run.inputs[source] if source >= 0 else base + ~source for source in part.inputs]
        scalars = [*map(run.scalars.__getitem__, part.scalars)]
        return Execute(order, cached.number, client, base + part.base, inputs, scalars, dying, freed)

    def left(self, run: Run) -> list[int]:
        """The tensors that the issued parts may have left at workers, and that the session's table does not have."""
        issued = self.cached.parts[: self.at]
        return [*self.made, *[run.base + number for each in issued for number in each.part.passed]]


class PackedPlan(NamedTuple):
    """A `Planned` whose plan is still the bytes that were read: of many plans of a session few are ever asked for again."""

    body: bytes
    survivors: tuple[ResidentPlacement, ...]
    inputs: tuple[ResidentPlacement, ...]
    hindered: str

    def unpacked(self) -> Planned:
        """The plan. Raises `ProtocolError` if the bytes are not those of a plan."""
        return finish(self.in_turns())

    def in_turns(self) -> Generator[None, None, Planned]:
        """The same, read in turns."""
        plan = yield from unpack_plan_in_turns(self.body)
        return Planned(plan, self.survivors, self.inputs, self.hindered)


class SavedPlan(NamedTuple):
    """A plan as it is in a mark: what a `CachedPlan` has that later runs depend on."""

    residents: tuple[ResidentPlacement, ...]
    planned: Planned | PackedPlan
    scalar_types: list[type]
    runs: int
    searched: bool
    better: Planned | PackedPlan | None

    def on(self, mesh: int) -> Generator[None, None, CachedPlan]:
        """The plan on another mesh of the same shape, whose workers have not been told of it: its number is 0. Made in turns."""
        planned = yield from _on(self.planned, mesh)
        changes = yield from table_changes(self.residents, planned)
        cached = CachedPlan(self.residents, planned, self.scalar_types, changes)
        cached.runs, cached.searched = self.runs, self.searched
        if self.better is not None:
            cached.better = yield from _on(self.better, mesh)
        return cached


def _on(planned: Planned | PackedPlan, mesh: int) -> Generator[None, None, Planned]:
    if isinstance(planned, PackedPlan):
        planned = yield from planned.in_turns()
    return planned._replace(plan=replace(planned.plan, mesh=mesh))


_PLAIN_FORM: Final = attrgetter("plain")


def _plain(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The entries, each with memory of its own."""
    return tuple([entry.plain or entry for entry in entries])


class PlanCache:
    """The plans of one session: by segment and resident placements of the inputs, and, for a faster look-up, by the
    inputs' entries.

    At most `MAX_PLANS` are kept; beyond that, the least recently used eighth is dropped.
    """

    __slots__ = ("by_entries", "by_residents", "look_ups", "saved")

    def __init__(self) -> None:
        self.by_residents: dict[Any, CachedPlan] = {}
        self.by_entries: dict[tuple[int, tuple[Entry, ...]], CachedPlan] = {}
        """A short cut, which may be cleared at any time. Only for inputs that all have values, where the plan wants them."""
        self.look_ups = 0
        self.saved: dict[Any, SavedPlan] = {}
        """Plans from a mark that have not been asked for since, by the key that they will have."""

    def saved_plans(self) -> dict[Any, SavedPlan]:
        """All plans, as a mark keeps them: by segment and resident placements. Those that also check something are left
        out, because they follow from others."""
        found = dict(self.saved)
        for key, each in self.by_residents.items():
            if len(key) == 2:
                found[key] = SavedPlan(
                    each.residents, each.planned, each.scalar_types, each.runs, each.searched, each.better
                )
        return found

    def __len__(self) -> int:
        return len(self.by_residents)

    def again(self, segment: int, entries: tuple[Entry, ...]) -> CachedPlan | None:
        """The plan of a run whose inputs have the same entries as those of an earlier run, if there is one. With whom they share
        memory does not count."""
        found = self.by_entries.get((segment, entries))
        if found is None and any(map(_PLAIN_FORM, entries)):
            found = self.by_entries.get((segment, _plain(entries)))
        if found is not None:
            found.used = self.look_ups = self.look_ups + 1
        return found

    def met(self, segment: int, entries: tuple[Entry, ...], cached: CachedPlan) -> None:
        """From now on, runs with the entries of these inputs get this plan."""
        if len(self.by_entries) >= MAX_PLANS:
            self.by_entries.clear()
        self.by_entries[segment, _plain(entries)] = cached

    def get(self, key: Any) -> CachedPlan | None:
        """The plan for a segment (its number is the first item of `key`) and the resident placements of its inputs."""
        found = self.by_residents.get(key)
        if found is not None:
            found.used = self.look_ups = self.look_ups + 1
        return found

    def has(self, segment: int) -> bool:
        """Whether the segment has a plan for other resident placements of its inputs."""
        return any(key[0] == segment for key in self.by_residents)

    def remember(self, key: Any, cached: CachedPlan) -> list[CachedPlan]:
        """Keep a plan. Returns the plans that are dropped to make room."""
        cached.used = self.look_ups = self.look_ups + 1
        self.by_residents[key] = cached
        if len(self.by_residents) <= MAX_PLANS:
            return []
        oldest = sorted(self.by_residents, key=lambda key: self.by_residents[key].used)[: max(1, MAX_PLANS // 8)]
        return self._without(oldest)

    def drop(self, segment: int) -> list[CachedPlan]:
        """Forget all plans of a segment. Returns them."""
        for key in [key for key in self.saved if key[0] == segment]:
            del self.saved[key]
        return self._without([key for key in self.by_residents if key[0] == segment])

    def clear(self) -> list[CachedPlan]:
        """Forget all plans. Returns them."""
        self.saved.clear()
        return self._without(list(self.by_residents))

    def values(self) -> Iterable[CachedPlan]:
        """All plans."""
        return self.by_residents.values()

    def _without(self, keys: list[Any]) -> list[CachedPlan]:
        self.by_entries.clear()
        return [self.by_residents.pop(key) for key in keys]
