"""The tensors that a session still has when one of its workers is lost: those that its other workers hold completely, and that no
plan in flight was making or moving.

The survivors are taken as the grid of the mesh without the lost worker's position on one axis. What was replicated along that
axis is whole there, however it is sharded along others. Pure functions; `handlers/disconnect.py` acts on it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from gt.sharding.placement import At, Layout, Mesh, Placement, Replicate
from gt.wire.faults import Fault

from .plan_cache import Entry
from .records import MeshRecord
from .session_marks import ENTRIES_PER_TURN, changed


class Survivors(NamedTuple):
    """What becomes of a session's tensors. `mesh` is the part of its mesh that has the whole ones, with a number of its own; None
    if there are none. `table` has them as they lie there, and the others with an error; these are `gone`."""

    mesh: Mesh | None
    table: dict[int, Entry]
    gone: list[int]


def lost_table(table: Mapping[int, Entry], fault: Fault) -> Generator[None, None, Survivors]:
    """No tensor is left. Made in turns, as the others here."""

    def lost(entry: Entry) -> Entry:
        return replace(entry, fault=entry.fault or fault, landing=frozenset())

    return Survivors(None, (yield from changed(table, lost)), [])


def survivors(
    table: Mapping[int, Entry], record: MeshRecord, lost: int, fault: Fault, numbers: Iterator[int]
) -> Generator[None, None, Survivors]:
    """What is left on a mesh without the member `lost`, along the axis that leaves most bytes; the mesh there gets the next of
    these numbers. The tensors that are gone have this fault. Nothing is issued on the mesh any more, and no tensor comes or
    goes."""
    mesh, moving = record.mesh, (yield from in_flight(record, lost))
    at = mesh.coordinates(mesh.members.index(lost))
    axes = [axis for axis, size in enumerate(mesh.sizes) if size > 1]

    def whole(tensor: int, entry: Entry) -> bool:
        """Whether nothing but its place on the mesh keeps a tensor from being whole."""
        return entry.fault is None and not entry.landing and entry.mesh == mesh.number and tensor not in moving

    counts, nbytes = [0] * len(mesh.sizes), [0] * len(mesh.sizes)
    for number, (tensor, entry) in enumerate(table.items(), 1):
        if not number % ENTRIES_PER_TURN:
            yield
        if whole(tensor, entry):
            for axis in axes:
                if _without(entry.resident.layout, axis, at[axis]) is not None:
                    counts[axis] += 1
                    nbytes[axis] += entry.spec.nbytes
    best = max((axis for axis in axes if counts[axis]), key=nbytes.__getitem__, default=None)
    if best is None:
        return (yield from lost_table(table, fault))
    rest = _without_position(mesh, best, at[best], next(numbers))
    found: dict[int, Entry] = {}
    gone: list[int] = []
    for number, (tensor, entry) in enumerate(table.items(), 1):
        if not number % ENTRIES_PER_TURN:
            yield
        layout = _without(entry.resident.layout, best, at[best]) if whole(tensor, entry) else None
        if layout is None:
            found[tensor] = replace(entry, fault=entry.fault or fault, landing=frozenset())
            gone.append(tensor)
        else:
            resident = replace(entry.resident, layout=layout)
            found[tensor] = replace(entry, mesh=rest.number, resident=resident, root=None)
    return Survivors(rest, found, gone)


def in_flight(record: MeshRecord, lost: int) -> Generator[None, None, set[int]]:
    """The tensors that runs make or move which some other member than `lost` has not finished, gathered in turns."""
    upto = min((order for worker, order in record.done.items() if worker != lost), default=0)
    unfinished = {order for order in record.pending if order > upto}
    found: set[int] = set()
    for order, tensors in [*record.changes]:
        if order in unfinished:
            found.update(tensors)
            yield
    return found


def _without(layout: Layout, axis: int, position: int) -> Layout | None:
    """A layout on the mesh without a position of an axis; None if that position had something that no other one has."""
    found: Placement = layout[axis]
    if isinstance(found, At) and found.position != position:
        found = At(found.position - (found.position > position))
    elif not isinstance(found, Replicate):
        return None
    return (*layout[:axis], found, *layout[axis + 1 :])


def _without_position(mesh: Mesh, axis: int, position: int, number: int) -> Mesh:
    """A mesh without the workers at a position of an axis, under another number."""

    def rest(row: tuple[int, ...]) -> tuple[int, ...]:
        return (*row[:position], *row[position + 1 :])

    weights = (*mesh.weights[:axis], rest(mesh.weights[axis]), *mesh.weights[axis + 1 :])
    members = tuple(_members(mesh, axis, position))
    return Mesh(number, mesh.axes, tuple(map(len, weights)), members, weights)


def _members(mesh: Mesh, axis: int, position: int) -> Iterator[int]:
    for rank, member in enumerate(mesh.members):
        if mesh.coordinates(rank)[axis] != position:
            yield member
