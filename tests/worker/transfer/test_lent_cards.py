"""Workers on the cards of one host lend each other memory there: pieces that the host never sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from builders import Array, Lines
from card import CARD, Allocation, installed
from one_mesh import CUT, Ranks

from gt.errors import WorkerError
from gt.ir.dtypes import as_dtype, bfloat16
from gt.sharding.collectives import MAX_CHUNK_BYTES
from gt.wire import messages as m
from gt.wire.shared_memory.memfd import machine
from gt.worker.device.cuda_ipc import GPU_SLOTS, OPENED_LOAN, CardMemory
from gt.worker.device.cuda_streams import CudaStreams


@pytest.fixture(autouse=True)
def _on_the_card() -> Iterator[None]:
    with installed():
        yield
    CARD.timeline.quick = True
    Allocation.opened.clear()


def reduced(group: Ranks, columns: int, dtype: Any = np.float32) -> tuple[m.Execute, Array]:
    """A sum over rows that lie on all workers, so large that pieces go through memory; what is to be run, and what comes out."""
    size = len(group.cores)
    array = np.random.default_rng(0).standard_normal((size * 2, columns)).astype(dtype)
    group.store(1, array, CUT)
    lines = Lines()
    total = lines.op("sum", lines.input(size * 2, columns, dtype=as_dtype(array.dtype)), axes=(0,), keepdims=False)
    plan, _ = group.define(lines.segment(lines.op("neg", total)), [CUT])
    return group.execute(plan, [1]), -array.sum(0)


def ran(group: Ranks, run: m.Execute) -> list[Any]:
    """Run it everywhere; the pieces that passed."""
    pieces: list[Any] = []
    deliver = group.deliver

    def noted(index: int = 0) -> None:
        pieces.append(group.pieces[index][1])
        deliver(index)

    group.deliver = noted  # type: ignore[method-assign]
    group.all(run)
    group.settle()
    return [piece for piece in pieces if isinstance(piece, m.Piece)]


def cards(group: Ranks) -> list[CardMemory]:
    return [card for card in group.cards if card is not None]


def met(size: int) -> Ranks:
    """Workers that have mapped each other's memory."""
    group = Ranks(size, on_card=True)
    said = [piece for _, piece in group.pieces]
    assert said == [m.Read(rank, [OPENED_LOAN]) for rank in range(size) for _ in range(size - 1)]
    group.settle()
    assert [card.readers for card in cards(group)] == [{*range(size)} - {rank} for rank in range(size)]
    return group


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("columns", [40_000, 1_200_000])
def test_pieces_stay_on_the_card(size: int, columns: int) -> None:
    """An all-reduce in one step, or two: nothing goes through the host, and what was lent comes back."""
    group = met(size)
    run, expected = reduced(group, columns)
    copies = CARD.timeline.copies
    pieces = ran(group, run)
    assert pieces
    assert all(piece.block[1] > OPENED_LOAN and not piece.data for piece in pieces)
    assert CARD.timeline.copies == copies, "to the host or from it"
    for rank in range(size):
        np.testing.assert_allclose(CARD.asnumpy(group.stored(101, rank)), expected, rtol=1e-4, atol=1e-5)
    for card in cards(group):
        card.slab.check()
    assert not any(card.slab.loans for card in cards(group))


def test_contributions_in_bfloat16_are_added() -> None:
    """In float32, and rounded: CuPy's own functions know none."""
    group = met(2)
    run, expected = reduced(group, 40_000, bfloat16.numpy)
    ran(group, run)
    found = CARD.asnumpy(group.stored(101)).astype(np.float32)
    np.testing.assert_allclose(found, expected.astype(np.float32), atol=0.1)


def test_a_piece_leaves_when_it_is_in_its_slot() -> None:
    """And the worker's thread waits for neither that nor its readers."""
    CARD.timeline.quick = False
    group = met(2)
    run, expected = reduced(group, 40_000)
    waits = CARD.timeline.waits
    ran(group, run)
    assert CARD.timeline.waits == waits
    np.testing.assert_allclose(CARD.asnumpy(group.stored(101)), expected, rtol=1e-4, atol=1e-5)
    assert not any(card.slab.loans for card in cards(group))


def test_what_finds_no_slot_goes_by_the_host() -> None:
    group = met(2)
    run, expected = reduced(group, 20_000)
    for _ in range(GPU_SLOTS):
        assert cards(group)[0].lend(0, CARD.zeros(8, np.float32), [1]) is not None
    by_rank = {rank: [piece for piece in ran(group, run) if piece.source == rank] for rank in (0,)}
    assert all(not piece.block and piece.data for piece in by_rank[0])
    np.testing.assert_allclose(CARD.asnumpy(group.stored(101)), expected, rtol=1e-4, atol=1e-5)


def test_who_has_not_mapped_it_gets_bytes() -> None:
    """It may be on another machine, or its card out of reach."""
    group = Ranks(2, on_card=True)
    group.pieces.clear()
    run, expected = reduced(group, 20_000)
    assert all(not piece.block and piece.data for piece in ran(group, run))
    np.testing.assert_allclose(CARD.asnumpy(group.stored(101, 1)), expected, rtol=1e-4, atol=1e-5)


def test_a_slot_is_given_back_when_kernels_have_read_it() -> None:
    """Not when they were told to."""
    card = CardMemory(CudaStreams(CARD))
    CARD.timeline.quick = False
    card.read([0, OPENED_LOAN + 1, 0, 4])
    assert card.was_read() == []
    while not (found := card.was_read()):
        pass
    assert found == [[0, OPENED_LOAN + 1, 0, 4]]
    assert card.was_read() == []


def test_only_what_was_announced_here_is_mapped() -> None:
    """Once; what is no memory of a card says nothing and raises nothing."""
    streams = CudaStreams(CARD)
    one, other = CardMemory(streams), CardMemory(streams)
    address = other.announce("ipc://there#memory")
    where = f"{machine()}/"
    for wrong in (
        "ipc://there",
        "ipc://there#memory",
        f"a#b#elsewhere/{'0' * 128}",
        f"a#b#{where}{'0' * 128}",
        f"a#b#{where}zz",
    ):
        assert not one.know(7, wrong)
    assert one.announce("tcp://10.0.0.1:7") == "tcp://10.0.0.1:7", "who lends nothing in the host lends nothing at all"
    assert one.know(7, address)
    assert not one.know(7, address)
    assert len(Allocation.opened) == 1
    other.opened(3)
    lent = other.lend(5, CARD.asarray(np.arange(4.0)), [3])
    assert lent is not None
    assert not lent.left
    assert lent.block == [5, OPENED_LOAN + 1, 0, 32]
    np.testing.assert_array_equal(CARD.asnumpy(one.view(7, 0, (4,), np.dtype(np.float64))), np.arange(4.0))
    with pytest.raises(WorkerError, match="no memory of its card at"):
        one.view(7, GPU_SLOTS * MAX_CHUNK_BYTES, (4,), np.dtype(np.float64))
    with pytest.raises(WorkerError, match="card's memory of worker 8 cannot be read"):
        one.view(8, 0, (4,), np.dtype(np.float64))
    assert other.lend(5, CARD.zeros(MAX_CHUNK_BYTES, np.float32), [3]) is None
    other.forget(3)
    one.forget(7)
    assert not other.slab.loans
    assert not Allocation.opened
