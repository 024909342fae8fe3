"""Every move that a group does together, brute-forced against NumPy on a stand-in for NCCL: uneven and empty parts included."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from builders import Array
from card import CARD
from effort import cases
from fake_nccl import NET, Bindings, installed
from hypothesis import HealthCheck, given, settings
from one_move import contributions, placements, two_axes

from gt.ir.dtypes import ALL_DTYPES, as_dtype
from gt.ir.instruction import MOVE, Instruction, ref
from gt.ir.spec import spec
from gt.sharding.partition import box
from gt.sharding.placement import PARTIAL_OPS, REPLICATE, At, Layout, Mesh, Partial, Replicate, Shard, uniform_mesh
from gt.worker.device.cuda_streams import CudaStreams
from gt.worker.nccl import collective_moves
from gt.worker.nccl.communicators import Nccl, NcclCalls
from gt.worker.transfer.move import Move, compile_move, reducer


@pytest.fixture(autouse=True, scope="module")
def _cards() -> Iterator[None]:
    with installed(8):
        yield


def compiled(array: Array, before: Layout, after: Layout, mesh: Mesh, cards: list[int] | None = None) -> list[Move]:
    """A move, as each rank sees it; all have a card of their own, unless `cards` says otherwise."""
    instruction = Instruction(MOVE, range(1), (ref(1, 0),), {}, 0)
    whole = spec(as_dtype(array.dtype), array.shape)
    ranks = range(len(mesh.members))
    return [
        compile_move(
            instruction, 0, whole, before, after, mesh, rank, 0, 1, (0,), cards=cards or [n + 1 for n in ranks]
        )
        for rank in ranks
    ]


class Ranks:
    """Groups' communicators, each made when a group first does something."""

    def __init__(self, size: int) -> None:
        self.nccls = [Nccl(Bindings, CARD.cuda.Device(rank), CudaStreams(CARD)) for rank in range(size)]
        self.communicators: dict[tuple[int, ...], dict[int, Any]] = {}

    def calls(self, rank: int, found: collective_moves.JointMove) -> NcclCalls:
        known = self.communicators.setdefault(found.ranks, {})
        if not known:
            left, unique_id = list(enumerate(found.ranks)), self.nccls[0].new_id()

            def join() -> bool:
                if not left:
                    return False
                place, member = left.pop()
                known[member] = self.nccls[member].join(len(found.ranks), unique_id, place)
                return True

            NET.pump = join
            while join():
                pass
            NET.pump = lambda: False
        return NcclCalls(self.nccls[rank], known[rank], found.place)


def moved(moves: list[Move], held: list[Array]) -> dict[int, Array]:
    """What each rank has after a joint move; all make their calls before any takes what came."""
    ranks = Ranks(len(moves))
    works = {}
    for move in moves:
        if move.joint is not None:
            work = works[move.rank] = collective_moves.JointMoveWork(
                move.joint, CARD.asarray(held[move.rank]), CARD, reducer
            )
            streams = ranks.nccls[move.rank].streams
            streams.follow(streams.collectives, streams.compute)
            work.begin(ranks.calls(move.rank, move.joint))
    assert not any(stream.head() for stream in NET.streams.values()), "all that was begun is over"
    return {rank: CARD.asnumpy(work.end()) for rank, work in works.items()}


def check_move(array: Array, before: Layout, after: Layout, mesh: Mesh, seed: int = 0) -> Counter[str]:
    """After the move every rank holds its part of the value; in which ways it went."""
    moves = compiled(array, before, after, mesh)
    ways = Counter(move.joint.way for move in moves if move.joint is not None)
    if not ways:
        return ways
    groups = {move.joint.ranks for move in moves if move.joint is not None}
    together = {move.rank for move in moves if move.joint is not None}
    assert sorted(rank for group in groups for rank in group) == sorted(together), "a group goes one way"
    held = contributions(array, before, mesh, seed)
    for rank, found in moved(moves, held).items():
        part = box(array.shape, after, mesh, rank)
        assert part is not None
        if not any(isinstance(p, Partial) for p in after):
            np.testing.assert_array_equal(found, array[tuple(slice(*pair) for pair in part)])
    return ways


