"""From one mesh to another: plans that carry a session's live tensors over, when a new config makes it another mesh.

A plan knows one mesh, so a tensor goes through the whole: it is made whole on the old mesh, given to those who join on a
mesh of all workers of both, and cut on the new mesh, where it keeps its cut along axes whose names it knows. Nothing here
changes a value, and nothing here is cached: such a plan is run once. Pure functions; the core issues what they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gt.instruction import INPUT, MOVE, Instruction, Plan, Tag, ref
from gt.placement import REPLICATE, At, Layout, Mesh, Placement, Shard
from gt.spec import Spec

GROUP_BYTES: Final = 256 << 20
"""Bytes of tensors that are whole at one time; a larger one goes alone."""
_TAG: Final = Tag((), "update", "a change of the config")


class Live(NamedTuple):
    """A tensor with a value: its id, spec, and where it is on the old mesh."""

    tensor: int
    spec: Spec
    layout: Layout


class Carry(NamedTuple):
    """One plan of one use, and the tensors that it takes in and gives back under the same ids."""

    plan: Plan
    tensors: list[int]


def meeting(old: Mesh, new: Mesh) -> tuple[int, ...]:
    """The workers of both meshes; none when nobody joins who was not in the old one."""
    return () if set(new.members) <= set(old.members) else tuple(sorted({*old.members, *new.members}))


def layout_on(new: Mesh, old: Mesh, layout: Layout) -> Layout:
    """Where a tensor goes on the new mesh: cut as it was along axes of the same name, whole along others."""
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


def first_few(live: Iterable[Live]) -> list[Live]:
    """The first few, as many as may be whole at one time."""
    found: list[Live] = []
    total = 0
    for each in live:
        total += each.spec.nbytes
        if found and total > GROUP_BYTES:
            break
        found.append(each)
    return found


def carry(live: Sequence[Live], old: Mesh, new: Mesh, both: Mesh | None) -> list[Carry]:
    """The plans that take tensors from the old mesh to the new one, in their order.

    Where some join, tensors without elements stay behind: nothing of them travels.
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


def _identity(mesh: Mesh, ways: Iterable[tuple[int, Spec, Layout, Layout]]) -> Carry | None:
    """The plan that moves tensors from layout to layout; None when none of them has to. Survivors are numbered by tensor."""
    moved = [way for way in ways if way[2] != way[3]]
    if not moved:
        return None
    tensors, specs, before, after = map(tuple, zip(*moved, strict=True))
    moves = tuple(
        Instruction(MOVE, range(number, number + 1), (ref(INPUT, number),), {}, 0) for number in range(len(moved))
    )
    survivors = tuple((tensor, number) for number, tensor in enumerate(tensors))
    plan = Plan(mesh.number, specs, before, "", (_TAG,), moves, specs, after, survivors, ())
    return Carry(plan, list(tensors))
