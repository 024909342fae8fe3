"""A service of more workers than are told one by one: what is published to them, members that are killed or stopped, and
connections that are cut."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from cutting_proxy import CuttingProxy
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
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GT_LEASE": "8", "GT_RECOVERY": "0"}
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


DISPATCHER = """
import signal, sys
from gt.daemon.logs import DaemonLog
from gt.dispatcher.shell import DispatcherShell
from gt.dispatcher.state import multicast
from gt.wire import transport

transport._HEARTBEAT_MS, transport._HEARTBEAT_TIMEOUT_MS = 500, 1500  # so that silence is noticed soon
multicast.MAX_WAIT_TICKS = 1
DaemonLog("dispatcher", level="info")
shell = DispatcherShell("tcp://127.0.0.1:*", workers=int(sys.argv[1]))
signal.signal(signal.SIGTERM, shell.stop)
print("at", shell.address, shell.fanout.address, flush=True)
shell.fanout.address = sys.stdin.readline().strip()  # where a bad network leads to it
hear = shell._hear_subscriptions

def say():
    before = len(shell.fanout.own)
    hear()
    if len(shell.fanout.own) != before:
        print("switched:", len(shell.fanout.own), flush=True)

shell._hear_subscriptions = say
shell.run()
"""
SUMS = f"""
    import hashlib
    config = dict(mesh=dict(data={WORKERS}), sharding_config=dict(net=dict(strategy="data_parallel")))
    gt.connect(sys.argv[1], config=config)
    array = np.random.default_rng(0).standard_normal((4 * {WORKERS}, 3)).astype(np.float32)
    digest = hashlib.sha256()
    with gt.signal.context("net"):
        x = gt.tensor(array)
        for step in range(int(sys.argv[2])):
            for turn in range(3):
                x = x - x.sum(0) / (turn + 30)
                gt.flush()
            digest.update(x.numpy().tobytes())
            say("step", step)
            if step % 10 == 9:
                hear()
    say("sums", digest.hexdigest())
"""
STEPS = 40


class BadFanout:
    """A service of so many workers that what is for all of them is published, by way of a proxy."""

    def __init__(self, machine: Machine) -> None:
        machine.environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GT_LEASE": "20"}
        self.machine = machine
        self.dispatcher = machine.start("a dispatcher", [sys.executable, "-P", "-c", DISPATCHER, str(WORKERS)])
        _, self.address, published = self.dispatcher.expect("at tcp").split()
        self.proxy = CuttingProxy(published)
        self.dispatcher.say(self.proxy.address)
        self.workers = [machine.worker(self.address) for _ in range(WORKERS)]
        for worker in self.workers:
            worker.expect("at your service")

    def switched(self) -> None:
        """Wait until all workers hear what is published."""
        self.dispatcher.expect(f"switched: {WORKERS}")

    def lapses(self) -> list[int]:
        """How many messages a worker was sent again, for each time that its subscription has ended so far."""
        ends = [line for line in self.dispatcher.lines if "to the publishing socket has ended" in line]
        return [int(line.split(" messages again")[0].split()[-1]) for line in ends]

    def sums(self, at: dict[int, Callable[[], object]]) -> str:
        """What a program computes while at some of its steps something happens."""
        program = self.machine.program(SUMS, self.address, str(STEPS))
        for step in range(STEPS):
            program.expect(f"step {step}")
            at.get(step, lambda: None)()
            if step % 10 == 9:
                program.say()
        found = program.expect("sums")
        assert program.wait() == 0
        return found


@pytest.fixture
def network(machine: Machine) -> Iterator[BadFanout]:
    made = BadFanout(machine)
    yield made
    made.proxy.__exit__(None, None, None)


def test_cuts_of_what_is_published_cost_nobody_anything(network: BadFanout) -> None:
    """The subscriptions of ten workers are cut in the middle of a program: with a word and without one, for a moment and for
    long. It ends with the same bits, nobody is lost,"""
    proxy = network.proxy
    calm = network.sums({9: network.switched})
    assert (proxy.connections, network.lapses()) == (WORKERS, [])
    happens = {2: proxy.cut, 12: proxy.stall, 22: lambda: proxy.cut(stay=True), 32: proxy.cut}
    happens |= dict.fromkeys([9, 19, 39], network.switched)
    cut = network.sums(happens | {29: lambda: (proxy.heal(), network.switched())})
    assert cut == calm
    assert len(network.lapses()) >= 4 * WORKERS
    assert sum(network.lapses()) > 0
    assert all(process.running() for process in (network.dispatcher, *network.workers))
    for worker in network.workers:
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert not any("joins anew" in line for line in worker.lines)
    network.dispatcher.signal(signal.SIGTERM)
    assert network.dispatcher.wait() == 0
    assert sum("joined" in line and " worker " in line for line in network.dispatcher.lines) == WORKERS
