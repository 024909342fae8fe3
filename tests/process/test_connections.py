"""Connections that break and heal: a session outlives them, with nothing lost and nothing doubled."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
from cutting_proxy import CuttingProxy
from daemons import Machine, Process

DISPATCHER = """
import signal, sys
from gt.dispatcher.__main__ import DispatcherShell
shell = DispatcherShell("tcp://127.0.0.1:*", workers=int(sys.argv[1]))
signal.signal(signal.SIGTERM, shell.stop)
print("at", shell.address, shell.relay.address, flush=True)
shell.core.facts["bulk_address"] = sys.stdin.readline().strip()  # where a bad network leads to it
shell.run()
"""

TRAINING = """
    import hashlib
    address, steps = sys.argv[1], int(sys.argv[2])
    gt.connect(address)
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(300, 64), gt.nn.ReLU(), gt.nn.Linear(64, 10))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    rng = np.random.default_rng(0)
    for step in range(steps):
        x = gt.tensor(rng.standard_normal((256, 300)).astype(np.float32))  # so large that it goes in chunks
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say("step", step, loss.item())
        if step % 5 == 4:
            whole = (x * 2).numpy()
            assert (whole == x.numpy() * 2).all()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    say("weights", digest.hexdigest())
"""


class BadNetwork:
    """A service behind proxies: its control socket's and its bulk socket's, for clients and workers alike."""

    def __init__(self, machine: Machine, workers: int) -> None:
        machine.environment["GT_SHARED_MEMORY"] = "0"
        machine.environment["GT_LEASE"] = "20"
        self.dispatcher = machine.start("a dispatcher", [sys.executable, "-P", "-c", DISPATCHER, str(workers)])
        _, control, bulk = self.dispatcher.expect("at tcp").split()
        machine.environment["GT_KEY"] = (
            f"{machine.environment['XDG_CONFIG_HOME']}/gt/keys/own.key"  # as on another machine
        )
        self.control, self.bulk = CuttingProxy(control), CuttingProxy(bulk)
        self.dispatcher.say(self.bulk.address)
        self.workers: list[Process] = []
        for _ in range(workers):
            self.workers.append(machine.worker(self.control.address))
            self.workers[-1].expect("at your service")

    def cut(self) -> None:
        for proxy in (self.control, self.bulk):
            proxy.cut()

    def close(self) -> None:
        for proxy in (self.control, self.bulk):
            proxy.__exit__(None, None, None)


@pytest.fixture
def network(machine: Machine) -> Iterator[BadNetwork]:
    made = BadNetwork(machine, 2)
    yield made
    made.close()


def trained(machine: Machine, network: BadNetwork, steps: int, cuts: set[int]) -> tuple[list[str], str]:
    """The losses and the final weights of a training run whose connections are all cut at these steps."""
    program = machine.program(TRAINING, network.control.address, str(steps))
    losses = []
    for step in range(steps):
        losses.append(program.expect(f"step {step} ").split()[-1])
        if step in cuts:
            network.cut()
    weights = program.expect("weights").split()[-1]
    assert program.wait() == 0
    return losses, weights


def test_a_training_run_with_ten_cuts_ends_with_the_same_bits(machine: Machine, network: BadNetwork) -> None:
    calm = trained(machine, network, 40, set())
    before = network.control.connections
    cut = trained(machine, network, 40, set(range(2, 40, 4)))
    assert network.control.connections - before >= 30, "each cut made two workers and the client connect again"
    assert cut == calm
    assert all(process.running() for process in (network.dispatcher, *network.workers))


def test_a_cut_that_lasts_is_a_pause(machine: Machine, network: BadNetwork) -> None:
    """For some seconds nobody can connect; then everything goes on."""
    program = machine.program("""
        gt.connect(sys.argv[1])
        x = gt.ones(4)
        say("begun", x.sum().item())
        hear()
        y = x * 2
        say("after", y.sum().item(), (x + y).sum().item())
    """, network.control.address)  # fmt: skip
    program.expect("begun 4.0")
    network.control.cut(stay=True)
    program.say()
    program.expect("no sign of life")
    network.control.heal()
    assert program.expect("after").split()[1:] == ["8.0", "12.0"]
    assert program.wait() == 0


def test_a_service_that_was_frozen_goes_on(machine: Machine) -> None:
    """Nobody counts the time in which it could hear nobody, though that was longer than the lease."""
    machine.environment["GT_LEASE"] = "4"
    address, dispatcher, workers = machine.service(1)
    program = machine.program("""
        gt.connect(sys.argv[1])
        x = gt.ones(4)
        say("begun", x.sum().item())
        hear()
        say("after", (x * 2).sum().item())
    """, address)  # fmt: skip
    program.expect("begun")
    for process in (program, dispatcher, *workers):
        process.signal(signal.SIGSTOP)
    with pytest.raises(AssertionError, match="did not say"):
        program.expect("gone", timeout=6)
    for process in (program, *workers, dispatcher):
        process.signal(signal.SIGCONT)
    dispatcher.expect("stood still for")
    program.say()
    assert program.expect("after").split()[1:] == ["8.0"]
    assert program.wait() == 0
    assert all(process.running() for process in (dispatcher, *workers))


def test_a_worker_that_was_lost_joins_anew(machine: Machine) -> None:
    """A worker that was frozen for longer than its lease is told to join as a new one, and serves the next session."""
    machine.environment["GT_LEASE"] = "2"
    address, dispatcher, (worker,) = machine.service(1)
    worker.signal(signal.SIGSTOP)
    dispatcher.expect("worker 0 was lost")
    worker.signal(signal.SIGCONT)
    worker.expect("joins anew")
    dispatcher.expect("worker 1 joined")
    program = machine.program("gt.connect(sys.argv[1])\nsay(gt.ones(4).sum().item())", address)
    program.expect("4.0")
    assert program.wait() == 0
