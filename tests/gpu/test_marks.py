"""Marks of a worker on the GPU: what it reads again has the same bits in the same layout on the device, nothing of it is kept for
a mark, what an earlier one has is not copied again, and what is computed while a thread copies changes nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu.test_workers import connect
from mark_histories import WHAT, run

import gt
from gt.sharding import options
from gt.wire import messages as m
from gt.wire.shared_memory.ranges import PAGE_BYTES
from gt.worker.base.backend import backend
from gt.worker.base.events import MarkIn, MarkWork, ToDispatcher
from gt.worker.core import WorkerCore
from gt.worker.cuda_graphs.captured_range import MAX_COPIED_BYTES
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.execution.tensor_store import Poison, TensorStore
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

NEXT = 99
"""The client's number after a rewind."""
SIDE = 64


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    gt.disconnect()
    options.for_workers.clear()
    backend("cuda:0").limit(0)


def only(core: WorkerCore, event: Any) -> Any:
    """What a worker sends for an event, but for faults that it finds meanwhile."""
    found = core.handle(event, 0.0)
    while core.asks:
        found += core.handle(None, 0.0)
    (sent,) = [each for each in found if not (isinstance(each, ToDispatcher) and isinstance(each.message, m.Poisoned))]
    return sent


def restored(core: WorkerCore, root: Path) -> dict[int, Any]:
    """The tensors of the session, taken to a mark and read again for another client."""
    files = MarkFiles(root / "marks", lambda: 0)
    (client,) = core.stored.tensors
    mesh = max(core.meshes)
    work = only(core, m.TakeMark(1, client, mesh))
    assert isinstance(work, MarkWork)
    assert files.do(work) == m.MarkTaken(1, [], work.nanoseconds)
    assert core.marks.pinned == {}
    answer = files.do(only(core, m.RestoreMark(1, NEXT, mesh)))
    assert isinstance(answer, MarkIn)
    assert only(core, answer) == ToDispatcher(m.MarkRestored(1, NEXT, []))
    return core.stored.tensors[NEXT]


def test_what_is_restored_has_the_same_bits_and_layout(tmp_path: Path) -> None:
    """Tensors that were put, computed, turned, cut and expanded, of several dtypes, with and without elements."""
    (core,) = connect(["cuda:0"]).workers.values()
    random = np.random.default_rng(0)
    x = gt.from_numpy(random.standard_normal((SIDE, SIDE)).astype(np.float32))
    kept = [
        x,
        x @ x,
        x.t(),
        x[:, 3:40],
        x[:1].expand(SIDE, SIDE),
        x.sum(),
        x[:0],
        x.to(gt.bfloat16),
        x > 0,
        x.to(gt.complex64),
    ]
    kept += [(each + each).t() for each in kept if each.ndim == 2]
    total = kept[1].sum().item()
    before = core.stored.tensors[next(iter(core.stored.tensors))]
    found = restored(core, tmp_path)
    assert found.keys() == before.keys()
    assert len(found) > len(kept) / 2
    for tensor, value in before.items():
        again = found[tensor]
        assert (again.dtype, again.shape) == (value.dtype, value.shape)
        assert again.strides == value.strides or not value.size
        assert core.backend.to_host(again).tobytes() == core.backend.to_host(value).tobytes()
    assert kept[1].sum().item() == total


def test_a_check_that_found_an_error_is_a_fault_in_a_mark(tmp_path: Path) -> None:
    """An index out of range, of which the device has not said yet that it is: what is restored is poison."""
    (core,) = connect(["cuda:0"]).workers.values()
    x = gt.from_numpy(np.ones((4, 3), np.float32))
    index = gt.from_numpy(np.full((4, 1), 7))
    wrong = gt.gather(x, 1, index) * 2
    sound = x * 2
    assert sound.sum().item() == 24
    found = restored(core, tmp_path)
    assert any(isinstance(value, Poison) and "7" in value.fault[1] for value in found.values())
    assert any(not isinstance(value, Poison) for value in found.values())
    del wrong


def here(core: WorkerCore, client: int, tensor: int) -> np.ndarray[Any, Any]:
    """A stored value on the host, wherever it is."""
    stored = core.stored
    value = stored.tensors[client][tensor]
    if type(value) is SpilledValue:
        assert stored.limiter is not None
        value = stored.limiter.fetched(value, (client, tensor), stored.tensors, stored.queue)
    return core.backend.to_host(value)


