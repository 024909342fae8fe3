"""How a session's live tensors come from one mesh to another: by plans, when a new config changes its mesh, or from the files of
a mark, when fewer workers are left than it was taken on, or one sees no file with its parts: then peers send it theirs.

A plan knows only one mesh, so a tensor is gathered on the old mesh, copied to new workers on a mesh of all workers of both,
and cut on the new mesh. There it is sharded as before along axes of the same name. Values never change, and these plans are
not cached, because each runs once. From files, a worker reads what it needs of the parts of any rank. Pure functions; the core
issues the plans, and sends the messages.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.session_marks import ENTRIES_PER_TURN, SessionMark, changed
from gt.ir.dtypes import uint8
from gt.ir.instruction import INPUT, MOVE, Instruction, Plan, Tag, ref
from gt.ir.spec import Spec, pack_spec
from gt.sharding.placement import PINNED_AXIS, REPLICATE, At, Layout, Mesh, Placement, Shard, format_layout
from gt.wire import messages as m

GROUP_BYTES: Final = 256 << 20
"""The most bytes of tensors that are gathered at one time; a larger tensor moves alone."""
GROUP_TENSORS: Final = 64
"""The most tensors that are gathered at one time, and moved in one turn."""
MAX_TENSORS_OF_PART: Final = 1024
"""The most tensors of which a worker is told in one `RestoreParts`."""
_MIGRATION_TAG: Final = Tag((), "update", "a change of the config")
_DELIVERY_TAG: Final = Tag((), "update", "a mark that a new worker restores")


class LiveTensor(NamedTuple):
    """A tensor with a value: its id, spec, and where it is on the old mesh."""

    tensor: int
    spec: Spec
    layout: Layout


class MigrationPlan(NamedTuple):
    """A plan for a single use, and the tensors that it reads and writes back under the same ids."""

    plan: Plan
    tensors: list[int]


def meeting(old: Mesh, new: Mesh) -> tuple[int, ...]:
    """The workers of both meshes; none if the new mesh adds no worker."""
    return () if set(new.members) <= set(old.members) else tuple(sorted({*old.members, *new.members}))


def layout_on(new: Mesh, old: Mesh, layout: Layout) -> Layout:
    """The layout of a tensor on the new mesh: sharded as before along axes of the same name, replicated along others. On a mesh
    of pinned devices it stays on its worker; one that was on several is where nothing is pinned."""
    if new.axes == (PINNED_AXIS,):
        before = layout[0] if old.axes == new.axes else REPLICATE
        worker = old.members[before.position] if isinstance(before, At) else old.members[0]
        return (At(new.members.index(worker) if worker in new.members else 0),)
    out: list[Placement] = []
    for axis, size in zip(new.axes, new.sizes, strict=True):
        before = layout[old.axes.index(axis)] if axis in old.axes else REPLICATE
        if isinstance(before, Shard):
            same = before.weights is not None and len(before.weights) == size
            out.append(before if same else Shard(before.dim))
        elif isinstance(before, At) and before.position < size:
            out.append(before)
        else:
            out.append(REPLICATE)
    return tuple(out)


def moved_entries(table: Mapping[int, Entry], old: Mesh, new: Mesh) -> Generator[None, None, dict[int, Entry]]:
    """A mark's table with its tensors on another mesh, made in turns. Memory that they shared is each one's own, and no
    parameter is bound."""

    def moved(entry: Entry) -> Entry:
        if entry.fault is not None:
            return entry
        layout = layout_on(new, old, entry.resident.layout)
        return replace(entry, mesh=new.number, resident=replace(entry.resident, layout=layout, bound=False), root=None)

    return changed(table, moved)


def restored_layout(old: Mesh, new: Mesh, layout: Layout) -> Layout:
    """The layout on the new mesh of a tensor of a mark: on a mesh like the mark's it is as it was."""
    same = (old.axes, old.sizes, old.weights) == (new.axes, new.sizes, new.weights)
    return layout if same else layout_on(new, old, layout)


