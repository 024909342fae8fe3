"""What a GPU does at the same time: copies come and leave while kernels run, and values are right.

`tests/worker/device/test_cuda_streams.py` runs the same on a stand-in for CuPy, where there is no GPU.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from gpu.test_workers import connect

import gt
from gt.worker.base.backend import backend
from gt.worker.device.async_copies import RING_BYTES

SIDE = 4096
"""Of the products that keep the device busy."""
PRODUCTS = 60
PATIENCE = 60.0
"""Seconds after which what should have come has not."""


def busy(computed: Any) -> Any:
    """Have the device compute for long: the event behind that."""
    xp = computed.xp
    a = xp.ones((SIDE, SIDE), np.float32)
    for _ in range(PRODUCTS):
        xp.matmul(a, a)
    return computed.streams.mark(computed.streams.compute)


def come(outgoing: Any, ways: Any) -> Any:
    """What is on its way, when it has come."""
    until = time.monotonic() + PATIENCE
    while outgoing.left:
        assert time.monotonic() < until, f"{outgoing.left} bytes have not come"
        ways.turn()
    return outgoing.array


@pytest.mark.parametrize("nbytes", [8, 3 * RING_BYTES + 24])
def test_a_fetch_comes_while_kernels_run_that_were_told_later(nbytes: int) -> None:
    """Also one that is larger than the pinned memory that it passes through."""
    computed = backend("cuda:0")
    assert computed.staging is not None
    ways = computed.staging.fetches
    host = np.arange(nbytes // 8, dtype=np.float64)
    value = computed.from_host(host) + 1
    come(ways.send(value), ways)  # pins what it needs
    outgoing = ways.send(value)
    done = busy(computed)
    np.testing.assert_array_equal(come(outgoing, ways), host + 1)
    assert not done.done, "the kernels were over before: let there be more of them"
    computed.synchronize()


@pytest.mark.parametrize("nbytes", [8, RING_BYTES // 2])
def test_a_put_comes_while_kernels_run_that_were_told_before(nbytes: int) -> None:
    """It has memory of its own, so it need not wait until they are done with theirs."""
    computed = backend("cuda:0")
    assert computed.staging is not None
    host = np.arange(nbytes // 8, dtype=np.float64)
    computed.staging.puts.bring_now(host)
    computed.synchronize()
    done = busy(computed)
    value, landing = computed.staging.puts.bring(host)
    assert landing is not None
    there = landing.event
    until = time.monotonic() + PATIENCE
    while not there.done:
        assert time.monotonic() < until, "it has not come"
    assert not done.done, "the kernels were over before: let there be more of them"
    computed.streams.compute.wait_event(there)
    np.testing.assert_array_equal(computed.to_host(value * 2), host * 2)


@pytest.mark.usefixtures("in_any_order")
def test_puts_take_the_memory_of_others_that_kernels_still_read() -> None:
    """Batches that come and go while kernels are behind: each kernel sees its own."""
    computed = backend("cuda:0")
    assert computed.staging is not None
    busy(computed)
    sums = []
    for n in range(200):
        value = computed.staging.puts.bring_now(np.full(10_000, float(n)))
        sums.append(value.sum())
        del value
    assert [float(computed.to_host(each)) for each in sums] == [n * 10_000.0 for n in range(200)]


@pytest.mark.usefixtures("in_any_order")
def test_fetches_are_of_the_values_that_were_asked_for() -> None:
    """Through a whole worker: what is freed and computed later, in the same memory, changes nothing of what is on its way."""
    connect(["cuda:0"])
    futures, expected = [], []
    for n in range(30):
        host = np.full(20_000, float(n))
        x = gt.from_numpy(host) * 2
        futures.append(x.fetch())
        x = x + 1
        futures.append(x.fetch())
        expected += [host * 2, host * 2 + 1]
    for future, host in zip(futures, expected, strict=True):
        np.testing.assert_array_equal(future.result(), host)
