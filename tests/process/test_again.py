"""A worker whose device fails starts again by itself, as real processes do it, on a stand-in for the device.

Each value is fetched from one step alone: steps together are a kernel that is written and compiled, which never calls what kills
the device, and whose folder outlives a process that becomes another. There are enough rows that a slow worker has some.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from daemons import Machine

import gt

TESTS = Path(__file__).parents[1]
WORKER = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from card import CARD, installed
from gt.worker.process import main

arctan = CARD.arctan

def fatal(*operands):
    "It kills the device: nobody notices while it is started, everybody afterwards."
    CARD.timeline.status = 700
    return arctan(*operands)

CARD.arctan = fatal
with installed():
    raise SystemExit(main(sys.argv[1:]))
"""


pytestmark = pytest.mark.process


def test_a_worker_whose_device_fails_starts_again_and_is_used(machine: Machine) -> None:
    """What it held is lost, and said to be; the same process joins as a new worker, twice, and meshes have it again."""
    machine.environment["GT_RECOVERY"] = "0"  # the program would try again once, which fails again
    dispatcher = machine.command(
        "dispatcher", "--address", "tcp://127.0.0.1:*", "--workers", "2", "--log-level", "info"
    )
    address = dispatcher.expect("listening at").split()[-1]
    cpu = machine.worker(address)
    arguments = ["--address", address, "--device", "cuda:0", "--log-level", "info"]
    worker = machine.start("a worker on a card", [sys.executable, "-P", "-c", WORKER, *arguments])
    for process, device in ((cpu, "cpu"), (worker, "cuda:0")):
        process.expect(f"on {device} at your service")
    program = machine.program(
        """
        config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
        for turn in range(3):
            gt.connect(sys.argv[1], config=config)
            with gt.signal.context("net"):
                x = gt.tensor(np.ones((64, 4), np.float32))
                say("sum", float(gt.abs(x).numpy().sum()))
                if turn < 2:
                    try:
                        gt.atan(x).numpy()
                    except gt.WorkerLost as error:
                        say("lost:", error)
            gt.disconnect()
            hear()
        """,
        address,
    )
    for ordinal, seconds in (("first", "0.5"), ("second", "1")):
        program.expect("sum 256.0")
        said = program.expect("lost:")
        assert "cuda:0 failed: cudaError700" in said
        assert "what it held is gone" in said
        worker.expect(f"it starts again in {seconds} s, for the {ordinal} time")
        worker.expect("on cuda:0 at your service")
        program.say()
    program.expect("sum 256.0")
    program.say()
    assert program.wait() == 0
    assert worker.running()
    assert cpu.running()
    assert dispatcher.running()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_it_still_ends_with_whoever_started_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe that it watches stays open through the restart, and nothing of it is left when that closes."""
    dispatcher = machine.command(
        "dispatcher", "--address", "tcp://127.0.0.1:*", "--workers", "1", "--log-level", "info"
    )
    monkeypatch.setenv("GT_RECOVERY", "0")
    address = dispatcher.expect("listening at").split()[-1]
    folder = machine.temp / "sockets"
    folder.mkdir()
    read, write = os.pipe()
    arguments = ["--address", address, "--device", "cuda:0", "--watch", str(read), "--folder", str(folder)]
    worker = subprocess.Popen(
        [sys.executable, "-P", "-c", WORKER, *arguments, "--log-level", "info"],
        env=machine.environment, pass_fds=(read,), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        os.close(read)
        gt.connect(address)
        with pytest.raises(gt.WorkerLost, match="what it held is gone"):
            gt.atan(gt.tensor(np.ones(3, np.float32))).numpy()
        gt.disconnect()
        assert worker.stderr is not None
        said = [next(line for line in worker.stderr if "at your service" in line) for _ in range(2)]
        assert "worker 1 on cuda:0" in said[1]
        gt.connect(address)
        assert gt.ones(3).sum().item() == 3
        gt.disconnect()
        os.close(write)
        assert worker.wait(30) == 0
        assert not folder.exists()
    finally:
        worker.kill()
        worker.communicate()
