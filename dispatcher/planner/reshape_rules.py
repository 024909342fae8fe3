"""The rules of reshapes: whether each worker's part of the result has the elements of its part of the operand.

Arithmetic of row-major indices, on one mesh axis (`delimited`) and on all of them together (`reshape_aligned`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gt.sharding.partition import Box, box
from gt.sharding.placement import REPLICATE, Layout, Mesh, Shard


def reshape_aligned(
    shape_in: tuple[int, ...], layout_in: Layout, shape_out: tuple[int, ...], layout_out: Layout, mesh: Mesh
) -> bool:
    """Whether on every rank a reshape of its part of the input is its part of the output.

    True when both boxes hold the same elements: each enumerates its own in ascending row-major order. Rows know one
    mesh axis; this is the check for all of them together, when several cut one dimension.
    """
    return _aligned_boxes(shape_in, _shards(layout_in), shape_out, _shards(layout_out), mesh)


def delimited(shape: tuple[int, ...], dim: int, points: Sequence[int]) -> tuple[int, ...]:
    """What cutting `dim` at these points delimits, in a form that is equal exactly when the parts hold the same elements.

    The elements of a part are runs between scaled cut points, once a period. A part that holds everything has no
    period, and of no elements nothing can be told apart.
    """
    inner = 1
    for size in shape[dim + 1 :]:
        inner *= size
    size = shape[dim]
    if 0 in shape:
        return ()
    last = points.index(size) - 1
    if points[last] == 0:
        return (last,)
    return (size * inner, *(point * inner for point in points))


def _shards(layout: Layout) -> Layout:
    return tuple(placement if isinstance(placement, Shard) else REPLICATE for placement in layout)


@lru_cache(maxsize=4096)
def _aligned_boxes(
    shape_in: tuple[int, ...], layout_in: Layout, shape_out: tuple[int, ...], layout_out: Layout, mesh: Mesh
) -> bool:
    return all(
        _elements(shape_in, box(shape_in, layout_in, mesh, rank))
        == _elements(shape_out, box(shape_out, layout_out, mesh, rank))
        for rank in range(len(mesh.members))
    )


def _elements(shape: tuple[int, ...], part: Box | None) -> tuple[tuple[int, int, int], ...]:
    """The elements of `part` in a form that is equal exactly when the sets of row-major indices are.

    Levels (size, start, stop), outermost first. Two merge while the outer has one index or the inner is whole; then the
    innermost level is one maximal run and its period, which the set determines, and so are by induction all others.
    """
    if part is None or any(start == stop for start, stop in part):
        return ()
    levels = [(1, 0, 1)]
    for size, (start, stop) in zip(shape, part, strict=True):
        levels.append((size, start, stop))
        while len(levels) > 1:
            (outer, first, last), (inner, low, high) = levels[-2:]
            if last - first == 1:
                levels[-2:] = [(outer * inner, first * inner + low, first * inner + high)]
            elif high - low == inner:
                levels[-2:] = [(outer * inner, first * inner, last * inner)]
            else:
                break
    return tuple(levels)
