"""Connections that break and heal: a session outlives them, with nothing lost and nothing doubled."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
from cutting_proxy import CuttingProxy
from daemons import Machine, Process, free_port

DISPATCHER = """
import signal, sys
from gt.dispatcher.shell import DispatcherShell
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
    program.keeps_silent("gone", 6)
    for process in (program, *workers, dispatcher):
        process.signal(signal.SIGCONT)
    dispatcher.expect("stood still for")
    program.say()
    assert program.expect("after").split()[1:] == ["8.0"]
    assert program.wait() == 0
    assert all(process.running() for process in (dispatcher, *workers))


def test_a_worker_that_was_lost_joins_anew(machine: Machine) -> None:
    """A worker that was frozen for longer than its lease is told to join as a new one, and serves the next session."""
    machine.environment["GT_LEASE"] = "4"  # so long that on waking the worker knows of its own pause
    address, dispatcher, (worker,) = machine.service(1)
    worker.signal(signal.SIGSTOP)
    dispatcher.expect("worker 0 was lost")
    worker.signal(signal.SIGCONT)
    worker.expect("joins anew")
    dispatcher.expect("worker 1 joined")
    program = machine.program("gt.connect(sys.argv[1])\nsay(gt.ones(4).sum().item())", address)
    program.expect("4.0")
    assert program.wait() == 0


ALL_REDUCES = """
    import hashlib
    address, steps = sys.argv[1], int(sys.argv[2])
    gt.connect(address, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    array = np.random.default_rng(0).standard_normal((2, 1_000_000)).astype(np.float32)
    digest = hashlib.sha256()
    with gt.signal.context("net"):
        for step in range(steps):
            x = gt.tensor(array * (step + 1))
            for turn in range(4):
                x = x - x.sum(0) / (turn + 3)  # pieces of 1 MB, each way twice
                x = x + x[:, :1000].sum()
            digest.update(x.numpy().tobytes())
            say("step", step, x.shape)
            if step in (2, 5):
                hear()
    say("sums", digest.hexdigest())
"""


class BadPeerNetwork:
    """A service of two workers that reach each other through proxies."""

    def __init__(self, machine: Machine) -> None:
        machine.environment["GT_SHARED_MEMORY"] = "0"
        machine.environment["GT_PEER_TIMEOUT"] = "20"
        arguments = ["--address", "tcp://127.0.0.1:*", "--workers", "2", "--log-level", "info"]
        self.dispatcher = machine.start("a dispatcher", [sys.executable, "-P", "-m", "gt.dispatcher", *arguments])
        self.address = self.dispatcher.expect("listening at").split()[-1]
        self.proxies: list[CuttingProxy] = []
        self.workers: list[Process] = []
        for _ in range(2):
            listen = f"tcp://127.0.0.1:{free_port()}"
            proxy = CuttingProxy(listen)
            self.proxies.append(proxy)
            options = ["--listen", listen, "--announce", proxy.address, "--device", "cpu", "--log-level", "info"]
            self.workers.append(machine.command("worker", "--address", self.address, *options))
            self.workers[-1].expect("at your service")

    @property
    def connections(self) -> int:
        return sum(proxy.connections for proxy in self.proxies)

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.__exit__(None, None, None)


@pytest.fixture
def peers(machine: Machine) -> Iterator[BadPeerNetwork]:
    made = BadPeerNetwork(machine)
    yield made
    made.close()


def test_pieces_between_workers_survive_cuts(machine: Machine, peers: BadPeerNetwork) -> None:
    """The connections between two workers are cut in the middle of pieces, again and again, and once for some seconds: the
    sums have the same bits, and nobody is lost."""

    def sums(cut_every: int) -> str:
        program = machine.program(ALL_REDUCES, peers.address, "8")
        program.expect("step 2")
        for proxy in peers.proxies:
            proxy.cut_every = cut_every
        program.say()
        program.expect("step 5")
        if cut_every:
            for proxy in peers.proxies:
                proxy.cut_every = 0
                proxy.cut(stay=True)
        program.say()
        if cut_every:
            program.keeps_silent("step 6", 2)
            for proxy in peers.proxies:
                proxy.heal()
        found = program.expect("sums").split()[-1]
        assert program.wait() == 0
        return found

    calm = sums(0)
    before = peers.connections
    assert sums(4_000_000) == calm
    assert peers.connections - before >= 10, "each cut made one of the workers connect again"
    assert all(process.running() for process in (peers.dispatcher, *peers.workers))
