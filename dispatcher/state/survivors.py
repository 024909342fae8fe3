"""What is left of a session's tensors when one of its workers is lost: those of which the other workers have all, and that no
plan in flight was to make or move.

The survivors are taken as the grid of the mesh without the lost worker's position on one axis. What was replicated along that
axis is whole there, however it is sharded along others. Pure functions; `handlers/disconnect.py` acts on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import NamedTuple

from gt.sharding.placement import At, Layout, Mesh, Placement, Replicate

from .plan_cache import Entry
from .records import MeshRecord


class Survivors(NamedTuple):
    """A part of a mesh, and the tensors that are whole there, as they lie on it. The mesh has the number of the whole one."""

    mesh: Mesh
    table: dict[int, Entry]


def survivors(table: dict[int, Entry], record: MeshRecord, lost: int) -> Survivors | None:
    """What is left on a mesh without the member `lost`, along the axis that leaves most bytes; None if nothing is."""
    mesh, moving = record.mesh, in_flight(record, lost)
    here = {
        tensor: entry
        for tensor, entry in table.items()
        if entry.fault is None and not entry.landing and entry.mesh == mesh.number and tensor not in moving
    }
    at = mesh.coordinates(mesh.members.index(lost))
    best: tuple[int, Survivors] | None = None
    for axis, size in enumerate(mesh.sizes):
        if size == 1:
            continue
        kept: dict[Entry, Entry] = {}
        for entry in {*here.values()}:
            layout = _without(entry.resident.layout, axis, at[axis])
            if layout is not None:
                kept[entry] = replace(entry, resident=replace(entry.resident, layout=layout), root=None)
        found = {tensor: kept[entry] for tensor, entry in here.items() if entry in kept}
        nbytes = sum(entry.spec.nbytes for entry in found.values())
        if found and (best is None or nbytes > best[0]):
            best = nbytes, Survivors(_without_position(mesh, axis, at[axis]), found)
    return best[1] if best is not None else None


def in_flight(record: MeshRecord, lost: int) -> Set[int]:
    """The tensors that runs make or move which some other member than `lost` has not finished."""
    upto = min((order for worker, order in record.done.items() if worker != lost), default=0)
    unfinished = {order for order in record.pending if order > upto}
    return {tensor for order, tensors in record.changes if order in unfinished for tensor in tensors}


def _without(layout: Layout, axis: int, position: int) -> Layout | None:
    """A layout on the mesh without a position of an axis; None if that position had something that no other one has."""
    found: Placement = layout[axis]
    if isinstance(found, At) and found.position != position:
        found = At(found.position - (found.position > position))
    elif not isinstance(found, Replicate):
        return None
    return (*layout[:axis], found, *layout[axis + 1 :])


def _without_position(mesh: Mesh, axis: int, position: int) -> Mesh:
    """A mesh without the workers at a position of an axis."""

    def rest(row: tuple[int, ...]) -> tuple[int, ...]:
        return (*row[:position], *row[position + 1 :])

    weights = (*mesh.weights[:axis], rest(mesh.weights[axis]), *mesh.weights[axis + 1 :])
    members = tuple(_members(mesh, axis, position))
    return Mesh(mesh.number, mesh.axes, tuple(map(len, weights)), members, weights)


def _members(mesh: Mesh, axis: int, position: int) -> Iterator[int]:
    for rank, member in enumerate(mesh.members):
        if mesh.coordinates(rank)[axis] != position:
            yield member
