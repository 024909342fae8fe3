"""Moves whose pieces come in any order, too early, too late or, from a peer that is gone, not at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from builders import Lines, one
from one_mesh import CLIENT, CUT, WHOLE, Ranks, gathered, numbers

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import resolve
from gt.ir.dtypes import as_dtype, float32
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import spec
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.worker.core import PEER_TIMEOUT_SECONDS

# moves


def test_a_plan_stands_at_a_move_until_the_last_piece() -> None:
    """A plan stops where a piece is missing, says nothing, and goes on when the last piece comes."""
    group, plan, array = gathered(3)
    run = group.execute(plan, [1])
    assert group.tell(0, run) == []
    assert group.cores[0].running is not None
    for rank in (1, 2):
        group.tell(rank, run)
    mine = [item for item in group.pieces if item[0] == 0]
    assert group.tell(0, mine[0][1]) == []
    assert group.tell(0, mine[1][1]) == [m.Done(2)]
    np.testing.assert_array_equal(group.stored(101), array.sum(0))
    group.settle()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pieces_may_come_in_any_order(order: tuple[int, ...]) -> None:
    """Contributions are added by rank, however they arrive: every order gives the same bits on every worker."""
    group = Ranks(4)
    array = np.random.default_rng(3).standard_normal((8, 3)).astype(np.float32)
    group.store(1, array, CUT)
    plan, _ = group.define(one("sum", spec(float32, (8, 3)), axes=(0,), keepdims=False), [CUT])
    group.all(group.execute(plan, [1]))
    for target in range(4):
        mine = [item for item in group.pieces if item[0] == target]
        for at in order:
            group.tell(target, mine[at][1])
    first = group.stored(100, 0)
    np.testing.assert_allclose(first, array.sum(0), rtol=1e-5)
    assert all(group.stored(100, rank).tobytes() == first.tobytes() for rank in range(4))
    group.pieces.clear()


def test_pieces_may_come_before_their_plan() -> None:
    """A worker that is behind keeps the pieces of plans to come, and drops them when the plan is done."""
    group, plan, array = gathered(2)
    run = group.execute(plan, [1])
    group.tell(1, run)
    group.deliver()
    assert len(group.cores[0].moves.arrived) == 1
    assert group.tell(0, run) == [m.Done(2)]
    np.testing.assert_array_equal(group.stored(101), array.sum(0))
    assert group.cores[0].moves.arrived == {}
    group.settle()


def test_a_piece_that_comes_too_late_is_dropped() -> None:
    """A piece of a finished plan leaves no trace: a doubled one cannot fill the memory."""
    group, plan, _ = gathered(2)
    group.all(group.execute(plan, [1]))
    again = list(group.pieces)
    group.settle()
    for target, piece in again:
        group.tell(target, piece)
    assert all(core.moves.arrived == {} for core in group.cores)


def test_what_follows_waits_its_turn() -> None:
    """While a plan stands at a move, later messages wait in order: a free cannot overtake the plan that reads."""
    group, plan, _ = gathered(2)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Release(CLIENT, [101]))
    group.tell(0, m.Collect(1, 1, CLIENT, 101, True, b"c"))
    assert len(group.cores[0].queue) == 2
    assert 1 in group.cores[0].stored.tensors[CLIENT]
    group.tell(1, m.Execute(2, plan, CLIENT, 100, [1], [], [], []))
    group.settle()
    assert group.said[0][-2] == m.Done(2)
    assert group.said[0][-1].fault[0] == "WorkerError"


def test_two_plans_of_two_meshes_cross_without_waiting_for_each_other() -> None:
    """Pieces of the second plan that come while the first still waits are kept, and the second finishes at once."""
    group, plan, array = gathered(2)
    first, second = group.execute(plan, [1]), group.execute(plan, [1], base=200)
    group.tell(0, first)
    group.tell(0, second)
    group.tell(1, first)
    group.pieces = [item for item in group.pieces if item[0] != 1] + [item for item in group.pieces if item[0] == 1]
    group.settle()
    group.tell(1, second)
    group.settle()
    assert [said for said in group.said[0] if isinstance(said, m.Done)][-2:] == [m.Done(2), m.Done(3)]
    np.testing.assert_array_equal(group.stored(201), array.sum(0))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float64"])
def test_every_dtype_travels(dtype: str) -> None:
    """A move carries any dtype, also where ranks hold one element, or none."""
    group = Ranks(3)
    array = np.arange(2).astype(dtype)
    group.store(1, array, CUT)
    lines = Lines()
    x = lines.input(2, dtype=as_dtype(dtype))
    whole = lines.op("cat", x, x, axis=0)
    plan, _ = group.define(lines.segment(whole), [CUT])
    group.all(group.execute(plan, [1]))
    group.settle()
    for rank in range(3):
        np.testing.assert_array_equal(group.stored(100, rank), np.concatenate([array, array]))


def test_an_input_that_moves_for_good_is_replaced() -> None:
    """A relocated input is stored in its new layout from then on; one that dies with the run is not stored again."""
    config = Config.from_plain(
        {"sharding_config": {"up": {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "workers"}}}
    )
    group = Ranks(2)
    policy = resolve(config, group.mesh)
    array = numbers(4, 2)
    for tensor in (1, 2):
        group.store(tensor, array)
    lines = Lines()
    x = lines.input(4, 2)
    segment = lines.segment(lines.op("relu", x, signal=("up",)))
    plan = Planner(group.mesh, policy).plan(segment, (ResidentPlacement(WHOLE, param=True),)).plan
    assert plan.relocated
    group.all(m.DefinePlan(9, pack_plan(plan)))
    group.all(group.execute(9, [1]))
    group.all(group.execute(9, [2], base=200, dying=[0]))
    group.settle()
    for rank in range(2):
        np.testing.assert_array_equal(group.stored(1, rank), array[rank * 2 : rank * 2 + 2])
        assert 2 not in group.cores[rank].stored.tensors[CLIENT]
        np.testing.assert_array_equal(group.stored(200, rank), array[rank * 2 : rank * 2 + 2])


# peers that are gone


def test_a_lost_peer_is_waited_for_no_longer() -> None:
    """A plan that stands at a move goes on at once when the dispatcher says that a member is gone: its part is a fault."""
    group, plan, _ = gathered(3)
    run = group.execute(plan, [1])
    group.tell(0, run)
    group.tell(1, run)
    assert group.tell(0, m.PeerLost(2, "worker 2 was lost (killed)")) == []
    while mine := [at for at, (target, _) in enumerate(group.pieces) if target == 0]:
        group.deliver(mine[0])
    assert group.said[0][-1] == m.Done(2)
    assert group.stored(101).fault == ("WorkerLost", "worker 2 was lost (killed)")
    group.tell(1, m.PeerLost(2, "worker 2 was lost (killed)"))
    group.pieces = [item for item in group.pieces if item[0] == 1]
    group.settle()


def test_a_lost_peer_is_not_waited_for_in_plans_to_come() -> None:
    """Plans that were issued before the loss and start after it run through without waiting."""
    group, plan, _ = gathered(2)
    group.tell(0, m.PeerLost(1, "gone"))
    assert group.unreachable == [(0, 1)]
    assert group.tell(0, group.execute(plan, [1])) == [m.Done(2)]
    assert group.stored(101).fault == ("WorkerLost", "gone")
    assert group.pieces == [], "nothing is sent to a worker that is gone: it would lie in a queue for ever"


def test_a_piece_sent_before_the_loss_still_counts() -> None:
    """A peer that sent its piece and then died has done its part: the plan succeeds."""
    group, plan, array = gathered(2)
    run = group.execute(plan, [1])
    group.tell(1, run)
    group.deliver()
    group.tell(0, m.PeerLost(1, "gone"))
    group.tell(0, run)
    np.testing.assert_array_equal(group.stored(101), array.sum(0))
    group.pieces.clear()


def test_nobody_is_waited_for_for_ever() -> None:
    """When a peer says nothing for too long the plan goes on without it, naming whom it waited for and where."""
    group, plan, _ = gathered(2)
    group.tell(0, group.execute(plan, [1]))
    group.now = PEER_TIMEOUT_SECONDS
    assert group.tell(0, None) == []
    group.now = PEER_TIMEOUT_SECONDS + 1
    assert group.tell(0, None) == [m.Done(2)]
    kind, text = group.stored(101).fault
    assert kind == "WorkerLost"
    assert "for worker 1 in the all-reduce in which 12 of 12 bytes did not come" in text
    assert "model.py:2" in text
    assert "none was finished before" in text
    group.pieces.clear()


def test_a_time_out_names_all_who_are_missing_and_what_was_well_before() -> None:
    """Whoever sent its piece is not named; the wait counts from the last piece; the last finished collective is named."""
    group, plan, _ = gathered(4)
    group.all(group.execute(plan, [1]))
    group.settle()
    run = group.execute(plan, [1], base=200)
    group.tell(0, run)
    group.now = PEER_TIMEOUT_SECONDS - 1
    group.tell(2, run)
    group.deliver(next(at for at, (target, piece) in enumerate(group.pieces) if (target, piece.source) == (0, 2)))
    group.now = PEER_TIMEOUT_SECONDS + 1
    assert group.tell(0, None) == []
    group.now = 2 * PEER_TIMEOUT_SECONDS
    assert group.tell(0, None) == [m.Done(3)]
    _, text = group.stored(201).fault
    assert "for workers 1, 3 in the all-reduce in which 24 of 36 bytes" in text
    assert "the last that was finished is the all-reduce of f32[3] at model.py:2" in text
    assert "GT_PEER_TIMEOUT" in text
    group.pieces.clear()
