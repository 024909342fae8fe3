"""Meshes, layouts and the parts that ranks have of tensors: for tests of marks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gt.ir.spec import Spec
from gt.sharding.partition import box
from gt.sharding.placement import REPLICATE, At, Layout, Mesh, Placement, Shard
from gt.worker.execution.tensor_store import ABSENT

Array = np.ndarray[Any, Any]
CLIENT, NEXT = 5, 6
"""A session, and its number after a rewind."""


def mesh_of(*weights: tuple[int, ...]) -> Mesh:
    sizes = tuple(map(len, weights))
    return Mesh(
        1, tuple(f"axis{at}" for at in range(len(sizes))), sizes, tuple(range(10, 10 + math.prod(sizes))), weights
    )


def whole(of: Spec) -> Array:
    return np.arange(math.prod(of.shape), dtype=of.dtype.numpy).reshape(of.shape)


def part(value: Array, layout: Layout, mesh: Mesh, rank: int) -> Any:
    """What a rank has of a tensor, in memory of its own."""
    found = box(value.shape, layout, mesh, rank)
    return ABSENT if found is None else value[tuple(slice(*pair) for pair in found)].copy()


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    return mesh_of(*(tuple(draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))) for size in sizes))


def placements(mesh: Mesh, axis: int, dims: int) -> st.SearchStrategy[Placement]:
    size = mesh.sizes[axis]
    cut = [st.integers(0, dims - 1).map(Shard)] if dims else []
    return st.one_of(st.just(REPLICATE), st.integers(0, size - 1).map(At), *cut)
