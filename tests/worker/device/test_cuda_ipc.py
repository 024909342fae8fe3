"""GPU workers with a memory limit where no GPU is: on a stand-in with CuPy's manners all of `tests/gpu/test_memory.py` holds. A
first run on a card has only to show that CuPy does what it says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from card import CARD, installed
from gpu import test_memory
from gpu.test_memory import BYTES, computed, limited
from gpu.test_workers import connect, sharded

import gt
from gt.sharding import options
from gt.wire.shared_memory.ranges import PAGE_BYTES
from gt.worker.device.cuda_streams import CudaStreams
from gt.worker.device.gpu_buffers import DeviceBuffers
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.spill.spill_file import SpillStorage


@pytest.fixture(autouse=True, params=["at once", "late"])
def _on_the_card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whether its copies are done at once, or when somebody waits for them."""
    monkeypatch.setattr(CARD.timeline, "quick", request.param == "at once")
    with installed():
        yield
        gt.disconnect()
        options.for_workers.clear()


globals().update({name: test for name, test in vars(test_memory).items() if name.startswith("test_")})


@pytest.mark.parametrize("blocks", [0, 4])
def test_two_workers_have_a_limit_each(blocks: int) -> None:
    """What goes between them finds room too; each has half of every tensor, and room for less than a third of that."""
    connect(["cpu"])
    free = computed(12)
    options.choose_for_workers({"memory_pool_size": 2 * BYTES})
    fabric = connect(["cuda:0"] * 2, {"sharding_config": {"*": {"strategy": "data_parallel"}}})
    for core in fabric.workers.values():
        assert core.stored.limiter is not None
        core.stored.limiter.spill.pinned = PinnedPool(core.backend.pinning, blocks * BYTES) if blocks else None
    assert computed(12) == free
    assert sharded(fabric)
    for core in fabric.workers.values():
        assert core.stored.limiter is not None
        assert core.stored.limiter.spill.written > 4 * BYTES
    fabric.check()


def test_cupys_pool_is_held_to_the_limit() -> None:
    """To the one that was said, or else to most of what is free."""
    limited(3)
    assert CARD.timeline.pool.limits[-1] == 3 * BYTES
    options.for_workers.clear()
    connect(["cuda:0"])
    free, _ = CARD.cuda.runtime.memGetInfo()
    assert CARD.timeline.pool.limits[-1] == int(0.9 * free)
    assert gt.memory().workers[0].pool_size == CARD.timeline.pool.limits[-1]


def test_a_host_with_little_to_spare_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values go to the file then, and nothing fails."""
    monkeypatch.setattr("gt.worker.device.gpu_buffers.available_memory", lambda: BYTES)
    limiter = limited(4)
    tensors = [gt.full((256, 256), float(n), dtype=gt.float64) for n in range(8)]
    assert [tensor.mean().item() for tensor in tensors] == list(range(8))
    assert limiter.spill.pinned is not None
    assert limiter.spill.pinned.reserved == 0
    assert limiter.spill.ranges.used_bytes > 0


def test_one_copy_takes_a_buffer_out_and_one_brings_it_back() -> None:
    """However many values look at it."""
    buffers = DeviceBuffers(CudaStreams(CARD))
    spill = SpillStorage(pinned=PinnedPool(buffers, PAGE_BYTES))
    whole = CARD.asarray(np.arange(60.0))
    before = CARD.timeline.copies
    outside = spill.put(whole, whole.nbytes, buffers)
    root = spill.restored(outside, buffers)
    buffers.look(root, buffers.view(whole[::2]))
    buffers.look(root, buffers.view(whole))
    assert CARD.timeline.copies == before + 2
    spill.close()
