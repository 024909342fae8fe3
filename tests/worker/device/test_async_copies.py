"""What comes to a GPU and leaves it passes through a ring of pinned memory, late and in parts, and is the same; nobody waits."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from card import CARD, be_late, installed
from effort import cases
from gpu.test_workers import DATA_PARALLEL, connect, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline import NONSENSE

import gt
from gt.service.in_process import Fabric
from gt.worker.base.backend import backend
from gt.worker.device import async_copies
from gt.worker.device.async_copies import PART_ALIGNMENT, PinnedRing, Staging
from gt.worker.device.cuda_streams import CudaStreams

PARTS = 3
"""Of a ring in these tests."""


@pytest.fixture(autouse=True)
def _on_a_late_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With nothing under way, and rings that hold little."""
    be_late(monkeypatch)
    monkeypatch.setattr(async_copies, "PART_BYTES", PART_ALIGNMENT)
    monkeypatch.setattr(PinnedRing.__init__, "__defaults__", (PARTS * PART_ALIGNMENT,))
    with installed():
        yield
        gt.disconnect()


def pin(nbytes: int) -> np.ndarray[Any, Any]:
    return np.full(nbytes, NONSENSE, np.uint8)


@settings(max_examples=cases(200), deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(1, 2 * PART_ALIGNMENT)), max_size=60))
def test_a_ring_gives_nothing_twice(asked: list[int | None]) -> None:
    """Parts that were not given back never touch, hold what was written there, and whoever waits long enough gets one."""
    ring = PinnedRing(pin, PARTS * PART_ALIGNMENT)
    given: deque[tuple[np.ndarray[Any, Any], int]] = deque()
    for number, nbytes in enumerate(asked):
        if nbytes is None:
            if given:
                part, wrote = given.popleft()
                assert set(part.tolist()) == {wrote}
                ring.back()
            continue
        part = ring.take(nbytes)
        while part is None:
            held, wrote = given.popleft()
            assert set(held.tolist()) == {wrote}
            ring.back()
            part = ring.take(nbytes)
        assert part.nbytes == nbytes
        part[:] = number % 251
        given.append((part, number % 251))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("kind", ["f4", "i8", "?", "c16", gt.bfloat16.numpy])
def test_any_array_comes_and_leaves_as_it_was(kind: Any, quick: bool) -> None:
    """Empty and without dimensions, turned and cut, larger than the ring, one after the other with nothing in between."""
    CARD.timeline.quick = quick
    ways = Staging(CudaStreams(CARD), pin)
    whole = np.arange(700).reshape(7, 100).astype(kind)
    arrays = [whole, whole[2, 3], whole[:0], whole.T, whole[::2, ::-3], whole[:1]]
    there = [ways.puts.bring_now(array) for array in arrays]
    parcels = [ways.fetches.send(each) for each in [*there, there[0].T, there[0][1:, ::7]]]
    for _ in range(400):
        ways.fetches.turn()
    for outgoing, array in zip(parcels, [*arrays, whole.T, whole[1:, ::7]], strict=True):
        assert not outgoing.left
        assert (outgoing.array.shape, outgoing.array.dtype) == (array.shape, array.dtype)
        assert outgoing.array.tobytes() == array.tobytes()


def test_a_value_leaves_to_where_it_is_to_go() -> None:
    """To an array that is there already, also one without dimensions; and to nothing beside it."""
    ways = Staging(CudaStreams(CARD), pin)
    around = np.full((5, 100), -1.0)
    value = ways.puts.bring_now(np.arange(300.0).reshape(100, 3))
    outgoing = ways.fetches.send(value.T, around[1:4])
    while outgoing.left:
        ways.fetches.turn()
    np.testing.assert_array_equal(around[1:4], np.arange(300.0).reshape(100, 3).T)
    assert (around[[0, 4]] == -1).all()
    single = np.zeros(())
    outgoing = ways.fetches.send(ways.puts.bring_now(np.asarray(7.0)), single)
    while outgoing.left:
        ways.fetches.turn()
    assert single == 7


