"""Which worker holds which part of a tensor, and what is sent to change its layout: pure functions of the rank.

`bounds` is the only function that splits a dimension, for every component. Everything else here follows from it. A plan can
therefore be the same bytes for all workers: each derives its own part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from .collectives import all_reduce_algorithm, all_reduce_bytes, crossing_bytes
from .placement import At, Layout, Mesh, Partial, Placement, Replicate, Shard

Box = tuple[tuple[int, int], ...]
"""A half-open range for each dimension."""


@lru_cache(maxsize=4096)
def bounds(size: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Cut points of `size` elements in proportion to `weights`: part i is [cuts[i], cuts[i + 1]).

    Exact integer arithmetic: cut i is the running weight's share of `size`, rounded half up. Weight 0 gets nothing; no
    weight at all is equal weights.
    """
    if not any(weights):
        weights = (1,) * len(weights)
    total = sum(weights)
    return (0, *((size * running + total // 2) // total for running in itertools.accumulate(weights)))


def _weights(mesh: Mesh, axis: int, shard: Shard) -> tuple[int, ...]:
    return mesh.weights[axis] if shard.weights is None else shard.weights


def present(layout: Layout, coordinates: tuple[int, ...]) -> bool:
    """Whether the worker at `coordinates` has any part of a value, which may be at other positions only."""
    return all(not isinstance(p, At) or p.position == at for p, at in zip(layout, coordinates, strict=True))


def box_at(shape: tuple[int, ...], layout: Layout, mesh: Mesh, coordinates: tuple[int, ...]) -> Box | None:
    """The part of a tensor of `shape` that the worker at `coordinates` holds; None if it holds none.

    A partial tensor has full extent.
    """
    ranges = [(0, size) for size in shape]
    for axis, placement in enumerate(layout):
        if isinstance(placement, At):
            if placement.position != coordinates[axis]:
                return None
        elif isinstance(placement, Shard):
            start, stop = ranges[placement.dim]
            cuts = bounds(stop - start, _weights(mesh, axis, placement))
            at = coordinates[axis]
            ranges[placement.dim] = (start + cuts[at], start + cuts[at + 1])
    return tuple(ranges)


def box(shape: tuple[int, ...], layout: Layout, mesh: Mesh, rank: int) -> Box | None:
    """The part of a tensor of `shape` that `rank` holds; None if it holds none."""
    return box_at(shape, layout, mesh, mesh.coordinates(rank))


def written_box(shape: tuple[int, ...], layout: Layout, mesh: Mesh, rank: int, turn: int) -> Box | None:
    """The part of a tensor that `rank` writes to a file; None for a worker that holds none, or whose part another one writes.

    Of those who hold the same part `turn` decides who writes it, so that all have as much to do.
    """
    at = mesh.coordinates(rank)
    for placement, size, position in zip(layout, mesh.sizes, at, strict=True):
        if isinstance(placement, Replicate):
            turn, chosen = divmod(turn, size)
            if position != chosen:
                return None
    part = box_at(shape, layout, mesh, at)
    return part if part is not None and all(extent(part)) else None


def holders(layout: Layout, mesh: Mesh, rank: int) -> list[int]:
    """The ranks that hold the same part of a tensor as `rank`, itself among them, in order."""
    at = mesh.coordinates(rank)
    along = [
        range(size) if isinstance(placement, Replicate) else (position,)
        for placement, size, position in zip(layout, mesh.sizes, at, strict=True)
    ]
    return [mesh.rank(coordinates) for coordinates in itertools.product(*along)]


def copies(layout: Layout, mesh: Mesh) -> int:
    """How often all workers together hold each element: the parts along an axis that cuts a tensor are disjoint, and cover it."""
    return math.prod(
        size for placement, size in zip(layout, mesh.sizes, strict=True) if not isinstance(placement, (Shard, At))
    )


def extent(part: Box) -> tuple[int, ...]:
    """The shape of a box."""
    return tuple(stop - start for start, stop in part)


def intersect(a: Box | None, b: Box | None) -> Box | None:
    """The common part of two boxes; None if it has no element. Zero-dimensional boxes always intersect."""
    if a is None or b is None:
        return None
    common = tuple((max(a0, b0), min(a1, b1)) for (a0, a1), (b0, b1) in zip(a, b, strict=True))
    return None if any(start >= stop for start, stop in common) else common


def relative(part: Box, origin: Box) -> tuple[slice, ...]:
    """`part` as slices into an array that holds the box `origin`."""
    return tuple(slice(start - base, stop - base) for (start, stop), (base, _) in zip(part, origin, strict=True))


def covers(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    """Whether boxes within a shape hold each of its elements once."""
    if sum(math.prod(extent(box)) for box in boxes) != math.prod(shape):
        return False
    if len(boxes) < 2:
        return True
    corners = np.array(boxes, np.int64).reshape(len(boxes), len(shape), 2)
    starts, stops = corners[..., 0], corners[..., 1]
    for at in range(1, len(boxes)):  # with those before it: disjoint boxes of the right volume leave nothing out
        meet = (starts[:at] < stops[at]) & (starts[at] < stops[:at])
        if meet.all(axis=1).any():
            return False
    return True


@dataclass(frozen=True, slots=True)
class BoxTransfer:
    """A box sent in a move: `part`, in global coordinates, from rank `source` to rank `target` (they may be equal)."""

    source: int
    target: int
    part: Box


def _own(old: Placement, new: Placement) -> bool:
    """Whether workers need nothing from each other along an axis: all hold the same, or contributions stay contributions."""
    if isinstance(new, Partial):
        if old != new:
            raise ValueError(f"{old} cannot become {new}: nothing becomes partial by being moved")
        return True
    return isinstance(old, Replicate)


def _sources(before: Layout, after: Layout, mesh: Mesh, target: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The coordinates of all workers that may hold something for `target`, in order of rank."""
    choices: list[range | tuple[int]] = []
    for size, at, old, new in zip(mesh.sizes, target, before, after, strict=True):
        choices.append((at,) if _own(old, new) else (old.position,) if isinstance(old, At) else range(size))
    return itertools.product(*choices)


def _targets(before: Layout, after: Layout, mesh: Mesh, source: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The coordinates of all workers that may need something from `source`, in order of rank."""
    choices: list[range | tuple[int]] = []
    for size, at, old, new in zip(mesh.sizes, source, before, after, strict=True):
        choices.append((at,) if _own(old, new) else (new.position,) if isinstance(new, At) else range(size))
    return itertools.product(*choices)


def receives(shape: tuple[int, ...], before: Layout, after: Layout, mesh: Mesh, rank: int) -> list[BoxTransfer]:
    """What `rank` receives, in order of source rank. Contributions are added in this order, which is the same on every
    replica."""
    here = mesh.coordinates(rank)
    wanted = box_at(shape, after, mesh, here)
    if wanted is None:
        return []
    found = []
    for coordinates in _sources(before, after, mesh, here):
        part = intersect(box_at(shape, before, mesh, coordinates), wanted)
        if part is not None:
            found.append(BoxTransfer(mesh.rank(coordinates), rank, part))
    return found


def sends(shape: tuple[int, ...], before: Layout, after: Layout, mesh: Mesh, rank: int) -> list[BoxTransfer]:
    """What `rank` sends, in order of target rank."""
    here = mesh.coordinates(rank)
    held = box_at(shape, before, mesh, here)
    if held is None:
        return []
    found = []
    for there in _targets(before, after, mesh, here):
        part = intersect(held, box_at(shape, after, mesh, there))
        if part is not None:
            found.append(BoxTransfer(rank, mesh.rank(there), part))
    return found


def exchanging(before: Layout, after: Layout, mesh: Mesh) -> list[int]:
    """The axes along which workers exchange data in a move: those that change, and those whose part of a dimension shifts
    because another axis starts or stops cutting the same dimension."""
    pairs = list(enumerate(zip(before, after, strict=True)))
    cut = {p.dim for _, pair in pairs if pair[0] != pair[1] for p in pair if isinstance(p, Shard)}
    return [
        axis
        for axis, (old, new) in pairs
        if not isinstance(old, Replicate)
        and mesh.sizes[axis] > 1
        and (old != new or (isinstance(old, Shard) and old.dim in cut))
    ]


def moved_bytes(
    shape: tuple[int, ...], itemsize: int, before: Layout, after: Layout, mesh: Mesh, asked: str = ""
) -> tuple[int, int]:
    """The bytes that workers send each other in all, and the most that any one worker receives.

    For an all-reduce, these follow from its algorithm; if that has steps, a worker's part in them is rounded up.
    """
    changed = [(axis, old, new) for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    all_reduce = bool(changed) and all(isinstance(a, Partial) and isinstance(b, Replicate) for _, a, b in changed)
    axes = [axis for axis, _, _ in changed]
    contributions = 1
    for size, old, new in zip(mesh.sizes, before, after, strict=True):
        if not _own(old, new) and isinstance(old, Partial):
            contributions *= size
    total = Fraction(0)
    most = 0
    for rank in range(len(mesh.members)):
        here = mesh.coordinates(rank)
        wanted = box_at(shape, after, mesh, here)
        if wanted is None:
            continue
        nbytes = math.prod(extent(wanted)) * itemsize
        if all_reduce:
            spread = mesh.spread(mesh.group(rank, axes)) if mesh.hosts else None
            algorithm = all_reduce_algorithm(nbytes, contributions, spread, asked)
            if algorithm != "direct":
                group = all_reduce_bytes(algorithm, nbytes, contributions)  # each of its ranks counts its share of that
                total += Fraction(group, contributions)
                most = max(most, -(-group // contributions))
                continue
        kept = intersect(box_at(shape, before, mesh, here), wanted)
        # each element arrives once a contribution; what the rank holds itself need not travel
        mine = contributions * nbytes - (0 if kept is None else math.prod(extent(kept)) * itemsize)
        total += mine
        most = max(most, mine)
    return int(total), most


def bytes_between_hosts(
    shape: tuple[int, ...], itemsize: int, before: Layout, after: Layout, mesh: Mesh, asked: str = ""
) -> int:
    """The part of `moved_bytes` that goes from one host to another."""
    if not mesh.hosts:
        return 0
    changed = [(axis, old, new) for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    ranks, total = range(len(mesh.members)), 0
    if changed and all(isinstance(old, Partial) and isinstance(new, Replicate) for _, old, new in changed):
        for group in {mesh.group(rank, [axis for axis, _, _ in changed]) for rank in ranks}:
            part = box(shape, after, mesh, group[0])
            nbytes = 0 if part is None else math.prod(extent(part)) * itemsize
            algorithm = all_reduce_algorithm(nbytes, len(group), mesh.spread(group), asked)
            total += crossing_bytes(algorithm, nbytes, [mesh.hosts[rank] for rank in group])
        return total
    for rank in ranks:
        for each in receives(shape, before, after, mesh, rank):
            if mesh.hosts[each.source] != mesh.hosts[rank]:
                total += math.prod(extent(each.part)) * itemsize
    return total
