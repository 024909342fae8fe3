"""Which workers a mesh has, and where in it each stands: those along its busiest axes are on one host, and there in one group.

The order of the axes by what is exchanged along them follows from the config (`busiest_last` in `gt/sharding/config_meshes.py`).
Pure functions. What they return becomes the mesh's members, so values depend on nothing else here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby, product
from operator import mul


def grid_of(
    numbers: Sequence[int],
    hosts: Mapping[int, str],
    groups: Mapping[int, str],
    sizes: Sequence[int],
    order: Sequence[int] | None,
) -> tuple[int, ...]:
    """The members of a mesh of these sizes, by rank. `numbers` are the workers that it may have, those of a host side by side,
    and there those of one of its `groups`; `order` are its axes, the busiest last. Without it they stand as they are.

    As many sets of workers that differ along the busiest axis alone as can be are on one host, and of these as many as can be
    together along the next one; within a host the same holds for its groups.
    """
    count = math.prod(sizes)
    if order is None:
        return tuple(numbers[:count])
    near = [sizes[axis] for axis in order]
    there = []
    for _, some in groupby(numbers, hosts.__getitem__):
        parts = [list(part) for _, part in groupby(some, lambda number: groups.get(number, ""))]
        there.append(_in_blocks(parts, near, sum(map(len, parts))))
    chosen = _in_blocks(there, near, count)
    if len({(hosts[number], groups.get(number, "")) for number in chosen}) == 1:
        return tuple(chosen)  # all are equally close
    return tuple(chosen[_row(near, [at[axis] for axis in order])] for at in product(*map(range, sizes)))


def _in_blocks(places: list[list[int]], near: Sequence[int], count: int) -> list[int]:
    """So many workers for a grid with its closest axis last: whole blocks of it from one place, the largest first, then what is
    left."""
    blocks = [*accumulate(reversed(near), mul, initial=1)]
    chosen: list[int] = []
    for block in reversed(blocks):
        for members in places:
            whole = min(len(members), count - len(chosen)) // block * block
            chosen += members[:whole]
            del members[:whole]
    return chosen


def _row(sizes: Sequence[int], coordinates: Sequence[int]) -> int:
    """The place of these coordinates in a grid, counted along its last axis first."""
    at = 0
    for size, coordinate in zip(sizes, coordinates, strict=True):
        at = at * size + coordinate
    return at
