"""Tensors that come from clients and go to them: puts, fetches, and clients that leave meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import one
from one_mesh import CLIENT, CUT, WHOLE, Ranks, gathered, numbers, picking

from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.wire import messages as m
from gt.wire.bulk import GET
from gt.worker.base.backend import backend
from gt.worker.base.events import BulkIn, BulkOut, Forgotten
from gt.worker.core import WorkerCore


def test_a_put_is_cut_where_it_is_stored() -> None:
    """Every worker gets the whole of a small put and keeps its own part, in memory of its own."""
    group = Ranks(3)
    group.store(1, numbers(4, 2), CUT)
    parts = [group.stored(1, rank) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), numbers(4, 2))
    assert [len(part) for part in parts] == [1, 2, 1]
    assert all(part.base is None for part in parts)


def announce(group: Ranks, tensor: int, rank: int = 0) -> list[Any]:
    return group.tell(rank, m.Store(next(group.orders), CLIENT, tensor, ["f32", [4, 2]], 1, "S0", [], b"sender", b""))


def test_a_bulk_put_lands() -> None:
    """A bulk put is announced first and holds up nothing; when it has arrived it is stored and the dispatcher told."""
    group = Ranks(2)
    assert announce(group, 1) == [m.Done(1)]
    assert group.cores[0].stored.expecting == {(CLIENT, 1): (b"sender", spec(float32, (4, 2)), ((0, 2), (0, 2)))}
    assert group.tell(0, BulkIn(CLIENT, 1, numbers(2, 2))) == [m.Landed(CLIENT, 1)]
    np.testing.assert_array_equal(group.stored(1), numbers(2, 2))
    assert group.cores[0].stored.expecting == {}


def test_an_empty_part_of_a_bulk_put_lands_at_once() -> None:
    """A worker whose part has no element waits for nothing."""
    group = Ranks(2)
    said = group.tell(0, m.Store(1, CLIENT, 1, ["f32", [4, 2]], 1, "S0(0,1)", [], b"sender", b""))
    assert said == [m.Done(1)]
    assert group.stored(1).shape == (0, 2)
    assert group.cores[0].stored.expecting == {}


def test_a_bulk_put_lands_while_a_plan_waits() -> None:
    """What arrives in bulk is not held up by a plan that stands at a move."""
    group, plan, _ = gathered(2)
    group.tell(0, m.Store(next(group.orders), CLIENT, 7, ["f32", [2]], 1, "R", [], b"sender", b""))
    group.tell(0, group.execute(plan, [1]))
    assert group.tell(0, BulkIn(CLIENT, 7, numbers(2))) == [m.Landed(CLIENT, 7)]
    group.tell(1, m.Execute(3, plan, CLIENT, 100, [1], [], [], []))
    group.settle()


def test_a_bulk_put_without_memory_is_a_fault_that_lands() -> None:
    """When there is no memory for a bulk put the tensor holds the error, and whoever waits for it goes on."""
    group = Ranks(1)
    announce(group, 1)
    assert group.tell(0, BulkIn(CLIENT, 1, None)) == [m.Landed(CLIENT, 1)]
    assert group.stored(1).fault == ("OutOfMemory", "a put of f32[4,2]: out of memory. Held: nothing")


def test_nothing_is_left_of_a_client_whose_last_tensor_is_released() -> None:
    """As when its session moves to other workers, of whose end this one hears nothing; with a put on its way it stays."""
    group = Ranks(1)
    group.store(1, numbers(4, 2), WHOLE)
    announce(group, 2)
    stored = group.cores[0].stored
    group.tell(0, m.Release(CLIENT, [1]))
    assert stored.tensors == {CLIENT: {}}
    group.tell(0, BulkIn(CLIENT, 2, numbers(4, 2)))
    group.tell(0, m.Release(CLIENT, [2]))
    assert stored.tensors == {}
    assert stored.origins.made == {}


@pytest.mark.parametrize("how", ["release", "run"])
def test_a_bulk_put_that_was_freed_meanwhile_is_not_kept(how: str) -> None:
    """A tensor that is freed before its data has arrived leaves nothing behind when it does."""
    group = Ranks(1)
    group.store(9, numbers(3))
    announce(group, 1)
    if how == "release":
        group.tell(0, m.Release(CLIENT, [1]))
    else:
        plan, _ = group.define(one("neg", spec(float32, (3,))), [WHOLE])
        group.tell(0, group.execute(plan, [9], freed=[1]))
    assert group.tell(0, BulkIn(CLIENT, 1, numbers(2, 2))) == []
    assert 1 not in group.cores[0].stored.tensors[CLIENT]
    assert (group.cores[0].stored.expecting, group.cores[0].stored.unwanted) == ({}, set())


def test_nothing_is_left_of_a_client_whose_last_put_was_freed_before_it_came() -> None:
    """Its session may have moved to other workers, and this one does not hear of its end."""
    group = Ranks(1)
    announce(group, 1)
    group.store(2, numbers(3))
    group.tell(0, m.Release(CLIENT, [1, 2]))
    group.tell(0, BulkIn(CLIENT, 1, numbers(2, 2)))
    assert group.cores[0].stored.tensors == {}


def test_a_bulk_put_of_a_client_that_left_is_forgotten() -> None:
    """What a client had announced goes with it: nothing is expected any more, and nothing that comes is kept."""
    group = Ranks(1)
    announce(group, 1)
    announce(group, 2)
    group.tell(0, m.Release(CLIENT, [2]))
    group.tell(0, m.Forget(CLIENT))
    assert (group.cores[0].stored.expecting, group.cores[0].stored.unwanted) == ({}, set())
    assert group.tell(0, BulkIn(CLIENT, 1, numbers(2, 2))) == []
    assert group.cores[0].stored.tensors == {}


def test_a_client_is_forgotten_in_its_turn() -> None:
    """A fetch that waits behind a plan is still answered before its client is forgotten, and nothing is sent after."""
    group, plan, _ = gathered(2)
    run = group.execute(plan, [1])
    group.tell(0, run)
    group.tell(0, m.Collect(1, 1, CLIENT, 101, False, b"c"))
    assert group.tell(0, m.Forget(CLIENT)) == []
    group.tell(1, run)
    group.settle()
    assert [type(said) for said in group.said[0][-3:]] == [m.Done, BulkOut, Forgotten]


def test_a_fetch_sends_the_own_part() -> None:
    """A fetch is answered with this worker's part, under the key of the client's own request; a silent one with none."""
    group = Ranks(2)
    group.store(1, numbers(4, 2), CUT)
    (part,) = group.tell(1, m.Collect(8, 3, CLIENT, 1, False, b"c"))
    assert isinstance(part, BulkOut)
    assert (part.message, part.key, part.receiver) == (m.Part(8, [], False, b""), (GET, CLIENT, 3, 1), b"c")
    np.testing.assert_array_equal(part.array, numbers(4, 2)[2:])
    assert group.tell(0, m.Collect(9, 3, CLIENT, 1, True, b"c")) == [m.Part(9, [], False, b"")]


def test_a_fetch_of_poison_sends_the_error() -> None:
    """A fetch of a poisoned tensor is answered by its fault, whether data was asked for or not."""
    group = Ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, np.full((4, 1), -8))
    plan, _ = group.define(picking(), [WHOLE, WHOLE])
    group.tell(0, group.execute(plan, [1, 2]))
    for silent in (True, False):
        (part,) = group.tell(0, m.Collect(1, 1, CLIENT, 101, silent, b"c"))
        assert part.fault[0] == "IndexOutOfRange"


def test_a_piece_of_the_wrong_size_is_a_fault() -> None:
    """A peer that sends too little spoils this tensor and nothing else."""
    group, plan, _ = gathered(2)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Piece(2, 1, 0, 1, [], [], False, b"1234"))
    assert group.said[0][-1] == m.Done(2)
    assert "ValueError" in group.stored(101).fault[1]
    group.pieces.clear()


def test_what_is_in_no_order_is_not_put_behind_plans() -> None:
    """A worker that knows what comes still hears at once who is lost: it may stand in a plan that waits for that."""
    core = WorkerCore(backend("cpu"))
    assert not core.announce(m.PeerLost(1, "killed"))
    assert not core.announce(m.Meet([], []))
    assert core.announce(m.Forget(1))
    core.handle(m.PeerLost(1, "killed"), 0.0)
    assert core.peers.lost == {1: "killed"}
