"""GPU workers with a memory limit where no GPU is: on a stand-in with CuPy's manners, values go to pinned memory and the file
and come back the same. A first run on a card has only to show that CuPy does what it says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from card import CARD, MemoryPointer, installed
from gpu.test_workers import connect

import gt
from gt import options
from gt.ranges import PAGE
from gt.worker.backend import DeviceBuffers
from gt.worker.pinned import Pinned
from gt.worker.spill import Spill, Spilled

SIDE = 32
BYTES = SIDE * SIDE * 8


@pytest.fixture(autouse=True)
def _on_the_card() -> Iterator[None]:
    with installed():
        yield
        gt.disconnect()
        options.for_workers.clear()


def computed(count: int = 24) -> list[float]:
    """Sums over tensors that were put and computed, with views of them, read again and again."""
    random = np.random.default_rng(0)
    tensors = [gt.from_numpy(random.integers(-9, 9, (SIDE, SIDE)).astype(np.float64)) * 2 for n in range(count)]
    turned = [tensor.t() for tensor in tensors[::3]]
    found = []
    for _ in range(3):
        found += [((one + other) @ one).sum().item() for one, other in zip(tensors, tensors[::-1], strict=True)]
        found += [(one - 1).max().item() for one in turned]
        tensors[0] = tensors[0] + 1
    return found


@pytest.mark.parametrize("host", [0, 4, 64])
@pytest.mark.parametrize("workers", [1, 2])
def test_three_times_the_memory_of_a_card(workers: int, host: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 tensors in room for eight: the same bits, whether pinned memory takes all that goes out, some of it, or nothing."""
    connect(["cpu"] * workers)
    free = computed()
    options.choose_for_workers({"memory_pool_size": 8 * BYTES, "prefetch_buffer_size": 2 * BYTES})
    fabric = connect(["cuda:0"] * workers)
    for core in fabric.workers.values():
        keeping = core.stored.keeping
        assert keeping is not None
        assert isinstance(keeping.buffers, DeviceBuffers)
        assert keeping.spill.pinned is not None, "which is half of what the host has"
        keeping.spill.pinned = Pinned(keeping.buffers, host * BYTES) if host else None
    assert computed() == free
    for core in fabric.workers.values():
        core.check()
    (core, *_) = fabric.workers.values()
    spill = core.stored.keeping.spill  # type: ignore[union-attr]
    assert spill.written >= 16 * BYTES
    assert (spill.demoted > 0) == (host == 4)
    assert CARD.limits[-1] == 8 * BYTES, "CuPy's pool is held to the same limit"


def test_what_is_reported() -> None:
    """Pinned memory is said apart; bytes inside and outside are those of the tensors."""
    options.choose_for_workers({"memory_pool_size": 4 * BYTES})
    connect(["cuda:0"])
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


@pytest.mark.parametrize("kind", ["f4", "i8", "?", "c16"])
def test_any_view_comes_back_as_it_was(kind: str) -> None:
    """Slices, transposes and reversed views of one buffer share it again, wherever it was."""
    buffers = DeviceBuffers(CARD)
    for spill in (Spill(), Spill(pinned=Pinned(buffers, 16 * PAGE))):
        whole = CARD.asarray(np.arange(60).reshape(3, 4, 5).astype(kind))
        views = [whole, whole[1:, ::-1], whole.T, whole[..., :1]]
        key, nbytes = buffers.of(whole) or (None, 0)
        assert nbytes == whole.nbytes
        assert [buffers.of(view) for view in views] == [(key, nbytes)] * 4
        before = MemoryPointer.copies
        outside = spill.put(whole, nbytes, buffers)
        assert MemoryPointer.copies == before + 1
        looks = [Spilled(outside, buffers.view(view)) for view in views]
        root = spill.restored(outside, buffers)
        for view, look in zip(views, looks, strict=True):
            again = buffers.look(root, look.view)
            assert buffers.of(again) == (root.array.data.ptr, nbytes)
            assert (again.dtype, again.strides) == (view.dtype, view.strides)
            assert CARD.asnumpy(again).tobytes() == CARD.asnumpy(view).tobytes()
        spill.close()
