"""The arithmetic of shards: how a dimension is cut, who holds what, and that transfers carry one layout to another."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from effort import cases
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gt.sharding.collectives import MAX_DIRECT_WORKERS
from gt.sharding.partition import (
    bounds,
    box,
    copies,
    extent,
    intersect,
    moved_bytes,
    present,
    receives,
    relative,
    sends,
)
from gt.sharding.placement import REPLICATE, At, Mesh, Partial, Shard, uniform_mesh

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
weight_lists = st.lists(st.integers(0, 9), min_size=1, max_size=9).map(tuple)


# bounds


@given(st.integers(0, 10_000), weight_lists)
def test_bounds_cover_in_proportion(size, weights):
    """Cut points run from 0 to size, never back; a part is within one element of its share; weight 0 gets none."""
    cuts = bounds(size, weights)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, size, len(weights) + 1)
    assert list(cuts) == sorted(cuts)
    shares = weights if any(weights) else (1,) * len(weights)
    for (start, stop), weight in zip(itertools.pairwise(cuts), shares, strict=True):
        assert abs((stop - start) - size * weight / sum(shares)) <= 1
        assert weight or start == stop


@given(st.integers(0, 1 << 48), weight_lists, st.integers(1, 1000))
def test_bounds_depend_on_proportions_alone(size, weights, factor):
    """Weights count relative to each other, exactly, however large the size."""
    assert bounds(size, weights) == bounds(size, tuple(weight * factor for weight in weights))


def test_bounds_round_half_up():
    assert bounds(10, (1, 1, 1, 1)) == (0, 3, 5, 8, 10)
    assert bounds(3, (2, 1, 0)) == (0, 2, 3, 3)
    assert bounds(1, (1, 1)) == (0, 1, 1)


# boxes


@st.composite
def meshes(draw):
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    weights = tuple(tuple(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))) for n in sizes)
    return Mesh(1, tuple("ab"[: len(sizes)]), sizes, tuple(range(math.prod(sizes))), weights)


def shards(ndim, size):
    """Shards of a tensor of `ndim` dimensions over `size` workers, with weights of their own or the mesh's."""
    weights = st.none() | st.lists(st.integers(0, 4), min_size=size, max_size=size).map(tuple)
    return st.builds(Shard, st.integers(0, ndim - 1), weights) if ndim else st.just(REPLICATE)


def positions(size):
    """The whole at one position of `size`."""
    return st.builds(At, st.integers(0, size - 1))


shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@given(st.data(), shapes, meshes())
def test_boxes_tile_the_tensor(data, shape, mesh):
    """Every element is held once for each combination of the axes that replicate, and nowhere but where it is said."""
    layout = tuple(data.draw(st.just(REPLICATE) | shards(len(shape), size) | positions(size)) for size in mesh.sizes)
    held = np.zeros(shape, int)
    for rank in range(len(mesh.members)):
        mine = box(shape, layout, mesh, rank)
        assert (mine is not None) == present(layout, mesh.coordinates(rank))
        if mine is not None:
            held[relative(mine, whole(shape))] += 1
    assert (held == copies(layout, mesh)).all()
    assert copies(layout, mesh) == math.prod(size for size, p in zip(mesh.sizes, layout, strict=True) if p == REPLICATE)


def whole(shape):
    return tuple((0, size) for size in shape)


def test_a_later_axis_cuts_what_an_earlier_one_left():
    mesh = Mesh(1, ("a", "b"), (2, 2), (0, 1, 2, 3), ((1, 1), (3, 1)))
    layout = (Shard(0), Shard(0))
    assert [box((8,), layout, mesh, rank) for rank in range(4)] == [((0, 3),), ((3, 4),), ((4, 7),), ((7, 8),)]


def test_boxes_without_a_common_element_do_not_meet():
    assert intersect(((0, 2), (0, 4)), ((1, 3), (2, 6))) == ((1, 2), (2, 4))
    assert intersect(((0, 2),), ((2, 4),)) is None
    assert intersect(((1, 1),), ((0, 4),)) is None
    assert intersect((), ()) == ()


# transfers


@st.composite
def moves(draw):
    """(shape, before, after, mesh). Values have one kind of partial; where the result is partial, the source was."""
    shape, mesh = draw(shapes), draw(meshes())
    partial = Partial(draw(st.sampled_from(sorted(REDUCE))))
    before, after = [], []
    for size in mesh.sizes:
        whole_or_cut = st.just(REPLICATE) | shards(len(shape), size) | positions(size)
        before.append(draw(st.just(partial) | whole_or_cut))
        after.append(draw(st.just(partial) | whole_or_cut if before[-1] == partial else whole_or_cut))
    return shape, tuple(before), tuple(after), mesh


