"""The fixed grid of blocks of a deterministic session, and the binary tree along which the results of blocks are added.

Every dimension has the same cut points on any mesh. A mesh axis cuts only there and deals the blocks out so that each worker's
blocks form a subtree: the tree over workers continues the tree over blocks. So the order of additions is the same for 1 to
`blocks` workers. Pure functions, used by the dispatcher and the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, Union

from .partition import bounds

ROUNDED_OPS: Final = ("sum", "prod")
"""The partial operations whose result depends on the order (max and min do not)."""

BlockValue = TypeVar("BlockValue")
Tree = Union[int, tuple["Tree", "Tree"], None]  # noqa: UP007 — a name in quotes has no `|`
"""The number of a block, a pair of trees to be added, or nothing."""


def grid(size: int, blocks: int) -> tuple[int, ...]:
    """The cut points of a dimension: block i is [grid[i], grid[i + 1])."""
    return bounds(size, (1,) * blocks)


def middle(count: int) -> int:
    """Where a tree over `count` workers divides them in two."""
    return (count + 1) // 2


def deal(blocks: int, count: int) -> tuple[int, ...]:
    """How many blocks each of `count` workers along an axis gets, so that each gets a subtree.

    `blocks` is a power of two and at least `count`.
    """
    if count == 1:
        return (blocks,)
    left = middle(count)
    return deal(blocks // 2, left) + deal(blocks // 2, count - left)


def is_aligned(weights: Sequence[int], blocks: int) -> bool:
    """Whether the tree over workers with these numbers of blocks continues the tree over blocks.

    A worker without blocks changes nothing, wherever it stands.
    """
    total = sum(weights)
    if not total:
        return True
    if total != blocks:
        return False
    if len(weights) == 1:
        return True
    left, right = weights[: middle(len(weights))], weights[middle(len(weights)) :]
    if not any(left) or not any(right):
        return is_aligned(left if any(left) else right, blocks)
    return is_aligned(left, blocks // 2) and is_aligned(right, blocks // 2)


def tree(present: Sequence[int], first: int, last: int) -> Tree:
    """The tree over blocks `first` to `last`, of which only the `present` ones hold anything."""
    if last - first == 1:
        return first if first in present else None
    half = (first + last) // 2
    left, right = tree(present, first, half), tree(present, half, last)
    return right if left is None else left if right is None else (left, right)


def fold(
    branch: Tree, leaf: Callable[[int], BlockValue], join: Callable[[BlockValue, BlockValue], BlockValue]
) -> BlockValue:
    """Join the leaves of a tree pairwise."""
    if isinstance(branch, tuple):
        return join(fold(branch[0], leaf, join), fold(branch[1], leaf, join))
    assert branch is not None, "a tree of nothing has no value"
    return leaf(branch)


def grid_dimension(shape: Sequence[int], axes: Sequence[int], blocks: int) -> int:
    """The one of a reduction's dimensions that is added block by block; the others are added within a block.

    It is the first dimension that fills the grid, because that is usually the batch; else the largest.
    """
    return next((axis for axis in axes if shape[axis] >= blocks), max(axes, key=lambda axis: shape[axis]))