@pytest.mark.parametrize("operation", PARTIAL_OPS)
def test_every_move_along_one_axis(operation: str) -> None:
    """From every placement to every other, over three workers; each collective of the library is used."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    ways: Counter[str] = Counter()
    for shape, dtype in itertools.product(((4, 5), (1, 2), (7,), (6, 3), ()), (np.float64, np.int32)):
        array = np.random.default_rng(1).integers(1, 5, shape).astype(dtype)
        for before, after in itertools.product(placements(len(shape), operation), repeat=2):
            if isinstance(after, Replicate | Shard) and all(
                p.dim < len(shape) for p in (before, after) if type(p) is Shard
            ):
                ways += check_move(array, (before,), (after,), mesh)
    assert set(ways) == {
        collective_moves.ALL_REDUCE,
        collective_moves.REDUCE_SCATTER,
        collective_moves.ALL_GATHER,
        collective_moves.BROADCAST,
        collective_moves.SEND_RECEIVE,
    }


@given(two_axes())
@settings(max_examples=cases(150), suppress_health_check=[HealthCheck.too_slow])
def test_moves_on_two_axes(drawn: tuple[Array, Layout, Layout, Mesh]) -> None:
    """From any layout to any other on a mesh of two axes, also where both cut one dimension or both are partial."""
    check_move(*drawn)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("operation", PARTIAL_OPS)
def test_every_dtype(dtype: Any, operation: str) -> None:
    """Reduced by the library where it can, and in the same way as NumPy does; otherwise moved, and reduced here."""
    mesh = uniform_mesh(1, {"workers": 3}, (0, 1, 2))
    numbers = np.random.default_rng(3)
    held = [numbers.integers(0, 3, (6, 2)).astype(np.float32).astype(dtype.numpy) for _ in range(3)]
    reduce = reducer(operation, np)
    if dtype.name.startswith("complex") and operation in ("max", "min", "prod"):
        held = [each + dtype.numpy.type(1j) for each in held]
    expected = reduce(reduce(held[0], held[1]), held[2])
    for after in (REPLICATE, Shard(0), Shard(1)):
        moves = compiled(expected, (Partial(operation),), (after,), mesh)
        for rank, found in moved(moves, held).items():
            part = box(expected.shape, (after,), mesh, rank)
            assert part is not None
            np.testing.assert_array_equal(found, expected[tuple(slice(*pair) for pair in part)])
    for before, after in ((Shard(0), REPLICATE), (Shard(0), Shard(1)), (Shard(0, (0, 1, 0)), REPLICATE)):
        check_move(expected, (before,), (after,), mesh)


@pytest.mark.parametrize("operation", ["max", "min"])
def test_nan_is_the_largest_and_the_smallest(operation: str) -> None:
    """As in NumPy, though not in NCCL."""
    mesh = uniform_mesh(1, {"workers": 2}, (0, 1))
    held = [np.array([np.nan, 1.0], np.float32), np.array([2.0, np.nan], np.float32)]
    for found in moved(compiled(held[0], (Partial(operation),), (REPLICATE,), mesh), held).values():
        assert np.isnan(found).all()


def test_who_shares_a_card_goes_the_other_way() -> None:
    """As a whole group: one that has a card for each member does not follow its neighbours."""
    mesh = uniform_mesh(1, {"a": 2, "b": 2}, (0, 1, 2, 3))
    array = np.ones((4, 4), np.float32)

    def along(axis: int, cards: list[int]) -> list[bool]:
        before = (Shard(0), REPLICATE) if axis == 0 else (REPLICATE, Shard(0))
        return [move.joint is not None for move in compiled(array, before, mesh.replicated, mesh, cards)]

    assert along(1, [1, 2, 1, 2]) == [True] * 4
    assert along(0, [1, 2, 1, 2]) == [False] * 4
    assert along(1, [1, 1, 2, 3]) == [False, False, True, True]
    assert along(1, [0, 2, 3, 4]) == [False, False, True, True]


def test_stages_send_and_do_not_wait() -> None:
    """Between the stages of a pipeline nothing is joint."""
    mesh = uniform_mesh(1, {"stages": 2, "data": 2}, (0, 1, 2, 3))
    array = np.ones((4, 4), np.float32)
    between = compiled(array, (At(0), Shard(0)), (At(1), Shard(0)), mesh)
    assert all(move.joint is None for move in between)
    within = compiled(array, (At(1), Shard(0)), (At(1), REPLICATE), mesh)
    assert [move.joint and move.joint.ranks for move in within] == [None, None, (2, 3), (2, 3)]
