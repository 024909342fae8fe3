"""What the ranks of a mesh hold before a move, and which layouts there are to move between: for tests of moves."""

from __future__ import annotations

from typing import Any

import numpy as np
from builders import Array
from hypothesis import strategies as st

from gt.sharding.partition import box
from gt.sharding.placement import PARTIAL_OPS, REPLICATE, Layout, Mesh, Partial, Placement, Shard, uniform_mesh

REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def contributions(array: Array, layout: Layout, mesh: Mesh, seed: int) -> list[Array]:
    """What each rank holds of `array`: its part, or along partial axes something that only joined is the value."""
    operation = next((p.op for p in layout if isinstance(p, Partial)), None)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(len(mesh.members)):
        at = mesh.coordinates(rank)
        groups.setdefault(tuple(c for c, p in zip(at, layout, strict=True) if not isinstance(p, Partial)), []).append(
            rank
        )
    held: dict[int, Array] = {}
    random = np.random.default_rng(seed)
    for group in groups.values():
        shares = [random.integers(1, 4, array.shape).astype(array.dtype) for _ in group]
        if operation == "sum":
            shares[-1] = array - sum(shares[:-1], np.zeros_like(array))
        elif operation in ("max", "min"):
            shares = [REDUCE["min" if operation == "max" else "max"](array, share) for share in shares]
            shares[0] = array
        elif operation == "prod":
            shares = [array, *[np.ones_like(array) for _ in group[1:]]]
        else:
            shares = [array]
        for rank, share in zip(group, shares, strict=True):
            part = box(array.shape, layout, mesh, rank)
            held[rank] = None if part is None else share[tuple(slice(*pair) for pair in part)]
    return [held[rank] for rank in range(len(mesh.members))]


def placements(ndim: int, operation: str) -> list[Placement]:
    return [REPLICATE, Partial(operation), *[Shard(dim) for dim in range(ndim)], Shard(0, (2, 0, 1))]


@st.composite
def two_axes(draw: st.DrawFn) -> tuple[Array, Layout, Layout, Mesh]:
    """Something to move on a mesh of two axes: the array, from where, to where."""
    sizes = draw(st.sampled_from([(2, 2), (2, 3), (3, 1), (4, 2)]))
    shape = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    mesh = uniform_mesh(1, dict(zip("ab", sizes, strict=True)), tuple(range(sizes[0] * sizes[1])))
    ends: list[Placement] = [REPLICATE, *[Shard(dim) for dim in range(len(shape))]]
    partial = Partial(draw(st.sampled_from(PARTIAL_OPS)))
    before = tuple(draw(st.sampled_from([*ends, partial])) for _ in sizes)
    after = tuple(draw(st.sampled_from(ends)) for _ in sizes)
    return np.random.default_rng(2).integers(1, 5, tuple(shape)).astype(np.float64), before, after, mesh
