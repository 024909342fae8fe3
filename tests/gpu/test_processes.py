"""Real daemons whose workers are on the GPU: several on one card, mixed with CPUs, and the examples as users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from daemons import Machine

from gt.worker.base.backend import count_devices

ROOT = Path(__file__).parents[2]
TRAIN = """
    import json
    WIDE = 1024  # gradients are so large that pieces of them pass through memory that workers share
    axis = "model" if sys.argv[2] == "tensor_parallel" else "data"
    def train(devices, config):
        from gt.service.launch import Local
        from gt.service import session
        local = Local(len(devices), devices=devices)
        session._join(local.address, gt.Config.from_plain(config) if config else None, 60.0, local)
        gt.manual_seed(0)
        numbers = np.random.default_rng(0)
        losses = []
        with gt.signal.context("data"):  # rules are for signals alone
            x, y = gt.from_numpy(numbers.standard_normal((64, 32), np.float32)), gt.from_numpy(numbers.integers(0, 5, 64))
        with gt.signal.context("net"):
            model = gt.nn.Sequential(gt.nn.Linear(32, WIDE), gt.nn.LayerNorm(WIDE), gt.nn.ReLU(), gt.nn.Linear(WIDE, 5))
            optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(20):
                loss = gt.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss)
        found = np.array([loss.item() for loss in losses])
        held = gt.memory().by_signal()["data"]
        copies = len(devices) if config and axis == "model" else 1
        assert held.live + held.shared == copies * (x.nbytes + y.nbytes), "each worker has its part, or all, alone"
        gt.disconnect()
        return found
    TWO = {"mesh": {axis: 2}, "sharding_config": {"*": {"strategy": sys.argv[2]}}}
    reference = train(["cpu"], None)
    devices = sys.argv[1].split(",")
    np.testing.assert_allclose(train(devices, TWO if len(devices) == 2 else None), reference, rtol=1e-4)
    say("the same")
"""
SPILL = """
    gt.config.set({"memory_pool_size": "64MB"})
    numbers = np.random.default_rng(0)
    arrays = [numbers.standard_normal((1024, 1024), np.float32) for _ in range(48)]
    held = [gt.from_numpy(x) * 2 + 1 for x in arrays]
    total = sum((x.sum() for x in held), gt.zeros(()))
    np.testing.assert_allclose(total.item(), sum(float((x * 2 + 1).sum()) for x in arrays), rtol=1e-3)
    for x, host in zip(held, arrays):
        np.testing.assert_array_equal(x.numpy(), host * 2 + 1)
    say("the same")
"""


@pytest.mark.parametrize("devices", ["cuda:0", "cuda:0,cuda:0", "cuda:0,cpu", "cpu,cuda:0"])
def test_training_is_that_of_a_cpu_worker(devices: str, machine: Machine) -> None:
    program = machine.program(TRAIN, devices, "data_parallel")
    program.expect("the same", 300.0)
    assert program.wait() == 0


@pytest.mark.skipif(count_devices() < 2, reason="it takes two GPUs")
@pytest.mark.parametrize("strategy", ["data_parallel", "tensor_parallel", "fully_sharded"])
@pytest.mark.parametrize("without", [(), ("GT_NCCL",), ("GT_NCCL", "GT_SHARED_MEMORY")])
def test_two_cards_train_as_one_cpu_worker(strategy: str, without: tuple[str, ...], machine: Machine) -> None:
    """By NCCL, by memory that one lends the other, and by the host."""
    machine.environment.update(dict.fromkeys(without, "0"))
    program = machine.program(TRAIN, "cuda:0,cuda:1", strategy)
    program.expect("the same", 300.0)
    assert program.wait() == 0


def test_tensors_of_three_times_the_pool(machine: Machine) -> None:
    program = machine.program(SPILL)
    program.expect("the same", 300.0)
    assert program.wait() == 0


def test_the_digits_are_learnt_as_on_cpus() -> None:
    """Sharded over four workers on one card, and on one worker, with the same losses."""
    command = [sys.executable, "examples/digits.py", "--config", "configs/digits.yaml"]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=wide, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"over \d+ steps: (\S+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) < 1e-2


BLOCKS = """
    numbers = np.random.default_rng(0)
    held = []
    for turn in range(12):
        host = numbers.standard_normal((1024, 1024 * (1 + turn % 2)), np.float32)
        x = gt.from_numpy(host)
        host[:] = np.nan  # a put has copied it
        again = (x + turn).numpy()
        np.testing.assert_array_equal(again, x.numpy() + np.float32(turn))
        assert np.isfinite(again).all()
        if turn % 3 == 0:
            held.append((again, again.copy(), x))
    for again, copy, x in held:
        np.testing.assert_array_equal(again, copy)
        np.testing.assert_array_equal(x.numpy(), (x * 1).numpy())
    say("the same")
"""


@pytest.mark.parametrize("registered", ["", "0", "6e6"])
def test_blocks_that_are_used_again_have_what_was_put_last(registered: str, machine: Machine) -> None:
    """Puts and fetches through blocks that the worker registers, does not, or registers some of."""
    machine.environment["GT_REGISTERED_MEMORY"] = registered
    program = machine.program(BLOCKS)
    program.expect("the same", 300.0)
    assert program.wait() == 0
