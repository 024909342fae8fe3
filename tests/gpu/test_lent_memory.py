"""GPU memory that passes between processes by CUDA IPC: two on one card, of which one lends and the other reads."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from gt.wire.shared_memory.memfd import machine
from gt.worker.base.backend import backend
from gt.worker.device.cuda_ipc import OPENED_LOAN

READER = """
import json, sys
import numpy as np
from gt.worker.base.backend import backend

on = backend("cuda:0")
card = on.card_memory()
address, columns = json.loads(sys.stdin.readline())
assert card.know(0, address), "it cannot be mapped"
print("mapped", flush=True)
for line in sys.stdin:
    block = json.loads(line)
    found = card.view(0, block[2], (4, columns), np.dtype(np.float32))
    total = found + 1
    card.read(block)
    while not card.was_read():
        pass
    print(json.dumps(np.asarray(on.to_host(total)).sum(1).tolist()), flush=True)
card.forget(0)
"""


def test_another_process_reads_what_one_lends() -> None:
    """What is copied to a slot after the other has mapped it, each slot in turn, and again what is lent in its place."""
    on = backend("cuda:0")
    card = on.card_memory() if on.card_memory is not None else None
    assert card is not None
    assert machine(), "processes of one machine know each other by it"
    columns = 100_000
    command = [sys.executable, "-c", READER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            print(json.dumps([card.announce("tcp://127.0.0.1:1#"), columns]), file=reader.stdin, flush=True)
            assert reader.stdout.readline() == "mapped\n"
            card.opened(1)
            numbers = np.random.default_rng(0)
            for _ in range(20):
                array: Any = numbers.integers(-4, 5, (4, columns)).astype(np.float32)
                loan = card.lend(0, on.from_host(array), [1])
                assert loan is not None
                assert loan.block[1] > OPENED_LOAN
                while loan.left:
                    pass
                print(json.dumps(loan.block), file=reader.stdin, flush=True)
                assert json.loads(reader.stdout.readline()) == (array + 1).sum(1).tolist()
                card.back(1, [loan.block[1]])
            reader.stdin.close()
            assert reader.wait(60) == 0
        finally:
            reader.kill()
    card.forget(1)
    card.slab.check()
    assert not card.slab.loans
