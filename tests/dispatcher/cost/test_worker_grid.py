"""Where workers stand in a mesh: along its busiest axis on one host, wherever that axis is named."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.cost.worker_grid import grid_of

HOSTS = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(lambda counts: sorted(counts, reverse=True))
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def hosts_of(counts: list[int]) -> dict[int, str]:
    return dict(enumerate(name for name, count in zip("abcde", counts, strict=False) for _ in range(count)))


def sets_along(members: tuple[int, ...], sizes: list[int], axes: set[int]) -> list[set[int]]:
    """The sets of members that differ along some axes alone."""
    found: dict[tuple[int, ...], set[int]] = {}
    for member, at in zip(members, itertools.product(*map(range, sizes)), strict=True):
        found.setdefault(tuple(-1 if axis in axes else c for axis, c in enumerate(at)), set()).add(member)
    return list(found.values())


@given(HOSTS, SIZES, st.data())
def test_as_many_sets_along_the_busiest_axis_as_can_be_are_on_one_host(
    counts: list[int], sizes: list[int], data: Any
) -> None:
    """However the axes are named and workers lie; and no worker is in the mesh twice."""
    hosts = hosts_of(counts)
    if math.prod(sizes) > len(hosts):
        return
    order = data.draw(st.permutations(range(len(sizes))))
    members = grid_of(list(hosts), hosts, {}, sizes, order)
    assert len(set(members)) == len(members) == math.prod(sizes)
    size = sizes[order[-1]]
    within = sum(len({hosts[member] for member in some}) == 1 for some in sets_along(members, sizes, {order[-1]}))
    assert within == min(math.prod(sizes) // size, sum(count // size for count in counts))


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.permutations(range(3)))
def test_the_order_in_which_axes_are_named_moves_no_worker(far: int, middle: int, near: int, named: list[int]) -> None:
    """On several hosts of equally many workers, the sets along the busiest axes are the same under any order of names."""
    hosts = hosts_of([middle * near] * far)
    known = (far, middle, near)
    members = grid_of(list(hosts), hosts, {}, [known[axis] for axis in named], [named.index(axis) for axis in range(3)])
    sizes = [known[axis] for axis in named]
    for axes in ({2}, {1, 2}):
        moved = {frozenset(some) for some in sets_along(members, sizes, {named.index(axis) for axis in axes})}
        written = {frozenset(some) for some in sets_along(tuple(hosts), list(known), axes)}
        assert moved == written


def test_of_workers_that_are_equally_close_none_moves() -> None:
    """Nor where the config names workers by number, which has no order of axes."""
    hosts = dict.fromkeys(range(4), "a")
    assert grid_of(range(4), hosts, {}, [2, 2], [1, 0]) == (0, 1, 2, 3)
    assert grid_of(range(4), hosts_of([2, 2]), {}, [2, 2], None) == (0, 1, 2, 3)
    assert grid_of(range(4), hosts_of([2, 2]), {}, [2, 2], [1, 0]) == (0, 2, 1, 3)


def test_within_a_host_the_busiest_axis_stays_in_groups() -> None:
    """GPUs that NVLink joins are as close as it gets; a host whose groups lack members still gives whole rows of the grid."""
    hosts = hosts_of([4, 4])
    groups = {number: f"{hosts[number]}{number // 2}" for number in hosts}
    assert grid_of(range(8), hosts, groups, [2, 2, 2], [2, 1, 0]) == (0, 4, 2, 6, 1, 5, 3, 7)
    torn = {0: "x", 1: "y", 2: "y", 3: "z", 4: "u", 5: "u", 6: "v", 7: "w"}
    assert grid_of(range(8), hosts, torn, [4, 2], [0, 1]) == (1, 2, 0, 3, 4, 5, 6, 7)
