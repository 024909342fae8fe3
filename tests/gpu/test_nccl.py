"""NCCL as far as one GPU shows it: a communicator of one rank makes all calls, and two ranks on one card are refused.

More ranks need more cards, which were not at hand: what many do together is tested on a stand-in (`tests/worker/test_nccl.py`).
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from gt.worker.backend import backend
from gt.worker.joint import Reduction
from gt.worker.nccl import ID_BYTES, Communicators, Nccl, in_thread

COMPUTED = backend("cuda:0")
if COMPUTED.nccl is None:
    pytest.skip("no NCCL, or CuPy before 14", allow_module_level=True)
SECONDS = 60.0


def nccl() -> Nccl:
    assert COMPUTED.nccl is not None
    return COMPUTED.nccl


def join(count: int) -> list[Any]:
    """Each rank's communicator, or why it has none; all on the one card."""
    unique_id = nccl().new_id()
    assert len(unique_id) == ID_BYTES
    found: list[Any] = [None] * count

    def one(rank: int) -> None:
        try:
            found[rank] = nccl().join(count, unique_id, rank)
        except RuntimeError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return found


def test_one_rank_makes_every_call() -> None:
    """With the dtypes and operations that workers ask for, on the stream of collectives, between kernels of the other."""
    woken = threading.Event()
    all_groups = Communicators(nccl(), SECONDS, time.monotonic, in_thread, woken.set)
    group = all_groups.group(1, (0,), 0)
    group.new_id(1)
    group.join(woken.set)
    assert woken.wait(SECONDS)
    joining = group.joining
    assert joining is not None
    assert joining.error is None
    group.joined(joining)
    xp = COMPUTED.xp
    for dtype in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"):
        for operation in ("sum", "prod", "max", "min"):
            reduction = Reduction(dtype, 1, operation)
            x = xp.arange(12).astype(dtype)
            outs = [xp.empty_like(x) for _ in range(5)]
            ends = [
                group.run(str, lambda calls, x=x, out=outs[0], r=reduction: calls.all_reduce(x, out, r)),
                group.run(str, lambda calls, x=x, out=outs[1], r=reduction: calls.reduce_scatter(x, out, r)),
                group.run(str, lambda calls, x=x, out=outs[2], r=reduction: calls.reduce([x], out, r)),
                group.run(str, lambda calls, x=x, out=outs[3]: calls.all_gather(x, out)),
                group.run(str, lambda calls, x=x, out=outs[4]: calls.broadcast(x, out, 0)),
            ]
            for out in outs:
                np.testing.assert_array_equal(COMPUTED.to_host(out + 0), np.arange(12).astype(dtype))
            assert not any(end.all()[0] for end in ends)
    all_groups.look(time.monotonic() + 2 * SECONDS)
    assert group.generation == 1, "what is over is not too late"
    group.give_up("enough")
    assert not group.broken(1)


def test_two_ranks_on_one_card_are_refused() -> None:
    """Hence the dispatcher has workers that share a card go the other way."""
    assert all(isinstance(found, RuntimeError) for found in join(2))
