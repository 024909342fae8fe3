"""Batches made ahead among real processes: a thread puts large arrays while the program computes, fetches and leaves."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from daemons import Machine

import gt

pytestmark = pytest.mark.process

CUT = {"mesh": {"data": 2}, "sharding_config": {"batch": {"strategy": "data_parallel"}}}


@pytest.mark.parametrize("shared", ["", "0"], ids=["shared memory", "sockets"])
def test_a_program_computes_with_what_a_thread_puts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """The sums are those of the arrays, whether all batches are taken or the loop is left, and fetches go on beside it."""
    monkeypatch.setenv("GT_SHARED_MEMORY", shared)
    address, _, _ = machine.service(2)
    gt.connect(address, config=CUT)
    try:
        buffer = np.empty((256, 1024), np.float32)

        def batches(count: int) -> Iterator[Any]:
            for number in range(count):
                buffer[...] = number
                yield {"x": buffer, "name": f"batch {number}"}

        kept = gt.from_numpy(np.arange(1 << 16, dtype=np.float32))
        for depth, left_at in ((1, None), (3, 5), (4, None)):
            for number, batch in enumerate(gt.data.prefetch(batches(12), signal="batch", depth=depth)):
                assert batch["name"] == f"batch {number}"
                with gt.signal.context("batch"):
                    total = (batch["x"] * 2).sum()
                assert kept.numpy()[-1] == (1 << 16) - 1
                assert total.item() == 2 * number * buffer.size
                assert batch["x"].numpy()[255, 1023] == number
                if number == left_at:
                    break
        gc.collect()
        for thread in [each for each in threading.enumerate() if each.name == "gt-prefetch"]:
            thread.join(20)
            assert not thread.is_alive()
    finally:
        gt.disconnect()
