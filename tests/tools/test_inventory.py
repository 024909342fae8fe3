"""`gt.memory()` and `gt.devices()`: bytes are those that NumPy would count, each memory once, under who made it where."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gt
from gt.sharding import options
from gt.tools.inventory import Device, Devices, Health, Holder, Memory, WorkerMemory
from gt.wire import messages as m

ROWS = {"sharding_config": {"rows": {"shard": {"axis": 0, "workers": [0, 1]}}}}
FLOAT = np.dtype(np.float32).itemsize


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()
    options.for_workers.clear()


def test_bytes_by_worker_client_and_signal() -> None:
    """A cut tensor is half on each worker, a whole one is on both, and each is counted in its innermost signal."""
    gt.connect("inproc", workers=2, config=ROWS)
    with gt.signal.context("rows"):
        cut = gt.zeros(100, 40)
        with gt.signal.context("inner"):
            more = cut + 1
    whole = gt.from_numpy(np.ones((10, 10), np.float32))
    assert not gt.memory().spilled
    found = gt.memory()
    here = found.by_signal()
    assert here.keys() == {"rows", "rows/inner", ""}
    assert here["rows"] == Holder(-1, found.client, "rows", 2, cut.nbytes, 0, 0)
    assert here["rows/inner"].live == more.nbytes == 100 * 40 * FLOAT
    assert here[""].live == 2 * whole.nbytes
    assert [worker.live for worker in found.workers] == [100 * 40 * FLOAT + 100 * FLOAT] * 2
    assert found.live == found.by_client()[found.client].live == sum(holder.live for holder in found.holders)
    assert all(worker.pool_used == worker.live and not worker.pool_size for worker in found.workers)
    del cut
    assert gt.memory().by_signal().keys() == {"rows/inner", ""}


def test_memory_at_which_several_look_is_counted_once() -> None:
    """Views and what they look at are one array's bytes, with the tensor that was made first."""
    gt.connect("inproc")
    with gt.signal.context("base"):
        base = gt.zeros(64, 64) + 1
        gt.synchronize()
    with gt.signal.context("views"):
        turned, flat = base.t() * 1, base.reshape(-1)
        gt.flush()
    found = gt.memory().by_signal()
    assert found["base"].live == base.nbytes
    assert found["views"].live == turned.nbytes, "what was computed, and nothing for the view"
    assert found["views"].tensors == 1 + (flat.shape == (64 * 64,))


def test_what_comes_out_of_a_loop_is_found_by_its_signal() -> None:
    """Thousands of runs leave what the last one left: what is remembered of runs does not grow with their number."""
    gt.connect("inproc")
    kept = []
    for n in range(3000):
        with gt.signal.context("loop"):
            x = gt.full((8,), float(n))
        if n % 1000 == 0:
            kept.append(x)
        gt.flush()
    (core,) = gt.client.session.sessions.current().link.fabric.workers.values()
    assert sum(map(len, core.stored.origins.made.values())) < 2000
    assert gt.memory().by_signal()["loop"] == Holder(-1, gt.memory().client, "loop", 4, 4 * 8 * FLOAT, 0, 0)


def test_what_went_out_is_spilled_and_the_pool_never_held_more_than_it_may() -> None:
    """Four pools' worth of tensors: what is inside and what is out are all of them; the high-water mark is below the limit."""
    gt.config.set({"memory_pool_size": "64KiB", "prefetch_buffer_size": 0})
    gt.connect("inproc")
    with gt.signal.context("many"):
        tensors = [gt.full((64, 64), float(n)) for n in range(16)]
    total = sum((tensor * 2).sum().item() for tensor in tensors)
    assert total == sum(2.0 * n * 64 * 64 for n in range(16))
    found = gt.memory()
    (worker,) = found.workers
    many = found.by_signal()["many"]
    assert many.live + many.spilled == sum(tensor.nbytes for tensor in tensors) == 4 * (64 << 10)
    assert worker.pool_used == worker.live <= worker.pool_size == 64 << 10
    assert worker.live <= worker.high_water <= worker.pool_size
    assert worker.spilled == found.spilled == many.spilled >= 3 * (64 << 10)


def test_a_small_service_is_printed_as_tables() -> None:
    """What is empty is left out; the asking client is marked; bytes have units."""
    holder = Holder(0, 3, "net/first", 2, 4096, 0, 1 << 20)
    worker = WorkerMemory(0, "cpu", 4096, 0, 1 << 20, 4096, 8192, 0, 0, 1 << 20, None)
    assert str(Memory(3, (worker,), (holder,))).splitlines() == [
        "worker  device  live   shared  pool            high water  pinned  spilled",
        "0       cpu     4 KiB  0 B     4 KiB of 1 MiB  8 KiB       0 B     1 MiB",
        "",
        "client        signal     tensors  live   shared  spilled",
        "3 (this one)  net/first  2        4 KiB  0 B     1 MiB",
    ]
    gpu = Device(1, "cuda", "cuda:0", "a card", "here", 8, 80 << 30, 50e12, 2e12)
    assert str(Devices((gpu,))).splitlines() == [
        "worker  device  model   host  cores  memory  float32 products  element-wise",
        "1       cuda:0  a card  here  8      80 GiB  50,000 Gflop/s    2,000.0 GB/s",
    ]
    told = Device(
        2, "cuda", "cuda:1", "", "", 0, 0, None, None, "", Health(2.4, 92, 312.4, 700.0, 0.93, 5 << 30, 0, ("a", "b"))
    )
    mute = Device(
        3, "cuda", "cuda:2", "", "", 0, 0, None, None, "", Health(2.4, None, None, None, None, None, None, ())
    )
    assert str(Devices((told, mute))).splitlines() == [
        "worker  device  temperature  power         busy  in use  memory errors  slowed by  as of",
        "2       cuda:1  92 °C        312 of 700 W  93%   5 GiB   0              a, b       2 s ago",
        "3       cuda:2                                                                     2 s ago",
    ]


def test_devices_are_what_workers_said_of_themselves() -> None:
    """In-memory workers say what they are and were never measured."""
    gt.connect("inproc", workers=3)
    found = gt.devices()
    assert [device.worker for device in found] == [0, 1, 2]
    assert all((device.kind, device.name, device.flops) == ("cpu", "cpu", None) for device in found)
    assert found[0] == found.devices[0]
    assert len(found) == 3


def test_devices_say_how_a_gpu_was_last_in_plain_units() -> None:
    """Watts, shares and bytes, and None for what the GPU does not tell; a worker that said nothing has no health."""
    gt.connect("inproc", workers=2)
    assert [device.health for device in gt.devices()] == [None, None]
    fabric = gt.client.session.sessions.current().link.fabric
    fabric.say(b"pulse", m.Hello(m.VERSION, "pulse", {"address": "worker-1"}))
    for sample, expected in (
        (m.Health(71, 312_500, 700_000, 93, 5 << 30, 80 << 30, 0, ["power cap"]),
         (71, 312.5, 700.0, 0.93, 5 << 30, 0, ("power cap",))),
        (m.Health(-1, -1, -1, -1, -1, -1, -1, []), (None, None, None, None, None, None, ())),
    ):  # fmt: skip
        fabric.say(b"pulse", sample)
        silent, told = gt.devices()
        assert silent.health is None
        assert 0 <= told.health.age < 30
        assert told.health == Health(told.health.age, *expected)