def test_what_was_evicted_is_in_a_mark(tmp_path: Path) -> None:
    """Also where not everything fits on the device, neither before nor after."""
    nbytes = SIDE * SIDE * 8
    options.choose_for_workers({"memory_pool_size": 12 * nbytes})
    (core,) = connect(["cuda:0"]).workers.values()
    tensors = [gt.from_numpy(np.full((SIDE, SIDE), float(at))) for at in range(20)]
    sums = [tensor.sum().item() for tensor in tensors]
    before = core.stored.tensors[next(iter(core.stored.tensors))]
    assert any(type(value) is SpilledValue for value in before.values())
    found = restored(core, tmp_path)
    assert found.keys() == before.keys()
    (client,) = core.stored.tensors.keys() - {NEXT}
    for tensor in list(found):
        assert here(core, NEXT, tensor).tobytes() == here(core, client, tensor).tobytes()
    assert [tensor.sum().item() for tensor in tensors] == sums


@pytest.mark.usefixtures("in_any_order")
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_a_mark_restores_what_there_was(seed: int, tmp_path: Path) -> None:
    """Values are computed, looked at, evicted, relocated and freed between marks, and while they are written."""
    computed = backend("cuda:0")
    assert computed.pinning is not None
    spill = SpillStorage(pinned=PinnedPool(computed.pinning, 16 * PAGE_BYTES) if seed % 2 else None)
    limiter = MemoryLimiter(computed.buffers, spill, 24 * PAGE_BYTES, small=0)
    draw = random.Random(seed)
    actions = [(draw.choice(WHAT), draw.randrange(10), draw.randint(1, 3)) for _ in range(60)]
    run(TensorStore(computed, limiter, [], []), tmp_path, PAGE_BYTES // 4, actions)
    spill.close()


@pytest.mark.usefixtures("in_any_order")
def test_a_mark_has_what_there_was_though_training_goes_on(tmp_path: Path) -> None:
    """Parameters die and their memory is used again, also by CUDA graphs, while a thread writes them in its own time."""
    (core,) = connect(["cuda:0"]).workers.values()
    gt.manual_seed(0)
    model = gt.nn.Linear(SIDE, SIDE)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32))

    def steps(count: int) -> float:
        for _ in range(count):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
        return float(loss.item())

    steps(6)
    files = MarkFiles(tmp_path / "marks", lambda: 0)
    (client,) = core.stored.tensors
    for mark in range(1, 5):
        there = {tensor: core.backend.to_host(value) for tensor, value in core.stored.tensors[client].items()}
        work = only(core, m.TakeMark(mark, client, max(core.meshes)))
        with ThreadPoolExecutor(1) as thread:
            written = thread.submit(files.do, work)
            steps(3)
            assert written.result() == m.MarkTaken(mark, [], work.nanoseconds)
        assert core.backend.reads is not None
        answer = files.do(only(core, m.RestoreMark(mark, NEXT, max(core.meshes))))
        only(core, answer)
        found = core.stored.tensors[NEXT]
        assert found.keys() == there.keys()
        for tensor, value in there.items():
            assert core.backend.to_host(found[tensor]).tobytes() == value.tobytes()
        only(core, m.Forget(NEXT))


def test_what_an_earlier_mark_has_is_not_copied_again(tmp_path: Path) -> None:
    """A loop of puts beside a tensor that stays: each mark writes what is new."""
    (core,) = connect(["cuda:0"]).workers.values()
    kept = gt.from_numpy(np.ones((SIDE, SIDE), np.float32))
    files = MarkFiles(tmp_path / "marks", lambda: 0)
    sizes = []
    for mark in range(1, 5):
        new = gt.from_numpy(np.full(8, float(mark), np.float32))
        assert (new.sum() + kept[0, 0]).item() == 8 * mark + 1
        (client,) = core.stored.tensors
        files.do(only(core, m.TakeMark(mark, client, max(core.meshes))))
        files.do(MarkWork(m.DropMark(mark - 1), -1))
        sizes.append((tmp_path / "marks" / f"{mark}-0").stat().st_size)
    assert sizes[0] > kept.nbytes
    assert max(sizes[1:]) < kept.nbytes / 2


def test_marks_are_in_no_graphs_way(tmp_path: Path) -> None:
    """What graphs have written is not held while a thread copies it in its own time: they write there again."""
    (core,) = connect(["cuda:0"]).workers.values()
    if core.graphs is None:
        pytest.skip("graphs are off")
    side = math.isqrt(MAX_COPIED_BYTES // 4) + 1
    model = gt.nn.Linear(side, side)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = gt.from_numpy(np.ones((8, side), np.float32))

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
        loss.item()

    steps(8)
    files = MarkFiles(tmp_path / "marks", lambda: 0)
    (client,) = core.stored.tensors
    for mark in range(1, 5):
        work = only(core, m.TakeMark(mark, client, max(core.meshes)))
        steps(4)
        assert files.do(work) == m.MarkTaken(mark, [], work.nanoseconds)
        files.do(MarkWork(m.DropMark(mark - 1), -1))
        del work
    assert core.graphs.launched > 15
    assert "results are held that are more than is worth copying" not in core.graphs.without
