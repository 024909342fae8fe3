"""Pieces that go through shared memory, or packed over slow links, or in turns."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from builders import Array, one
from one_mesh import CUT, SLOT, Ranks, numbers

from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.wire import messages as m
from gt.worker.core import PEER_TIMEOUT_SECONDS
from gt.worker.execution.tensor_store import Poison
from gt.worker.transfer.compression import Packer


@pytest.fixture
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes through shared memory, in pieces of at most a slot."""
    monkeypatch.setattr("gt.worker.transfer.peers.MIN_SHARED_PIECE_BYTES", 1)
    monkeypatch.setattr("gt.sharding.collectives.MAX_CHUNK_BYTES", SLOT)


def reduced(group: Ranks, size: int) -> tuple[int, Array]:
    """A plan that sums over ranks, and what comes out. Rows are integers, so that every order of additions is exact."""
    array = np.random.default_rng(5).integers(0, 9, (len(group.cores), size)).astype(np.float32)
    group.store(1, array, CUT)
    plan, _ = group.define(one("sum", spec(float32, array.shape), axes=(0,), keepdims=False), [CUT])
    return plan, array.sum(0)


@pytest.mark.usefixtures("_shared")
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("slots", [1, 3, 100])
@pytest.mark.parametrize("turn", [None, SLOT])
def test_pieces_go_through_shared_memory(size: int, slots: int, turn: int | None) -> None:
    """With any room for it, from one slot on: the value is right, and afterwards all slots are free."""
    group = Ranks(size, slots, turn)
    plan, total = reduced(group, 1000)
    random = np.random.default_rng(slots)
    for base in (100, 200, 300):
        run = group.execute(plan, [1], base=base)
        for rank in random.permutation(size):
            group.tell(int(rank), run)
        through = [piece for _, piece in group.pieces if isinstance(piece, m.Piece)]
        assert any(piece.block for piece in through)
        while group.pieces or any(core.busy for core in group.cores):
            if group.pieces:
                group.deliver(int(random.integers(len(group.pieces))))
            for rank, core in enumerate(group.cores):
                if core.busy:
                    group.tell(rank, None)
        for rank in range(size):
            np.testing.assert_array_equal(group.stored(base, rank), total)
    assert [len(heap.slab.loans) for heap in group.heaps] == [0] * size
    assert all(core.moves.arrived == {} and core.peers.read == {} for core in group.cores)


@pytest.mark.usefixtures("_shared")
def test_one_copy_in_shared_memory_serves_all() -> None:
    """An all-gather lends what each rank has once, to all the others."""
    group = Ranks(4, 100)
    group.store(1, numbers(8), CUT)
    plan, _ = group.define(one("cat", spec(float32, (8,)), axis=0), [CUT])
    group.tell(0, group.execute(plan, [1]))
    assert len({tuple(piece.block) for _, piece in group.pieces}) == 1
    assert [loan.readers for loan in group.heaps[0].slab.loans.values()] == [{1, 2, 3}]
    group.pieces.clear()
    for rank in (1, 2, 3):
        group.tell(0, m.PeerLost(rank, "gone"))
    assert group.heaps[0].slab.loans == {}


@pytest.mark.usefixtures("_shared")
def test_blocks_of_a_lost_reader_are_free_and_those_of_a_lost_lender_still_count() -> None:
    """A worker that is gone reads nothing more; what it had lent before, and its peer had heard of, is used."""
    group = Ranks(2, 100)
    plan, total = reduced(group, 60)
    run = group.execute(plan, [1])
    group.tell(1, run)
    group.deliver()
    assert len(group.heaps[1].slab.loans) == 1
    group.tell(0, m.PeerLost(1, "gone"))
    group.tell(0, run)
    np.testing.assert_array_equal(group.stored(100), total)
    assert group.heaps[0].slab.loans == {}
    group.pieces.clear()


@pytest.mark.usefixtures("_shared")
def test_a_block_of_a_plan_that_was_given_up_is_given_back() -> None:
    """A piece that comes after the time-out is of no use: its lender gets its slot back."""
    group = Ranks(2, 100)
    plan, _ = reduced(group, 60)
    run = group.execute(plan, [1])
    group.tell(0, run)
    group.now = PEER_TIMEOUT_SECONDS + 1
    group.tell(0, None)
    assert isinstance(group.stored(100), Poison)
    group.tell(1, run)
    group.settle()
    assert [len(heap.slab.loans) for heap in group.heaps] == [0, 0]


@pytest.mark.usefixtures("_shared")
@pytest.mark.parametrize("block", [[1, 1, 1 << 40, 240], [1, 1, 0, 4]])
def test_a_block_that_is_not_there_is_a_fault(block: list[int]) -> None:
    """A peer that names memory which it does not have, or too little of it, spoils this tensor and nothing else."""
    group = Ranks(2, 100)
    plan, _ = reduced(group, 60)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Piece(2, 1, 0, 1, [], block, False, b""))
    assert group.said[0][-1] == m.Done(2)
    assert isinstance(group.stored(100), Poison)
    group.pieces.clear()


def packing(group: Ranks, bandwidth: float) -> None:
    """All links are measured, as slow as that."""
    while group.pieces:
        target, message = group.pieces.pop(0)
        group.now += len(getattr(message, "data", b"")) / bandwidth
        group.tell(target, message)


def zipped() -> Packer:
    return Packer(lambda data: zlib.compress(data, 1), lambda data, nbytes: zlib.decompress(data), lambda: 0.0)


@pytest.mark.parametrize("size", [2, 3])
def test_pieces_are_packed_on_slow_links(size: int) -> None:
    """Integers in floats get much smaller, and come out as they were; before the links are known they go as they are."""
    group = Ranks(size, packer=zipped())
    probes, group.pieces = group.pieces, []
    for known in (False, True):
        if known:
            group.pieces = probes
            packing(group, 1e5)
        plan, total = reduced(group, 30_000)
        run = group.execute(plan, [1])
        base = run.base
        group.all(run)
        sent = [piece for _, piece in group.pieces if isinstance(piece, m.Piece)]
        assert sent
        assert {piece.packed for piece in sent} == {known}
        group.settle()
        for rank in range(size):
            np.testing.assert_array_equal(group.stored(base, rank), total)
            group.tell(rank, m.Release(0, [1]))
            group.said[rank].clear()


@pytest.mark.parametrize("packer", [None, zipped()])
def test_a_packed_piece_that_cannot_be_read_is_a_fault(packer: Packer | None) -> None:
    """By a worker that has no LZ4, or when it is none: this tensor is spoilt and nothing else."""
    group = Ranks(2, packer=packer)
    group.pieces.clear()
    plan, _ = reduced(group, 60)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Piece(2, 1, 0, 1, [], [], True, b"1234"))
    assert group.said[0][-1] == m.Done(2)
    assert isinstance(group.stored(100), Poison)
    group.pieces.clear()


def test_a_large_move_is_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sends only so much before it hears what has come; a core that has more to send says that it is busy."""
    monkeypatch.setattr("gt.sharding.collectives.MAX_CHUNK_BYTES", SLOT)
    group = Ranks(2, turn=1)
    plan, _ = reduced(group, 1000)
    group.tell(0, group.execute(plan, [1]))
    sent = []
    while group.cores[0].busy:
        sent.append(len(group.pieces))
        group.tell(0, None)
    assert sent == list(range(1, len(sent) + 1))
    assert len(sent) * SLOT >= 2000 - SLOT
    assert group.cores[0].running is not None
    group.pieces.clear()
