"""Large values between real workers: through shared memory and without it, with a peer that is killed or silent."""

from __future__ import annotations

import signal
import socket
import textwrap
import threading
from pathlib import Path

import pytest
from daemons import Machine, Process, free_port, left_by_kill

pytestmark = pytest.mark.process

CONFIG = """
config = {"mesh": {"data": int(sys.argv[2])}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
gt.connect(sys.argv[1], config=config)
def rows(width):
    # one row for each worker, in which every sum is exact
    return np.random.default_rng(0).integers(0, 9, (int(sys.argv[2]), width)).astype(np.float32)
"""


def program_of(machine: Machine, body: str, address: str, workers: int) -> Process:
    """A client of that many workers."""
    return machine.program(CONFIG + textwrap.dedent(body), address, str(workers))


def mapped(worker: Process) -> set[str]:
    """The shared memories for pieces that a worker has mapped; those for puts and fetches, and
    for what it is computing, are others."""
    lines = Path(f"/proc/{worker.pid}/maps").read_text("ascii").splitlines()
    found = {line.split("/memfd:")[1] for line in lines if "/memfd:gt-" in line}
    return {name for name in found if not name.startswith(("gt-bulk-", "gt-running-"))}


@pytest.fixture(params=["", "0", "8388608"], ids=["shared", "sockets", "cramped"])
def _memory(request: pytest.FixtureRequest, machine: Machine) -> None:
    machine.environment["GT_SHARED_MEMORY"] = request.param


@pytest.mark.usefixtures("_memory")
def test_a_large_all_reduce(machine: Machine) -> None:
    """12 MiB summed over three workers, again and again: right whichever way the pieces go, and nothing is left."""
    address, _, workers = machine.service(3)
    program = program_of(
        machine,
        """
        array = rows(3_000_000)
        total = array.sum(0)
        with gt.signal.context("net"):
            x = gt.tensor(array)
            for turn in range(2):
                assert (x.sum(0).numpy() == total).all()
        say("right")
        """,
        address,
        3,
    )
    program.expect("right")
    assert program.wait() == 0
    together = {frozenset(mapped(worker)) for worker in workers}
    assert len(together) == 1, "every worker has mapped the memory of every other"
    assert len(together.pop()) == (0 if machine.environment["GT_SHARED_MEMORY"] == "0" else 3)


def test_a_worker_killed_in_a_large_exchange(machine: Machine) -> None:
    """The others' plans end with the loss; they go on, with all of their memory, and unmap that of the one that is gone."""
    address, _, workers = machine.service(3)
    program = program_of(
        machine,
        """
        with gt.signal.context("net"):
            x = gt.tensor(rows(6_000_000))
            x.sum(0).numpy()
            say("begun")
            try:
                while True:
                    [x.sum(0) for _ in range(8)][-1].numpy()
            except gt.WorkerLost as error:
                say("lost:", error)
        gt.disconnect()
        config["mesh"]["data"] = 2
        gt.connect(sys.argv[1], config=config)
        array = rows(6_000_000)[:2]
        with gt.signal.context("net"):
            x = gt.tensor(array)
            for turn in range(4):
                assert (x.sum(0).numpy() == array.sum(0)).all()
        say("right")
        """,
        address,
        3,
    )
    program.expect("begun")
    before = mapped(workers[0])
    workers[1].signal(signal.SIGKILL)
    program.expect("lost:", 60)
    program.expect("right", 60)
    assert program.wait() == 0
    assert len(before) == 3
    assert len(mapped(workers[0])) == len(mapped(workers[2])) == 2
    left_by_kill(machine, workers[1])


def test_a_silent_peer_is_named(machine: Machine) -> None:
    """When a peer says nothing for as long as the environment allows, the error says whom the plan waited for, and in what."""
    machine.environment["GT_PEER_TIMEOUT"] = "1"
    address, _, workers = machine.service(2)
    program = program_of(
        machine,
        """
        with gt.signal.context("net"):
            x = gt.tensor(rows(1000))
            x.sum(0).numpy()
            say("begun")
            hear()
            try:
                x.sum(0).numpy()
            except gt.WorkerLost as error:
                say("error:", " ".join(str(error).split()))
        """,
        address,
        2,
    )
    program.expect("begun")
    workers[1].signal(signal.SIGSTOP)
    program.say()
    told = program.expect("error:")
    workers[1].signal(signal.SIGCONT)
    assert "waited 1 s for worker 1 in the all-reduce in which 4,000 of 4,000 bytes did not come" in told
    assert "the last that was finished is the all-reduce of f32[1000]" in told
    assert program.wait() == 0


def test_a_nonsensical_limit_is_refused(machine: Machine) -> None:
    """A limit that is no number ends the worker with one line that says what to do."""
    machine.environment["GT_PEER_TIMEOUT"] = "soon"
    worker = machine.command("worker", "--address", "tcp://127.0.0.1:1", "--device", "cpu")
    worker.expect("GT_PEER_TIMEOUT=soon is no number from 0: unset it, or say for example GT_PEER_TIMEOUT=300")
    assert worker.wait() == 1


class Narrow:
    """A link to a port of this machine that carries so many bytes a second and no more, each way; it counts those towards it."""

    def __init__(self, target: int, bandwidth: float) -> None:
        self.target = target
        self.bandwidth = bandwidth
        self.carried = 0
        self.over = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except ConnectionRefusedError:  # a worker tries its own address before it listens; others try again
                near.close()
                continue
            threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(1 << 14):
                target.sendall(data)
                self.carried += len(data) if counts else 0
                self.over.wait(len(data) / self.bandwidth)  # this is what makes it narrow
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        source.close()

    def close(self) -> None:
        self.over.set()
        self.listener.close()


def test_pieces_are_packed_on_a_slow_link(machine: Machine) -> None:
    """Two workers that reach each other through tunnels of 4 MB/s, by --listen and --announce: the sums are right, and once
    the links are measured less than half of what is summed goes through them."""
    pytest.importorskip("lz4")
    machine.environment["GT_SHARED_MEMORY"] = "0"
    dispatcher = machine.command(
        "dispatcher", "--address", "tcp://127.0.0.1:*", "--workers", "2", "--log-level", "info"
    )
    address = dispatcher.expect("listening at").split()[-1]
    links = []
    for number in range(2):
        port = free_port()
        links.append(Narrow(port, 4e6))
        worker = machine.command(
            "worker", "--address", address, "--device", "cpu", "--log-level", "info",
            "--listen", f"tcp://127.0.0.1:{port}", "--announce", links[-1].address,
        )  # fmt: skip
        worker.expect(f"worker {number} on cpu")
    program = program_of(
        machine,
        """
        array = np.zeros((2, 500_000), np.float32)
        array[:, ::50] = rows(10_000)
        with gt.signal.context("net"):
            x = gt.tensor(array)
            while hear():
                assert (x.sum(0).numpy() == array.sum(0)).all()
                say("summed")
        """,
        address,
        2,
    )
    for _ in range(30):
        before = sum(link.carried for link in links)
        program.say()
        program.expect("summed")
        carried = sum(link.carried for link in links) - before
        if carried < 2_000_000:  # each sends the other half of its 2 MB, and then the sums of the other half
            break
    else:
        raise AssertionError(f"{carried} bytes went through the links in the last of 30 turns")
    program.say("")
    assert program.wait() == 0
    for link in links:
        link.close()