def test_a_turn_copies_some_parts_however_fast_the_card_is() -> None:
    """A worker has other work to do than to empty a ring that fills faster."""
    CARD.timeline.quick = True
    ways = Staging(CudaStreams(CARD), pin)
    outgoing = ways.fetches.send(ways.puts.bring_now(np.arange(PARTS * PART_ALIGNMENT, dtype=np.float64)))
    parts, turns = 8 * PARTS, 0
    assert outgoing.left == parts * PART_ALIGNMENT, "it was started, and no more"
    while outgoing.left:
        ways.fetches.turn()
        turns += 1
        assert ways.fetches.parts_copied <= turns * async_copies.TURN_PARTS
    assert turns == -(-parts // async_copies.TURN_PARTS)


def test_a_host_that_has_no_memory_to_pin_copies_all_the_same() -> None:
    def none(nbytes: int) -> np.ndarray[Any, Any]:
        raise MemoryError(f"no {nbytes}")

    ways = Staging(CudaStreams(CARD), none)
    outgoing = ways.fetches.send(ways.puts.bring_now(np.arange(9.0)))
    while outgoing.left:
        ways.fetches.turn()
    assert outgoing.array.tolist() == list(range(9))


def test_a_fetch_is_of_the_value_that_was_asked_for() -> None:
    """What is freed, and computed later in its memory, changes nothing of what is on its way; answers come in order."""
    fabric = connect(["cuda:0"])
    (worker,) = fabric.workers.values()
    expected, found = [], []
    for n in range(6):
        host = np.arange(400.0) + n
        x = gt.from_numpy(host) * 2
        found.append(x.fetch())
        x = x + 1
        found.append(x.fetch())
        expected += [host * 2, host * 2 + 1]
        del x
    for future, host in zip(found, expected, strict=True):
        np.testing.assert_array_equal(future.result(), host)
    assert CARD.timeline.waits == 0
    assert not worker.asks
    fabric.check()


def test_a_worker_goes_on_while_a_fetch_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans behind the question are done before its answer has come."""
    fabric = connect(["cuda:0"])
    (worker,) = fabric.workers.values()
    x = gt.from_numpy(np.arange(1000.0)) + 1
    gt.synchronize()
    with monkeypatch.context() as patched:
        patched.setattr(Fabric, "_asks", lambda _: False)
        future = x.fetch()
        y = x * 3
        gt.synchronize()
        done = worker.executed
        assert worker.asks
        assert not future.done()
        (x - y).sum()
        gt.synchronize()
        assert worker.executed > done
        assert worker.asks
    fabric.run()
    np.testing.assert_array_equal(future.result(), np.arange(1000.0) + 1)


def test_a_put_waits_for_no_kernel_and_no_kernel_for_it_but_its_reader() -> None:
    """Plans behind a put run before it is there, if they do not read it."""
    fabric = connect(["cuda:0"])
    (worker,) = fabric.workers.values()
    x = gt.from_numpy(np.arange(50.0))
    y = x + 1
    gt.synchronize()
    late = gt.from_numpy(np.arange(50.0) * 3)
    z = y * 2
    gt.synchronize()
    assert len(worker.stored.coming) == 1
    total = (late + z).numpy()
    np.testing.assert_array_equal(total, np.arange(50.0) * 5 + 2)
    assert not worker.stored.coming
    gt.from_numpy(np.ones(3))
    gt.synchronize()
    assert not worker.stored.coming, "what is freed is not waited for"


def test_a_client_that_goes_is_answered_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was on its way to it comes all the same, and lets go of what it has."""
    fabric = connect(["cuda:0"])
    (worker,) = fabric.workers.values()
    x = gt.from_numpy(np.arange(1000.0)) + 1
    with monkeypatch.context() as patched:
        patched.setattr(Fabric, "_asks", lambda _: False)
        x.fetch()
        assert worker.asks
        gt.disconnect()
        fabric.run()
    assert not worker.stored.answers
    assert worker.asks
    fabric.run()
    assert not worker.asks
    assert not worker.stored.tensors


@pytest.mark.parametrize("workers", [2, 4])
def test_pieces_are_on_their_way_for_a_time(workers: int) -> None:
    """Training over workers on a late card: the numbers of one CPU, and no thread has waited."""
    found = trained(["cuda:0"] * workers, {**DATA_PARALLEL, "mesh": {"data": workers}}, steps=3)
    assert CARD.timeline.waits == 0
    np.testing.assert_allclose(found, trained(["cpu"], None, steps=3), rtol=2e-5)


def test_large_moves_pass_through_a_small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece after the other, each much larger than the ring."""
    monkeypatch.setattr("gt.worker.core.MAX_OUTGOING_PIECES", 1)
    monkeypatch.setattr("gt.sharding.collectives.MAX_CHUNK_BYTES", 16 << 10)
    fabric = connect(["cuda:0"] * 2, {"mesh": {"data": 2}, "sharding_config": {"a": {"strategy": "data_parallel"}}})
    host = np.arange(60_000.0).reshape(300, 200)
    with gt.signal.context("a"):
        x = gt.from_numpy(host) * 2
    y = x.t() @ x
    np.testing.assert_allclose(y.numpy(), (host * 2).T @ (host * 2))
    fabric.check()


def test_who_only_sends_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has a word for a worker that sends piece after piece and gets none."""
    monkeypatch.setattr("gt.worker.core.MAX_OUTGOING_PIECES", 1)
    monkeypatch.setattr("gt.sharding.collectives.MAX_CHUNK_BYTES", 1 << 10)
    fabric = connect(["cuda:0"] * 2, {"sharding_config": {
        "one": {"shard": {"axis": 0, "workers": [0]}}, "other": {"shard": {"axis": 0, "workers": [1]}},
    }})  # fmt: skip
    host = np.arange(4_000.0).reshape(400, 10)
    with gt.signal.context("one"):
        x = gt.from_numpy(host) * 2
    with gt.signal.context("other"):
        y = x + 1
    np.testing.assert_array_equal(y.numpy(), host * 2 + 1)
    fabric.check()


# puts for which the ring has no room


def large(n: int, rows: int = 40) -> Any:
    """More than many rings hold."""
    return np.arange(rows * 25.0).reshape(rows, 25) + n


def test_puts_that_find_no_room_in_the_ring_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans behind them run while most of their bytes are still on the host; the thread waits for no copy."""
    fabric = connect(["cuda:0"])
    (worker,) = fabric.workers.values()
    x = gt.from_numpy(np.arange(50.0)) + 1
    gt.synchronize()
    with monkeypatch.context() as patched:
        patched.setattr(Fabric, "_asks", lambda _: False)
        late = [gt.from_numpy(large(n)) for n in range(3)]
        gt.synchronize()
        assert worker.backend.staging.puts.waiting > large(0).nbytes
        assert worker.asks
        done = worker.executed
        y = x * 2
        gt.synchronize()
        assert worker.executed > done
        worker.check()
    for n, value in enumerate(late):
        np.testing.assert_array_equal((value + 1).numpy(), large(n + 1))
    np.testing.assert_array_equal(y.numpy(), np.arange(50.0) * 2 + 2)
    assert worker.backend.staging.puts.waiting == 0
    assert CARD.timeline.waits == 0
    assert not worker.asks


def test_a_plan_that_reads_what_still_waits_for_room_stands_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker hears whoever speaks meanwhile, and what is behind the plan keeps its place."""
    fabric = connect(["cuda:0"])
    (worker,) = fabric.workers.values()
    gt.synchronize()
    with monkeypatch.context() as patched:
        patched.setattr(Fabric, "_asks", lambda _: False)
        done = worker.executed
        total = gt.from_numpy(large(0)).sum()
        future = total.fetch()
        fabric.run()
        assert worker.executed == done
        assert worker.queue
        assert worker.running is None
        worker.check()
        assert worker.asks
    fabric.run()
    assert future.result() == large(0).sum()
    assert not worker.queue
    assert CARD.timeline.waits == 0


def test_only_so_much_waits_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """When much waits for room already, the next put waits for its turn, and its client with it."""
    monkeypatch.setattr("gt.worker.execution.tensor_store.MAX_QUEUED_PUT_BYTES", large(0).nbytes)
    fabric = connect(["cuda:0"])
    (worker,) = fabric.workers.values()
    with monkeypatch.context() as patched:
        patched.setattr(Fabric, "_asks", lambda _: False)
        late = [gt.from_numpy(large(n)) for n in range(6)]
        fabric.run()
        assert len(worker.queue) > 2
        assert worker.backend.staging.puts.waiting <= 2 * large(0).nbytes
        worker.check()
    for n, value in enumerate(late):
        np.testing.assert_array_equal(value.numpy(), large(n))
    assert CARD.timeline.waits == 0


def test_what_waits_for_room_is_kept_until_the_device_was_told_of_all_of_it() -> None:
    """The host's array stays until then, and no longer."""
    ways = Staging(CudaStreams(CARD), pin)
    array = large(1)
    seen = weakref.ref(array)
    value, incoming = ways.puts.bring(array)
    assert incoming is not None
    assert incoming.event is None
    del array
    gc.collect()
    assert seen() is not None
    for _ in range(400):
        ways.puts.turn()
    assert incoming.event is not None
    assert seen() is None
    ways.streams.compute.wait_event(incoming.event)
    outgoing = ways.fetches.send(value)
    for _ in range(400):
        ways.fetches.turn()
    np.testing.assert_array_equal(outgoing.array, large(1))


def test_what_goes_out_of_memory_before_it_has_come_is_whole() -> None:
    """A put that must make room while most of it is still on the host goes out as it was put."""
    computed = backend("cuda:0")
    assert computed.staging is not None
    value, incoming = computed.staging.puts.bring(large(2))
    assert incoming is not None
    assert incoming.event is None
    block = computed.buffers.pin(value.data.mem.size)
    computed.buffers.copy_out(value, block)
    computed.buffers.settle()
    found = block[: large(2).nbytes].view(np.float64).reshape(large(2).shape)
    np.testing.assert_array_equal(found, large(2))


@settings(max_examples=cases(60), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(("keep", "drop", "read", "fetch"))), max_size=12))
def test_any_puts_are_what_they_were(puts: list[tuple[int, str]]) -> None:
    """Large and small, read at once or never, dropped while they wait: every value is right, and nobody has waited."""
    waits = CARD.timeline.waits
    fabric = connect(["cuda:0"])
    kept: list[tuple[Any, Any]] = []
    for n, (rows, what) in enumerate(puts):
        value = gt.from_numpy(large(n, rows))
        match what:
            case "keep":
                kept.append((value, large(n, rows)))
            case "read":
                kept.append((value * 2, large(n, rows) * 2))
            case "fetch":
                np.testing.assert_array_equal(value.numpy(), large(n, rows))
        del value
    for value, expected in kept:
        np.testing.assert_array_equal(value.numpy(), expected)
    fabric.check()
    gt.disconnect()
    assert CARD.timeline.waits == waits
