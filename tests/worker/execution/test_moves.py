"""Moves that follow each other: begun together where their values are there, and each waited for in its turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Array, Lines, evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from one_mesh import CLIENT, CUT, Ranks

from gt.ir.instruction import Segment
from gt.wire import messages as m
from gt.worker.core import PEER_TIMEOUT_SECONDS
from gt.worker.device.buffers import HostBuffers
from gt.worker.execution.tensor_store import Poison
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.program.compiler import Program
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

WIDE = 4


def sums(count: int, chained: frozenset[int] = frozenset()) -> Segment:
    """So many sums over rows that are cut, with some work on each; those in `chained` read what became of the one before."""
    lines = Lines()
    inputs = [lines.input(8, WIDE) for _ in range(count)]
    totals = {at: lines.op("sum", x, axes=(0,), keepdims=False) for at, x in enumerate(inputs) if at not in chained}
    ends: list[int] = []
    for at, x in enumerate(inputs):
        if at in chained:
            totals[at] = lines.op("sum", lines.op("mul", x, ends[-1]), axes=(0,), keepdims=False)
        ends.append(lines.op("relu", totals[at]))
    return lines.segment(*ends)


def started(size: int, segment: Segment) -> tuple[Ranks, m.Execute, list[Array]]:
    """The segment's inputs are on these workers, cut; none has run it."""
    group = Ranks(size)
    arrays = [
        np.random.default_rng(at).integers(0, 3, (8, WIDE)).astype(np.float32) for at, _ in enumerate(segment.inputs)
    ]
    for tensor, array in enumerate(arrays, 1):
        group.store(tensor, array, CUT)
    plan, _ = group.define(segment, [CUT] * len(arrays))
    return group, group.execute(plan, [*range(1, len(arrays) + 1)]), arrays


def program(group: Ranks, rank: int = 0) -> Program:
    (found,) = group.cores[rank].programs.compiled.values()
    return found


def results(group: Ranks, segment: Segment, rank: int = 0) -> list[Any]:
    """What survived, in order."""
    return [group.stored(100 + number, rank) for number in segment.survivors]


def steps(group: Ranks, target: int) -> list[int]:
    """To which moves the pieces belong that are on their way to a worker."""
    return [piece.step for to, piece in group.pieces if to == target]


def test_moves_behind_each_other_are_begun_together() -> None:
    """Sums that need nothing of each other: all their pieces leave before any has come, so they are waited for once."""
    segment = sums(3)
    group, run, arrays = started(2, segment)
    assert group.tell(0, run) == []
    assert len(set(steps(group, 1))) == 3
    group.tell(1, run)
    assert len(group.cores[1].moves.arrived) == 0
    group.settle()
    for rank in range(2):
        for found, array in zip(results(group, segment, rank), arrays, strict=True):
            np.testing.assert_array_equal(found, array.sum(0))


def test_a_move_of_what_came_from_another_waits_for_that() -> None:
    """What is made of a move's result cannot be begun before that is there."""
    segment = sums(3, frozenset({1}))
    group, run, _ = started(2, segment)
    group.tell(0, run)
    assert len(set(steps(group, 1))) == 1
    group.tell(1, run)
    group.settle()
    assert group.cores[0].finished == run.order


