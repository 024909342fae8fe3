"""The local half of every move, brute-forced against NumPy: any layout to any other, uneven and empty parts included."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from builders import Array
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dtypes import as_dtype, float32
from gt.instruction import MOVE, Instruction, ref
from gt.partition import box, extent
from gt.placement import PARTIAL_OPS, REPLICATE, Layout, Mesh, Partial, Placement, Replicate, Shard, uniform_mesh
from gt.spec import Spec, spec
from gt.worker.backend import backend
from gt.worker.exchange import Move, assemble, compile_move, pieces

CPU = backend("cpu")
REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def compiled(whole: Spec, before: Layout, after: Layout, mesh: Mesh, rank: int) -> Move:
    """A move from slot 0 to slot 1, as `rank` sees it."""
    instruction = Instruction(MOVE, range(1), (ref(1, 0),), {}, 0)
    return compile_move(instruction, 0, whole, before, after, mesh, rank, 0, 1, (0,))


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
            held[rank] = share[tuple(slice(*pair) for pair in part)]
    return [held[rank] for rank in range(len(mesh.members))]


def check_move(array: Array, before: Layout, after: Layout, mesh: Mesh, seed: int = 0) -> None:
    """After the move every rank holds its part of the value, and ranks that hold the same hold the same bits."""
    whole = spec(as_dtype(array.dtype), array.shape)
    ranks = range(len(mesh.members))
    moves = [compiled(whole, before, after, mesh, rank) for rank in ranks]
    held = contributions(array, before, mesh, seed)
    sent: dict[tuple[int, int], Any] = {}
    for rank in ranks:
        for target, piece in pieces(moves[rank], held[rank], CPU):
            assert piece.flags.c_contiguous
            assert (rank, target) not in sent, "one piece for each pair"
            sent[rank, target] = piece
    joined: dict[Any, bytes] = {}
    for rank in ranks:
        arrived = {t.source: sent.pop((t.source, rank)) for t in moves[rank].receives if t.source != rank}
        arrived = {
            source: piece.reshape(extent(next(t.part for t in moves[rank].receives if t.source == source)))
            for source, piece in arrived.items()
        }
        found = assemble(moves[rank], held[rank], arrived, np)
        part = box(array.shape, after, mesh, rank)
        key = (part, tuple(c for c, p in zip(mesh.coordinates(rank), after, strict=True) if isinstance(p, Partial)))
        if not any(isinstance(p, Partial) for p in after):
            np.testing.assert_array_equal(found, array[tuple(slice(*pair) for pair in part)])
            assert joined.setdefault(key, np.asarray(found).tobytes()) == np.asarray(found).tobytes()
    assert not sent, "nobody sends what nobody receives"


def placements(ndim: int, operation: str) -> list[Placement]:
    return [REPLICATE, Partial(operation), *[Shard(dim) for dim in range(ndim)], Shard(0, (2, 0, 1))]


@pytest.mark.parametrize("operation", PARTIAL_OPS)
def test_every_move_along_one_axis(operation: str) -> None:
    """From every placement to every other, over three workers, uneven and empty shards included."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    for shape in ((4, 5), (1, 2), (7,)):
        array = np.random.default_rng(1).integers(1, 5, shape).astype(np.float64)
        for before, after in itertools.product(placements(len(shape), operation), repeat=2):
            if isinstance(after, Replicate | Shard):
                check_move(array, (before,), (after,), mesh)


@given(
    st.sampled_from([(2, 2), (2, 3), (3, 1), (4, 2)]),
    st.lists(st.integers(0, 6), min_size=1, max_size=3),
    st.sampled_from(PARTIAL_OPS),
    st.data(),
)
@settings(max_examples=cases(60))
def test_moves_on_two_axes(sizes: tuple[int, int], shape: list[int], operation: str, data: st.DataObject) -> None:
    """From any layout to any other on a mesh of two axes, also where both cut one dimension or both are partial."""
    mesh = uniform_mesh(1, dict(zip("ab", sizes, strict=True)), tuple(range(sizes[0] * sizes[1])))
    ends: list[Placement] = [REPLICATE, *[Shard(dim) for dim in range(len(shape))]]
    before = tuple(data.draw(st.sampled_from([*ends, Partial(operation)])) for _ in sizes)
    after = tuple(data.draw(st.sampled_from(ends)) for _ in sizes)
    array = np.random.default_rng(2).integers(1, 5, tuple(shape)).astype(np.float64)
    check_move(array, before, after, mesh)


def test_a_value_without_dimensions_moves() -> None:
    """Contributions to a scalar, as NumPy's own scalars, are joined on every worker."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    moves = [compiled(spec(float32, ()), (Partial("sum"),), (REPLICATE,), mesh, rank) for rank in range(3)]
    held = [np.float32(rank + 1) for rank in range(3)]
    sent = {(rank, target): piece for rank in range(3) for target, piece in pieces(moves[rank], held[rank], CPU)}
    for rank in range(3):
        arrived = {source: sent[source, rank].reshape(()) for source in range(3) if source != rank}
        found = assemble(moves[rank], held[rank], arrived, np)
        assert (found.shape, found.dtype, found) == ((), np.float32, 6)


def test_what_a_move_keeps_holds_no_larger_array() -> None:
    """A part cut from a whole that goes away is copied: it does not keep the whole in memory."""
    mesh = uniform_mesh(1, {"workers": 2}, (0, 1))
    array = np.arange(8, dtype=np.float32)
    move = compiled(spec(float32, (8,)), (REPLICATE,), (Shard(0),), mesh, 0)
    part = assemble(move, array, {}, np)
    assert part.base is None
    np.testing.assert_array_equal(part, array[:4])
