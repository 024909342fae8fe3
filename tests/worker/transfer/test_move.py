"""The local half of every move, brute-forced against NumPy: any layout to any other, uneven and empty parts included."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from builders import Array
from effort import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_move import compiled, contributions, exchanged, placements, refuse, two_axes

from gt.ir.dtypes import as_dtype, float32
from gt.ir.spec import spec
from gt.sharding.collectives import (
    ALGORITHMS,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_DIRECT_WORKERS,
    all_reduce_algorithm,
    all_reduce_bytes,
    chunks,
)
from gt.sharding.partition import box, extent
from gt.sharding.placement import PARTIAL_OPS, REPLICATE, At, Layout, Mesh, Partial, Replicate, Shard, uniform_mesh
from gt.worker.base.backend import backend
from gt.worker.transfer.move import MoveInFlight, local_result
from gt.worker.transfer.move_schedule import cut

CPU = backend("cpu")


def check_move(array: Array, before: Layout, after: Layout, mesh: Mesh, seed: int = 0, algorithm: str = "") -> None:
    """After the move every rank holds its part of the value, and ranks that hold the same hold the same bits."""
    whole = spec(as_dtype(array.dtype), array.shape)
    moves = [compiled(whole, before, after, mesh, rank, algorithm) for rank in range(len(mesh.members))]
    held = contributions(array, before, mesh, seed)
    joined: dict[Any, bytes] = {}
    for rank, in_flight in enumerate(exchanged(moves, held, seed=seed, lend=bool(seed % 2))):
        assert in_flight.fault is None
        found = local_result(moves[rank], held[rank], np) if moves[rank].local else in_flight.result()
        part = box(array.shape, after, mesh, rank)
        key = (part, tuple(c for c, p in zip(mesh.coordinates(rank), after, strict=True) if isinstance(p, Partial)))
        if part is not None and not any(isinstance(p, Partial) for p in after):
            np.testing.assert_array_equal(found, array[tuple(slice(*pair) for pair in part)])
            assert joined.setdefault(key, np.asarray(found).tobytes()) == np.asarray(found).tobytes()


@pytest.mark.parametrize("operation", PARTIAL_OPS)
def test_every_move_along_one_axis(operation: str) -> None:
    """From every placement to every other, over three workers, uneven and empty shards included."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    for shape in ((4, 5), (1, 2), (7,)):
        array = np.random.default_rng(1).integers(1, 5, shape).astype(np.float64)
        for before, after in itertools.product(placements(len(shape), operation), repeat=2):
            if isinstance(after, Replicate | Shard):
                check_move(array, (before,), (after,), mesh)


