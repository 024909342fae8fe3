"""A service of more workers than are told one by one: what is published to them, and members that are killed or stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from daemons import Machine, left_by_kill
from effort import EFFORT

import gt

pytestmark = pytest.mark.process

WORKERS = 10
PROGRAM = f"""
def turn(n):
    with gt.signal.context("net"):
        return float((x * float(n)).sum())
for size in {WORKERS}, {WORKERS - 1}:  # first all of them, so that the last is told by what is published too
    config = dict(mesh=dict(data=size), sharding_config=dict(net=dict(strategy="data_parallel")))
    gt.connect(sys.argv[1], config=config)
    with gt.signal.context("net"):
        x = gt.tensor(np.ones((40, 2), np.float32))
    for n in range(8):
        assert turn(n) == 80 * n, n
say("computing")
hear()
for n in range(100_000):
    try:
        assert turn(n) == 80 * n, n
    except gt.WorkerLost as error:
        say("lost:", error)
        break
gt.disconnect()
gt.connect(sys.argv[1])
say("afresh", float(gt.ones(2).sum()))
"""


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP] if EFFORT >= 1 else [signal.SIGKILL])
def test_a_member_of_a_large_group_is_killed_or_stopped(machine: Machine, number: signal.Signals) -> None:
    """A session over nine workers, who are told by one message, gets its error when one of them is killed or stopped;
    the plans of another session, whose worker hears the same socket, go on meanwhile."""
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GT_LEASE": "8"}
    machine.environment |= environment  # ten workers on what may be two cores
    dispatcher = machine.command(
        "dispatcher", "--address", "tcp://127.0.0.1:*", "--workers", str(WORKERS), "--log-level", "info"
    )
    address = dispatcher.expect("listening at").split()[-1]
    workers = [machine.worker(address) for _ in range(WORKERS)]
    named = {int(worker.expect(" on cpu at your").split(" worker ")[-1].split()[0]): worker for worker in workers}
    program = machine.program(PROGRAM, address)
    program.expect("computing")
    gt.connect(address)  # no mesh of its own: it gets the worker that serves the fewest, which is the tenth
    x = gt.arange(4).float()
    for n in range(3):
        assert (x * n).sum().item() == 6 * n
    program.say()
    victim = named[WORKERS - 2]
    victim.signal(number)
    turns, until = 0, time.monotonic() + 2
    while turns < 20 or time.monotonic() < until:
        start = time.monotonic()
        assert (x * turns).sum().item() == 6 * turns
        assert time.monotonic() - start < 5, "nobody waits for the one that is stopped"
        turns += 1
    assert f"worker {WORKERS - 2} was lost" in program.expect("lost:")
    assert program.expect("afresh") == "afresh 2.0"
    assert program.wait() == 0
    assert (x + 1).sum().item() == 10
    victim.signal(signal.SIGKILL)
    victim.wait()
    gt.disconnect()
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0
    assert all(worker.wait() == 0 for worker in workers if worker is not victim)
    left_by_kill(machine, victim)
    assert machine.left() == []
