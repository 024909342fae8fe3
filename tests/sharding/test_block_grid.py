"""The grid of blocks: workers cut only there, and the tree over workers continues the tree over blocks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.sharding.block_grid import deal, fold, grid, is_aligned, middle, tree
from gt.sharding.partition import bounds

COUNTS = [(blocks, count) for blocks in (1, 2, 4, 8, 16, 32) for count in range(1, blocks + 1)]


def over_workers(sums: list[Any]) -> Any:
    """What contributions make when they are added as an exchange does; None is a worker that changes nothing."""
    if len(sums) == 1:
        return sums[0]
    left, right = over_workers(sums[: middle(len(sums))]), over_workers(sums[middle(len(sums)) :])
    return right if left is None else left if right is None else (left, right)


def there(cuts: tuple[int, ...], first: int, last: int) -> list[int]:
    """The blocks between two elements that have any."""
    return [block for block, (a, b) in enumerate(itertools.pairwise(cuts)) if first <= a < b <= last]


def added(present: list[int], blocks: int) -> Any:
    """The order in which one worker adds these blocks."""
    return fold(tree(present, 0, blocks), lambda block: block, lambda x, y: (x, y)) if present else None


@pytest.mark.parametrize(("blocks", "count"), COUNTS)
def test_workers_are_dealt_subtrees(blocks: int, count: int) -> None:
    shares = deal(blocks, count)
    assert (sum(shares), len(shares)) == (blocks, count)
    assert min(shares) > 0
    assert is_aligned(shares, blocks)


@given(st.sampled_from(COUNTS), st.integers(0, 100), st.data())
def test_additions_are_in_one_order_whoever_makes_them(counts: tuple[int, int], size: int, data: st.DataObject) -> None:
    """However many workers take part, some of them with nothing: what is added to what is what one worker adds."""
    blocks, count = counts
    cuts, weights = grid(size, blocks), list(deal(blocks, count))
    for position in data.draw(st.lists(st.integers(0, count), max_size=3)):
        weights.insert(position, 0)
    mine = bounds(size, tuple(weights))
    assert set(mine) <= set(cuts)
    if is_aligned(weights, blocks):
        sums = [added(there(cuts, first, last), blocks) for first, last in itertools.pairwise(mine)]
        assert over_workers(sums) == added(there(cuts, 0, size), blocks)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any))
def test_what_is_not_aligned_is_found(weights: list[int]) -> None:
    """Weights that deal no subtrees add in another order, unless all is with one worker."""
    blocks = 8
    if sum(weights) == blocks:
        mine = bounds(blocks, tuple(weights))
        cuts = grid(blocks, blocks)
        sums = [added(there(cuts, first, last), blocks) for first, last in itertools.pairwise(mine)]
        assert (over_workers(sums) == added(list(range(blocks)), blocks)) == is_aligned(weights, blocks)