def contributions(shape, before, after, mesh, seed=0):
    """What each rank holds before, and what it must hold after: floats, whose sums show in which order they were added.

    Along an axis that is partial each position contributes its own values; along all others they are the same.
    """
    random = np.random.default_rng(seed)
    parts = [n if isinstance(p, Partial) else 1 for n, p in zip(mesh.sizes, before, strict=True)]
    values = random.standard_normal((*parts, *shape))
    op = next((REDUCE[p.op] for p in before if isinstance(p, Partial)), np.add)

    def at(rank, axis_choice):
        return tuple(c if n > 1 else 0 for c, n in zip(axis_choice(mesh.coordinates(rank)), parts, strict=True))

    def part(value, mine):
        return None if mine is None else value[relative(mine, whole(shape))]

    held, wanted = [], []
    for rank in range(len(mesh.members)):
        held.append(part(values[at(rank, tuple)], box(shape, before, mesh, rank)))
        here = mesh.coordinates(rank)
        choices = [
            (c if n > 1 else 0,) if isinstance(new, Partial) else range(n)
            for c, n, new in zip(here, parts, after, strict=True)
        ]
        total = None
        for choice in itertools.product(*choices):  # in order of rank
            total = values[choice] if total is None else op(total, values[choice])
        wanted.append(part(total, box(shape, after, mesh, rank)))
    return held, wanted, op


@given(moves())
@settings(max_examples=cases(100))
def test_transfers_carry_one_layout_to_another(move):
    """Doing what `receives` says, in its order, gives each rank its part, with contributions added in order of rank."""
    shape, before, after, mesh = move
    held, wanted, op = contributions(shape, before, after, mesh)
    for rank in range(len(mesh.members)):
        mine = box(shape, after, mesh, rank)
        incoming = receives(shape, before, after, mesh, rank)
        if mine is None:
            assert not incoming
            continue
        result, seen = np.empty(extent(mine)), np.zeros(extent(mine), bool)
        assert [t.source for t in incoming] == sorted(t.source for t in incoming)
        for transfer in incoming:
            source = held[transfer.source][relative(transfer.part, box(shape, before, mesh, transfer.source))]
            place = relative(transfer.part, mine)
            result[place] = np.where(seen[place], op(result[place], source), source)
            seen[place] = True
        assert seen.all()
        assert result.tobytes() == np.ascontiguousarray(wanted[rank]).tobytes()


@given(moves())
def test_every_send_has_its_receive(move):
    """Nobody waits for what is not sent, and nobody sends what is not expected; targets come in order."""
    shape, before, after, mesh = move
    sent, received = [], []
    for rank in range(len(mesh.members)):
        outgoing = sends(shape, before, after, mesh, rank)
        assert [t.target for t in outgoing] == sorted(t.target for t in outgoing)
        assert all(t.source == rank for t in outgoing)
        sent += outgoing
        received += receives(shape, before, after, mesh, rank)
    assert Counter(sent) == Counter(received)
    assert max(Counter(sent).values(), default=1) == 1


@given(moves(), st.sampled_from([1, 8]))
def test_moved_bytes_are_the_sum_of_the_transfers(move, itemsize):
    shape, before, after, mesh = move
    assume(len(mesh.members) <= MAX_DIRECT_WORKERS)
    arrive = [
        sum(
            itemsize * math.prod(extent(t.part)) for t in receives(shape, before, after, mesh, rank) if t.source != rank
        )
        for rank in range(len(mesh.members))
    ]
    assert moved_bytes(shape, itemsize, before, after, mesh) == (sum(arrive), max(arrive))


@pytest.mark.parametrize(("size", "nbytes"), [(3, 3 << 16), (4, 1 << 20), (9, 8)])
def test_an_all_reduce_in_steps_is_counted_as_it_goes(size, nbytes):
    """A large one, or one among many, moves every byte twice but for the own share."""
    mesh = uniform_mesh(1, {"data": 2, "model": size}, tuple(range(2 * size)))
    before, after = (REPLICATE, Partial()), (REPLICATE, REPLICATE)
    total, most = moved_bytes((nbytes // 4,), 4, before, after, mesh)
    assert total == 2 * 2 * (size - 1) * nbytes
    assert most == -(-2 * (size - 1) * nbytes // size)


@given(shapes, meshes(), st.data())
def test_staying_moves_nothing(shape, mesh, data):
    layout = tuple(
        data.draw(st.sampled_from([REPLICATE, Partial("max")]) | shards(len(shape), size)) for size in mesh.sizes
    )
    assert moved_bytes(shape, 4, layout, layout, mesh) == (0, 0)


@pytest.mark.parametrize("before", [REPLICATE, Shard(0), Partial("max")])
def test_nothing_becomes_partial_by_being_moved(before):
    """A value that each of n workers takes for its contribution would be counted n times."""
    mesh = Mesh(1, ("a",), (2,), (0, 1), ((1, 1),))
    for what in (receives, sends):
        with pytest.raises(ValueError, match="cannot become"):
            what((4,), (before,), (Partial("sum"),), mesh, 0)
    with pytest.raises(ValueError, match="cannot become"):
        moved_bytes((4,), 4, (before,), (Partial("sum"),), mesh)