@given(two_axes())
@settings(max_examples=cases(60))
def test_moves_on_two_axes(drawn: tuple[Array, Layout, Layout, Mesh]) -> None:
    """From any layout to any other on a mesh of two axes, also where both cut one dimension or both are partial."""
    check_move(*drawn)


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of at most 16 bytes: so small values go in many."""
    monkeypatch.setattr("gt.sharding.collectives.MAX_CHUNK_BYTES", 16)


@given(
    st.sampled_from(ALGORITHMS),
    st.integers(1, 5),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(PARTIAL_OPS),
    st.integers(0, 1000),
)
@settings(max_examples=cases(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("_small_chunks")
def test_every_algorithm_reduces(algorithm: str, size: int, shape: list[int], operation: str, seed: int) -> None:
    """Whatever the algorithm, the number of workers and the shape: the value, and the same bits on every replica."""
    mesh = uniform_mesh(1, {"workers": size}, tuple(range(size)))
    array = np.random.default_rng(seed).integers(1, 5, tuple(shape)).astype(np.float64)
    check_move(array, (Partial(operation),), (REPLICATE,), mesh, seed, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.usefixtures("_small_chunks")
def test_additions_are_done_in_one_order(algorithm: str, size: int) -> None:
    """However pieces overtake each other, each element is summed in the same order: the same bits every time."""
    mesh = uniform_mesh(1, {"workers": size}, tuple(range(size)))
    held = [np.random.default_rng(rank).standard_normal((7, 5)).astype(np.float32) for rank in range(size)]
    moves = [compiled(spec(float32, (7, 5)), (Partial(),), (REPLICATE,), mesh, rank, algorithm) for rank in range(size)]
    found = {
        in_flight.result().tobytes() for seed in range(5) for in_flight in exchanged(moves, held, seed=seed, lend=True)
    }
    assert len(found) == 1
    np.testing.assert_allclose(np.frombuffer(found.pop(), np.float32).reshape(7, 5), sum(held), rtol=1e-5, atol=1e-6)


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.integers(0, 1000),
    st.data(),
)
@settings(max_examples=cases(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("_small_chunks")
def test_moves_in_many_pieces(size: int, shape: list[int], seed: int, data: st.DataObject) -> None:
    """Between any two placements, uneven ones and single positions too, also when every transfer goes in many pieces."""
    mesh = uniform_mesh(1, {"workers": size}, tuple(range(size)))
    weights = st.lists(st.integers(0, 3), min_size=size, max_size=size).map(tuple)
    ends = st.one_of(
        st.just(REPLICATE),
        st.builds(Shard, st.integers(0, len(shape) - 1)),
        st.builds(Shard, st.integers(0, len(shape) - 1), weights),
        st.builds(At, st.integers(0, size - 1)),
    )
    before = data.draw(st.one_of(ends, st.just(Partial())))
    array = np.random.default_rng(seed).integers(1, 5, tuple(shape)).astype(np.float64)
    check_move(array, (before,), (data.draw(ends),), mesh, seed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.usefixtures("_small_chunks")
def test_a_fault_reaches_everybody_who_needs_what_is_lacking(algorithm: str, size: int) -> None:
    """One rank has a fault instead of its contribution: nobody waits for ever, and every rank learns that fault."""
    mesh = uniform_mesh(1, {"workers": size}, tuple(range(size)))
    held = [np.ones((7, 5), np.float32)] * size
    moves = [compiled(spec(float32, (7, 5)), (Partial(),), (REPLICATE,), mesh, rank, algorithm) for rank in range(size)]
    for bad in range(size):
        fault = ("WorkerError", f"rank {bad}")
        values = [None if rank == bad else value for rank, value in enumerate(held)]
        found = exchanged(moves, values, faults={bad: fault}, seed=bad, lend=True)
        assert [in_flight.fault for in_flight in found] == [fault] * size


@given(
    st.lists(st.integers(0, 6), max_size=4).map(lambda sizes: tuple((size, size + size % 4) for size in sizes)),
    st.integers(1, 60),
)
def test_pieces_tile_their_transfer(part: Any, count: int) -> None:
    """Cut pieces are stretches of memory, in order, that together are the whole, and as many as asked for if there are."""
    whole = np.arange(int(np.prod(extent(part)))).reshape(extent(part))
    found = [whole[tuple(slice(a - origin, b - origin) for (a, b), (origin, _) in zip(piece, part, strict=True))]
             for piece in cut(part, count)]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate([piece.reshape(-1) for piece in found]), whole.reshape(-1))
    assert len(found) >= min(count, whole.size)
    if whole.size:
        assert max(piece.size for piece in found) <= max(1, -(-2 * whole.size // count))


def test_large_transfers_go_in_pieces_of_bounded_size() -> None:
    """No piece is larger than a slot of shared memory, unless there would be very many."""
    assert [chunks(n) for n in (0, 1, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 10 * MAX_CHUNK_BYTES)] == [1, 1, 1, 2, 10]
    assert chunks(MAX_CHUNK_BYTES * MAX_CHUNKS * 5) == MAX_CHUNKS


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 9, 64])
@pytest.mark.parametrize("nbytes", [0, 4, 1 << 12, 1 << 16, 1 << 30])
def test_the_algorithm_moves_no_more_than_the_textbook_says(parts: int, nbytes: int) -> None:
    """Large values move twice, whatever the number of workers; a crowd does not send each other every small one."""
    algorithm = all_reduce_algorithm(nbytes, parts)
    assert algorithm in ALGORITHMS
    if (parts > 2 and (nbytes >= 1 << 16 or parts > MAX_DIRECT_WORKERS)) or nbytes >= 1 << 20:
        assert all_reduce_bytes(algorithm, nbytes, parts) == 2 * (parts - 1) * nbytes
    else:
        assert all_reduce_bytes(algorithm, nbytes, parts) == parts * (parts - 1) * nbytes


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_algorithms_move_the_bytes_that_they_are_priced_at(algorithm: str, size: int) -> None:
    mesh = uniform_mesh(1, {"workers": size}, tuple(range(size)))
    whole = spec(float32, (size * 4,))
    moves = [compiled(whole, (Partial(),), (REPLICATE,), mesh, rank, algorithm) for rank in range(size)]
    assert sum(move.expected(move.awaited) for move in moves) == all_reduce_bytes(algorithm, whole.nbytes, size)


def test_one_copy_serves_all_who_need_the_same() -> None:
    """What several ranks need is sent once, to all of them."""
    mesh = uniform_mesh(1, {"workers": 4}, tuple(range(4)))
    move = compiled(spec(float32, (8,)), (Shard(0),), (REPLICATE,), mesh, 2)
    assert [sending.targets for sending in move.sendings] == [(0, 1, 3)]
    assert move.collective == "all-gather"


def test_a_value_without_dimensions_moves() -> None:
    """Contributions to a scalar, as NumPy's own scalars, are joined on every worker."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    moves = [compiled(spec(float32, ()), (Partial("sum"),), (REPLICATE,), mesh, rank) for rank in range(3)]
    for in_flight in exchanged(moves, [np.float32(rank + 1) for rank in range(3)]):
        found = in_flight.result()
        assert (found.shape, found.dtype, found) == ((), np.float32, 6)


def test_what_a_move_keeps_holds_no_larger_array() -> None:
    """A part cut from a whole that goes away is copied: it does not keep the whole in memory."""
    mesh = uniform_mesh(1, {"workers": 2}, (0, 1))
    array = np.arange(8, dtype=np.float32)
    move = compiled(spec(float32, (8,)), (REPLICATE,), (Shard(0),), mesh, 0)
    assert move.local
    part = local_result(move, array, np)
    assert part.base is None
    np.testing.assert_array_equal(part, array[:4])


def test_a_piece_that_nobody_waits_for_has_no_shape() -> None:
    """A doubled piece, or one of a stranger, is of no use, and of no harm."""
    mesh = uniform_mesh(1, {"workers": 2}, (0, 1))
    move = compiled(spec(float32, (8,)), (Partial(),), (REPLICATE,), mesh, 0)
    in_flight = MoveInFlight(move, np.ones(8, np.float32), None, np, refuse)
    assert in_flight.shape_of(1, 0) == (8,)
    assert (in_flight.shape_of(1, 9), in_flight.shape_of(7, 0), in_flight.shape_of(0, 0)) == (None, None, None)
    in_flight.arrive(1, 0, np.ones(8, np.float32), [])
    assert in_flight.shape_of(1, 0) is None
    in_flight.fail(1, ("WorkerLost", "too late to matter"))
    assert in_flight.left == 0
