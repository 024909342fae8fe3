"""Compiled functions against real daemons: the same losses as uncompiled, no growth, and a worker that is killed."""

from __future__ import annotations

import signal

import pytest
from daemons import Machine, left_by_kill

pytestmark = pytest.mark.process

STEP = """
        from gt import nn, optim
        import gt.nn.functional as F

        def training(compiled):
            gt.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
            optimizer = optim.Adam(model.parameters(), lr=0.01)

            def step(x, y):
                optimizer.zero_grad()
                with gt.signal.context("net"):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                return loss

            return gt.compile(step, fullgraph=True) if compiled else step

        generator = np.random.default_rng(0)
        x = gt.from_numpy(generator.standard_normal((12, 6), dtype=np.float32))
        y = gt.from_numpy(generator.integers(0, 4, 12))
"""


def test_compiled_training_over_sockets(machine: Machine) -> None:
    """Losses of the same bits; over thousands of steps without a fetch the service holds no tensor more than before."""
    address, _, _ = machine.service(1)
    program = machine.program(
        f"""
        gt.connect(sys.argv[1])
{STEP}
        losses = []
        for compiled in (False, True):
            step = training(compiled)
            losses.append([step(x, y).item() for _ in range(20)])
        say("same", losses[0] == losses[1], step.stats["replays"])
        before = gt.stats()["tensors"]
        for _ in range(3000):
            last = step(x, y)
        say("last", last.item() < losses[1][0])
        del last
        gt.flush()
        say("more", gt.stats()["tensors"] > before)  # of the training before, what is garbage may go late
        """,
        address,
    )
    assert program.expect("same") == "same True 17"
    assert program.expect("last") == "last True"
    assert program.expect("more") == "more False"
    assert program.wait() == 0


def test_a_worker_killed_under_a_compiled_step(machine: Machine) -> None:
    """The next fetch says so, and so does every later one; nothing waits, and a new session trains from the start."""
    address, _, workers = machine.service(2)
    program = machine.program(
        f"""
        config = {{"mesh": {{"data": 2}}, "sharding_config": {{"net": {{"strategy": "data_parallel"}}}}}}
        gt.connect(sys.argv[1], config=config)
{STEP}
        step = training(True)
        for _ in range(5):
            loss = step(x, y).item()
        say("runs", step.stats["replays"])
        hear()
        for _ in range(100_000):
            try:
                step(x, y).item()
            except gt.WorkerLost as error:
                say("lost:", error)
                break
        for again in range(2):
            try:
                step(x, y).item()
            except gt.WorkerLost as error:
                say("still:", error)
        gt.disconnect()
        gt.connect(sys.argv[1])
        x, y = gt.ones(12, 6), gt.zeros(12, dtype="int64")
        step = training(True)
        say("afresh", [step(x, y).item() for _ in range(5)][-1] > 0, step.stats["replays"])
        """,
        address,
    )
    program.expect("runs 2")
    program.say()
    workers[0].signal(signal.SIGKILL)
    assert "worker 0 was lost" in program.expect("lost:")
    for _ in range(2):
        assert program.expect("still:")
    assert program.expect("afresh") == "afresh True 2"
    assert program.wait() == 0
    left_by_kill(machine, workers[0])