def delivery_plan(mesh: Mesh, tensor: int, nbytes: int, source: int, target: int) -> Plan:
    """The plan for a single use that moves packed parts of a mark from one rank to another."""
    before, after = (tuple(map(At, mesh.coordinates(rank))) for rank in (source, target))
    found = _identity(mesh, [(tensor, Spec(uint8, (nbytes,)), before, after)], _DELIVERY_TAG)
    assert found is not None, "nobody sends anything to itself"
    return found.plan


def restore_parts(
    mark: SessionMark, client: int, new: Mesh, packed: Sequence[tuple[int, int]] = (), gone: Container[int] = ()
) -> Iterator[m.RestoreParts | None]:
    """What tells workers of a mesh to read their parts of a mark from the files of all its ranks, made in turns, of which most
    have no message. `packed`: what peers have sent, with the ranks that had it; `gone`: tensors that are left out."""
    old = mark.mesh
    weights = [list(each) for each in old.weights]
    tensors: list[int] = []
    which: list[int] = []
    kinds: dict[tuple[Spec, Layout], int] = {}
    printed: list[Any] = []

    def part(*, more: bool) -> m.RestoreParts:
        sent = ([], []) if more else ([each for each, _ in packed], [rank for _, rank in packed])
        return m.RestoreParts(mark.number, client, new.number, weights, tensors, which, printed, *sent, more)

    for at, (tensor, entry) in enumerate(mark.table.items(), 1):
        if not at % ENTRIES_PER_TURN:
            yield None
        if entry.fault is not None or tensor in gone:
            continue
        if len(tensors) == MAX_TENSORS_OF_PART:
            yield part(more=True)
            tensors, which, kinds, printed = [], [], {}, []
        spec, before = entry.spec, entry.resident.layout
        number = kinds.setdefault((spec, before), len(kinds))
        if number == len(printed):
            after = restored_layout(old, new, before)
            printed.append([pack_spec(spec), format_layout(before), format_layout(after)])
        tensors.append(tensor)
        which.append(number)
    yield part(more=False)


def first_few(live: Iterable[LiveTensor]) -> list[LiveTensor]:
    """The first tensors, as many as may be gathered at one time."""
    found: list[LiveTensor] = []
    total = 0
    for each in live:
        total += each.spec.nbytes
        if found and (total > GROUP_BYTES or len(found) == GROUP_TENSORS):
            break
        found.append(each)
    return found


def migration_plans(live: Sequence[LiveTensor], old: Mesh, new: Mesh, both: Mesh | None) -> list[MigrationPlan]:
    """The plans that move tensors from the old mesh to the new one, in order.

    When workers join, tensors without elements are left out, because nothing of them has to travel.
    """
    live = [each for each in live if both is None or each.spec.size]
    whole = [(each.tensor, each.spec, each.layout, old.replicated) for each in live]
    plans = [_identity(old, whole)]
    if both is not None:
        first = At(both.members.index(old.members[0]))
        plans.append(_identity(both, [(each.tensor, each.spec, (first,), both.replicated) for each in live]))
    cut = [(each.tensor, each.spec, new.replicated, layout_on(new, old, each.layout)) for each in live]
    plans.append(_identity(new, cut))
    return [plan for plan in plans if plan is not None]


def _identity(
    mesh: Mesh, ways: Iterable[tuple[int, Spec, Layout, Layout]], tag: Tag = _MIGRATION_TAG
) -> MigrationPlan | None:
    """The plan that moves tensors from layout to layout, None if none has to move. Survivors are numbered like the tensors."""
    moved = [way for way in ways if way[2] != way[3]]
    if not moved:
        return None
    tensors, specs, before, after = map(tuple, zip(*moved, strict=True))
    moves = tuple(
        Instruction(MOVE, range(number, number + 1), (ref(INPUT, number),), {}, 0) for number in range(len(moved))
    )
    survivors = tuple((tensor, number) for number, tensor in enumerate(tensors))
    plan = Plan(mesh.number, specs, before, "", (tag,), moves, specs, after, survivors, ())
    return MigrationPlan(plan, list(tensors))