def test_no_more_is_begun_ahead_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of moves that were begun before their turn take at most `AHEAD` bytes."""
    monkeypatch.setattr("gt.worker.program.compiler.MOVES_AHEAD_BYTES", 2 * WIDE * 4)
    group, run, _ = started(2, sums(5))
    group.tell(0, run)
    assert len(set(steps(group, 1))) == 3
    assert program(group).begun == [3, 4, 5, 5, 5]


def test_the_room_that_a_plan_needs_counts_what_is_begun_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """All results of moves that are begun together are there at once, with what they are made of."""
    needs = []
    for ahead in (0, 1 << 20):
        monkeypatch.setattr("gt.worker.program.compiler.MOVES_AHEAD_BYTES", ahead)
        group, run, _ = started(2, sums(4))
        group.tell(0, run)
        needs.append(program(group).need)
    row = WIDE * 4
    assert needs[1] > needs[0]
    assert needs[1] >= 4 * row + 4 * row, "four sums of the own rows, and four over all"


def test_where_memory_is_short_moves_are_begun_one_by_one() -> None:
    """A plan that runs carefully holds no more than one move needs."""
    segment = sums(3)
    group, run, arrays = started(2, segment)
    for core in group.cores:
        core.stored.limiter = limiter = MemoryLimiter(HostBuffers(), SpillStorage(), (3 * 4 + 5) * WIDE * 4, small=0)
        limiter.bound = limiter.limit
    group.tell(0, run)
    running = group.cores[0].running
    assert running is not None
    assert running.low_memory is not None
    assert len(set(steps(group, 1))) == 1
    group.tell(1, run)
    group.settle()
    assert [core.finished for core in group.cores] == [run.order] * 2
    for number, array in zip(segment.survivors, arrays, strict=True):
        found = group.stored(100 + number)
        limiter = group.cores[0].stored.limiter
        whole = limiter.take_in(found, (CLIENT, 100 + number)) if limiter and type(found) is SpilledValue else found
        np.testing.assert_array_equal(whole, array.sum(0))


def test_poison_in_one_of_them_spoils_no_other() -> None:
    """A fault is told in place of one move's pieces; those that were begun beside it bring what they should."""
    segment = sums(3)
    group, run, arrays = started(3, segment)
    group.cores[1].stored.tensors[CLIENT][2] = Poison(("ValueError", "of one worker"))
    group.all(run)
    group.settle()
    for rank in range(3):
        found = results(group, segment, rank)
        assert found[1].fault == ("ValueError", "of one worker")
        np.testing.assert_array_equal(found[0], arrays[0].sum(0))
        np.testing.assert_array_equal(found[2], arrays[2].sum(0))


def test_a_lost_peer_is_waited_for_in_none_of_them() -> None:
    """Whoever is gone is given up in all moves under way at once; what it had sent before still counts."""
    segment = sums(3)
    group, run, arrays = started(2, segment)
    group.tell(1, run)
    sent = [at for at, (to, piece) in enumerate(group.pieces) if to == 0 and piece.step == group.pieces[0][1].step]
    group.tell(0, run)
    for at in reversed(sent):
        group.deliver(at)
    group.tell(0, m.PeerLost(1, "gone"))
    found = results(group, segment)
    np.testing.assert_array_equal(found[0], arrays[0].sum(0))
    assert [each.fault for each in found[1:]] == [("WorkerLost", "gone")] * 2
    group.pieces.clear()
    group.cores.pop()


def test_the_time_that_is_waited_counts_from_the_last_piece_of_any_of_them() -> None:
    """A piece of a move behind shows that the others live: nobody is given up while pieces come."""
    segment = sums(2)
    group, run, _ = started(2, segment)
    group.all(run)
    at = max(range(len(group.pieces)), key=lambda at: (group.pieces[at][0] == 0, group.pieces[at][1].step))
    group.now = PEER_TIMEOUT_SECONDS - 1
    group.deliver(at)
    group.now = PEER_TIMEOUT_SECONDS + 1
    group.tell(0, None)
    assert group.cores[0].running is not None
    group.now = 2 * PEER_TIMEOUT_SECONDS + 1
    group.tell(0, None)
    assert results(group, segment)[0].fault[0] == "WorkerLost"
    group.settle()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pieces_of_moves_begun_together_may_come_in_any_order(data: st.DataObject) -> None:
    """Whatever is made of what, and however pieces of several moves and workers come: the same bits everywhere."""
    count = data.draw(st.integers(1, 5))
    size = data.draw(st.integers(2, 3))
    segment = sums(count, frozenset(data.draw(st.sets(st.integers(1, 4)))))
    group, run, arrays = started(size, segment)
    waits = [*range(size)]
    while waits or group.pieces:
        which = data.draw(st.integers(0, len(waits) + len(group.pieces) - 1))
        if which < len(waits):
            group.tell(waits.pop(which), run)
        else:
            group.deliver(which - len(waits))
    expected = evaluate(segment, arrays)
    for rank in range(size):
        for number in segment.survivors:
            np.testing.assert_array_equal(group.stored(100 + number, rank), expected[number])
    begun = program(group).begun
    assert begun == sorted(begun)
    assert all(at < last <= len(begun) for at, last in enumerate(begun))
