"""A worker on the GPU with a memory limit: values go to pinned memory and the file, and come back the same.

`tests/worker/device/test_cuda_ipc.py` runs the same on a stand-in for CuPy, where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu.test_workers import connect

import gt
from gt.sharding import options
from gt.wire.shared_memory.ranges import PAGE_BYTES
from gt.worker.base.backend import backend
from gt.worker.device.gpu_buffers import DeviceBuffers
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

SIDE = 256
BYTES = SIDE * SIDE * 8
"""Of one tensor of these tests: large beside what kernels use for themselves."""


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    gt.disconnect()
    options.for_workers.clear()
    backend("cuda:0").limit(0)  # the pool is the process', and keeps what a worker limited it to


def limited(room: int, blocks: int | None = None) -> MemoryLimiter:
    """A session on one worker on the GPU with room for so many tensors, and (None: as usual) for `blocks` in pinned memory."""
    options.choose_for_workers({"memory_pool_size": room * BYTES, "prefetch_buffer_size": 2 * BYTES})
    fabric = connect(["cuda:0"])
    (core,) = fabric.workers.values()
    limiter = core.stored.limiter
    assert limiter is not None
    assert isinstance(limiter.buffers, DeviceBuffers)
    assert limiter.spill.pinned is not None, "which has its share of what the host has"
    if blocks is not None:
        limiter.spill.pinned = PinnedPool(limiter.buffers, blocks * (BYTES + PAGE_BYTES)) if blocks else None
    return limiter


def computed(count: int = 24) -> list[float]:
    """Sums over tensors that were put and computed, with views of them, read again and again."""
    random = np.random.default_rng(0)
    found = []
    with gt.signal.context("many"):
        tensors = [gt.from_numpy(random.integers(-9, 9, (SIDE, SIDE)).astype(np.float64)) * 2 for _ in range(count)]
        turned = [tensor.t() for tensor in tensors[::3]]
        for _ in range(2):
            found += [((one + other) @ one).sum().item() for one, other in zip(tensors, tensors[::-1], strict=True)]
            found += [(one - 1).max().item() for one in turned]
            tensors[0] = tensors[0] + 1
    return found


@pytest.mark.parametrize("blocks", [0, 4, 64])
def test_three_times_the_memory(blocks: int) -> None:
    """24 tensors in room for eight: the same numbers, whether pinned memory takes all that goes out, some of it, or nothing."""
    connect(["cpu"])
    free = computed()
    limiter = limited(8, blocks)
    assert computed() == free, "whole numbers, so that the order of additions shows nowhere"
    assert limiter.spill.written >= 16 * BYTES
    assert (limiter.spill.demoted > 0) == (blocks == 4)
    if limiter.spill.pinned is not None:
        limiter.spill.pinned.check()


def test_what_is_reported() -> None:
    """Pinned memory is said apart; bytes inside and outside are those of the tensors."""
    limited(4)
    with gt.signal.context("many"):
        tensors = [gt.full((SIDE, SIDE), float(n), dtype=gt.float64) for n in range(12)]
    assert [tensor.sum().item() for tensor in tensors] == [n * SIDE * SIDE for n in range(12)]
    found = gt.memory()
    (worker,) = found.workers
    many = found.by_signal()["many"]
    assert many.live + many.spilled == 12 * BYTES
    assert worker.pinned == worker.spilled == many.spilled >= 8 * BYTES
    assert worker.pinned <= worker.pinned_reserved
    assert (worker.device, worker.pool_size) == ("cuda:0", 4 * BYTES)


@pytest.mark.usefixtures("in_any_order")
@pytest.mark.parametrize("kind", ["f4", "i8", "?", "c16"])
@pytest.mark.parametrize("blocks", [0, 16])
def test_any_view_comes_back_as_it_was(kind: str, blocks: int) -> None:
    """Slices, transposes and reversed views of one buffer share it again, wherever it was."""
    found = backend("cuda:0")
    xp: Any = found.xp
    buffers = found.buffers
    assert isinstance(buffers, DeviceBuffers)
    spill = SpillStorage(pinned=PinnedPool(buffers, blocks * PAGE_BYTES) if blocks else None)
    whole = xp.asarray(np.arange(60).reshape(3, 4, 5).astype(kind))
    views = [whole, whole[1:, ::-1], whole.T, whole[..., :1]]
    key, nbytes = buffers.of(whole) or (None, 0)
    assert nbytes >= whole.nbytes
    assert [buffers.of(view) for view in views] == [(key, nbytes)] * 4
    outside = spill.put(whole, nbytes, buffers)
    looks = [SpilledValue(outside, buffers.view(view)) for view in views]
    root = spill.restored(outside, buffers)
    for view, look in zip(views, looks, strict=True):
        again = buffers.look(root, look.view)
        assert buffers.of(again) == (root.pointer.ptr, nbytes)
        assert (again.dtype, again.strides) == (view.dtype, view.strides)
        assert found.to_host(again).tobytes() == found.to_host(view).tobytes()
    spill.close()


@pytest.mark.usefixtures("in_any_order")
def test_memory_that_is_gone_while_it_is_copied_was_copied() -> None:
    """What goes out is freed at once, and the device uses its memory for something else: the copy was before that."""
    found = backend("cuda:0")
    xp, buffers = found.xp, found.buffers
    assert isinstance(buffers, DeviceBuffers)
    spill = SpillStorage(pinned=PinnedPool(buffers, 64 << 20))
    outs = []
    for n in range(20):
        value = xp.full(1 << 18, float(n), np.float64)
        outs.append(spill.put(value, (buffers.of(value) or (None, 0))[1], buffers))
        del value  # the next takes its place
    for n, outside in enumerate(outs):
        root = spill.restored(outside, buffers)
        held = found.to_host(root.look((1 << 18,), np.float64))
        assert set(held.tolist()) == {float(n)}
    spill.close()
