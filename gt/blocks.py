"""The fixed grid of blocks of a deterministic session, and the one binary tree in which what was computed from them is added.

Every dimension has the same cut points, whatever the mesh is. A mesh axis cuts only there, and deals the blocks out so that
each worker's are a subtree: the tree over workers continues the tree over blocks, so the order of additions is one and the
same for 1 to `blocks` workers. Pure functions only; dispatcher and workers both go by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, Union

from .partition import bounds

ROUNDED: Final = ("sum", "prod")
"""Partial operations whose result depends on the order; of the others (max, min) none does."""

Value = TypeVar("Value")
Tree = Union[int, tuple["Tree", "Tree"], None]  # noqa: UP007 — a name in quotes has no `|`
"""A block's number, two trees that are added, or nothing."""


def grid(size: int, blocks: int) -> tuple[int, ...]:
    """The cut points of a dimension: block i is [grid[i], grid[i + 1])."""
    return bounds(size, (1,) * blocks)


def middle(count: int) -> int:
    """Where a tree over `count` workers divides them."""
    return (count + 1) // 2


def deal(blocks: int, count: int) -> tuple[int, ...]:
    """How many blocks each of `count` workers along an axis gets: a subtree each.

    `blocks` is a power of two, not below `count`.
    """
    if count == 1:
        return (blocks,)
    left = middle(count)
    return deal(blocks // 2, left) + deal(blocks // 2, count - left)


def aligned(weights: Sequence[int], blocks: int) -> bool:
    """Whether the tree over workers with these numbers of blocks continues the tree over blocks.

    A worker with none changes nothing, wherever it stands.
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
        return aligned(left if any(left) else right, blocks)
    return aligned(left, blocks // 2) and aligned(right, blocks // 2)


def tree(present: Sequence[int], first: int, last: int) -> Tree:
    """The tree over blocks `first` to `last`, of which only those that are `present` hold anything."""
    if last - first == 1:
        return first if first in present else None
    half = (first + last) // 2
    left, right = tree(present, first, half), tree(present, half, last)
    return right if left is None else left if right is None else (left, right)


def fold(branch: Tree, leaf: Callable[[int], Value], join: Callable[[Value, Value], Value]) -> Value:
    """The leaves of a tree, joined by twos."""
    if isinstance(branch, tuple):
        return join(fold(branch[0], leaf, join), fold(branch[1], leaf, join))
    assert branch is not None, "a tree of nothing has no value"
    return leaf(branch)


def grid_dimension(shape: Sequence[int], axes: Sequence[int], blocks: int) -> int:
    """Of the dimensions that a reduction joins the one that is added block by block: the others are added within a block.

    The first that fills the grid, for that is where a batch is; else the largest.
    """
    return next((axis for axis in axes if shape[axis] >= blocks), max(axes, key=lambda axis: shape[axis]))
