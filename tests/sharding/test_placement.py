"""Placements as they are printed and read back, and meshes as grids of workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.sharding.placement import (
    PARTIAL_OPS,
    REPLICATE,
    Mesh,
    Partial,
    Shard,
    collective_name,
    format_layout,
    parse_layout,
    uniform_mesh,
)

placements = st.one_of(
    st.just(REPLICATE),
    st.builds(Partial, st.sampled_from(PARTIAL_OPS)),
    st.builds(Shard, st.integers(0, 31)),
    st.builds(Shard, st.integers(0, 31), st.lists(st.integers(0, 999_999), min_size=1, max_size=8).map(tuple)),
)


@given(st.lists(placements, min_size=1, max_size=4).map(tuple))
def test_a_layout_reads_back_as_it_was_printed(layout):
    assert parse_layout(format_layout(layout)) == layout


def test_layouts_print_in_the_fields_shorthand():
    assert format_layout((Shard(0), REPLICATE, Partial(), Shard(1, (2, 1)))) == "S0|R|P(sum)|S1(2,1)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " R",
        "R\n",
        "r",
        "R|",
        "|R",
        "R||R",
        "R,R",
        "S",
        "S-1",
        "S100",
        "S٣",  # a digit, but not one of ours
        "S00",
        "S0()",
        "S0(1,)",
        "S0(-1,1)",
        "S0(1.5)",
        "S0(1 ,1)",
        "S0(1000000)",
        "S0(1)(1)",
        "P",
        "P()",
        "P(mean)",
        "P(SUM)",
        "S0(" + "1," * 4096 + "1)",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ProtocolError, match="is not a placement"):
        parse_layout(text)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_ranks_stand_in_row_major_order(sizes):
    """Coordinates and ranks are each other's inverse, and the last axis counts fastest."""
    mesh = uniform_mesh(1, {f"axis{i}": size for i, size in enumerate(sizes)}, _members(sizes))
    places = [mesh.coordinates(rank) for rank in range(len(mesh.members))]
    assert places == sorted(set(places))
    assert [mesh.rank(place) for place in places] == list(range(len(places)))
    assert all(0 <= at < size for place in places for at, size in zip(place, sizes, strict=True))


def _members(sizes):
    count = 1
    for size in sizes:
        count *= size
    return tuple(range(count))


@pytest.mark.parametrize(
    ("axes", "sizes", "members", "weights"),
    [
        (("data",), (2,), (0,), ((1, 1),)),
        (("data",), (0,), (), ((),)),
        (("data",), (2,), (0, 1), ((1,),)),
        (("data",), (1, 2), (0, 1), ((1,), (1, 1))),
        (("data", "model"), (2,), (0, 1), ((1, 1),)),
    ],
)
def test_a_mesh_that_does_not_add_up_is_refused(axes, sizes, members, weights):
    with pytest.raises(ValueError, match="a mesh"):
        Mesh(1, axes, sizes, members, weights)


def test_a_uniform_mesh_replicates_and_weighs_equally():
    mesh = uniform_mesh(7, {"data": 2, "model": 2}, (4, 5, 6, 7))
    assert mesh.replicated == (REPLICATE, REPLICATE)
    assert mesh.weights == ((1, 1), (1, 1))


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("P(sum)", "R", "all-reduce"),
        ("P(max)", "S0", "reduce-scatter"),
        ("P(sum)", "S0(0,1)", "reduce"),
        ("S1", "R", "all-gather"),
        ("S0(0,1)", "R", "broadcast"),
        ("S0", "S1", "all-to-all"),
        ("S0", "S0(2,1)", "all-to-all"),
        ("S0", "S0(1,0)", "gather"),
        ("S0(1,0)", "S1", "scatter"),
        ("S0(1,0)", "S0(0,1)", "send"),
        ("R", "S0", ""),
        ("R|S0", "R|S0", ""),
        ("P(sum)|P(sum)", "R|R", "all-reduce"),
        ("P(sum)|S0", "R|R", "all-reduce + all-gather"),
        ("S0|R", "R|S0", "all-gather"),
        ("P(sum)|S0", "P(sum)|S1", "all-to-all"),
    ],
)
def test_a_change_of_layout_is_called_as_the_field_calls_it(before, after, name):
    assert collective_name(parse_layout(before), parse_layout(after)) == name
