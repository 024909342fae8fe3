"""Workers with a memory limit, as processes: more data than they may hold, and the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gt
from gt.sharding import options

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()
    options.for_workers.clear()


def computed() -> list[float]:
    """Sums over 24 tensors of a MiB each, some of them put and some computed, read again and again."""
    tensors = [gt.from_numpy(np.full((512, 512), float(n), np.float32)) * 2 for n in range(24)]
    found = []
    for _ in range(3):
        found += [((one + other).t() @ one).mean().item() for one, other in zip(tensors, tensors[::-1], strict=True)]
        tensors[0] = tensors[0] + 1
    return found


def test_who_holds_what() -> None:
    """Of real workers: a large put lies in memory that is shared, what is computed in the worker's own; speeds are measured."""
    gt.init(workers=2)
    with gt.signal.context("data"):
        put = gt.from_numpy(np.ones((1024, 1024), np.float32))
    with gt.signal.context("model"):
        made = put * 2
    assert made.sum().item() == 2.0 * 1024 * 1024
    found = gt.memory()
    here = found.by_signal()
    assert (here["data"].live, here["data"].shared) == (0, put.nbytes)
    assert (here["model"].live, here["model"].shared) == (made.nbytes, 0)
    assert all(worker.high_water > worker.live and not worker.pool_size for worker in found.workers)
    devices = gt.devices()
    assert [device.worker for device in devices] == [0, 1]
    assert all(device.flops and device.bandwidth and device.memory > put.nbytes and device.cores for device in devices)


@pytest.mark.parametrize("workers", [1, 2])
def test_three_times_the_memory(workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """24 MiB of tensors in workers of 8 MB: the same bits, and the file that they went to has no name."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gt.init(workers=workers)
    free = computed()
    gt.disconnect()
    gt.config.set({"memory_pool_size": "8MB", "prefetch_buffer_size": "2MB"})
    session = gt.init(workers=workers)
    assert computed() == free
    pids = [process.pid for _, process in session.link.local.children[1:]]
    links = {str(path.readlink()) for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert any(link.startswith(str(tmp_path)) and link.endswith("(deleted)") for link in links)
    assert not list(tmp_path.rglob("*spill*"))


def test_out_of_memory_names_the_tensor_and_its_neighbours() -> None:
    """The program learns which line asked for how much, and which signals have the rest; then it goes on."""
    gt.config.set({"memory_pool_size": "4MB"})
    gt.init(workers=1)
    with gt.signal.context("weights"):
        kept = gt.full((512, 512), 3.0)
    gt.synchronize()
    with gt.signal.context("attention"):
        scores = gt.full((2048, 1024), 1.0)
    with pytest.raises(
        gt.OutOfMemory,
        match=r"(?s)needs 8,388,608 bytes.*may use 4,000,000.*1,048,576 bytes by client \d+ in signal weights \(1 tensor\)"
        r".*full of .*test_memory_limit\.py:\d+ in signal attention .*f32\[2048,1024\]",
    ):
        scores.numpy()
    assert kept.sum().item() == 3.0 * 512 * 512
    assert gt.memory().by_signal()["weights"].live == kept.nbytes
