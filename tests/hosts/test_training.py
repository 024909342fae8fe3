"""Training over several hosts, which are network namespaces: the values of one worker, whatever is cut or killed meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemons import COMMAND, PROGRAM, Machine, Process
from network_hosts import NetworkHost, NetworkHosts, missing

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(bool(missing()), reason=f"no hosts here: {missing()}")]

CONFIGS = Path("configs").resolve()
PATIENCE = 120.0
"""Seconds for a training; cores may be shared."""
CUT_SECONDS = 20.0
LEARNING_RATE = 3e-3
"""Adam moves a weight by about so much in a step, whatever its gradient; where that is all but 0, rounding decides where to."""
TRAINING = """
sys.path.insert(0, {examples!r})
import char_lm, digits
address, config, path, what, steps = sys.argv[1:]
gt.connect(address, config=config or None) if address else gt.init(workers=1, config=config or None)
gt.manual_seed(0)
(images, labels), _ = digits.digits()
if what == "digits":
    model = digits.Classifier()
    given = gt.from_numpy(images), gt.from_numpy(labels)
else:
    model = char_lm.CharLM(32, 16, 64, 4, 2, False)
    gt.signal.attach(model)
    draw = np.random.default_rng(0).integers(0, 32, (64, 17))
    given = gt.from_numpy(draw[:, :-1]), gt.from_numpy(draw[:, 1:])
optimizer = gt.optim.Adam(model.parameters(), lr={rate})
criterion = gt.nn.CrossEntropyLoss()
losses = []
for step in range(int(steps)):
    with gt.signal.context("batch"):
        x, y = (each[step % 4 * 16 : step % 4 * 16 + 16] for each in given)
        out = model(x)
        loss = criterion(out.reshape(-1, out.shape[-1]), y.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 5:
        say("under way")
np.savez(path, *[np.array(losses), *(each.numpy() for each in model.parameters())])
say("trained")
"""


class Cluster:
    """A service over hosts: two workers on each, a dispatcher on the first, and room for a client on one more."""

    def __init__(self, machine: Machine, count: int) -> None:
        self.machine = machine
        machine.environment |= {"OMP_NUM_THREADS": "1", "GT_THREADS": "1"}
        self.worker_key = self._new_key("node", "worker")
        self.user_key = self._new_key("alice", "user")
        self.network = NetworkHosts(count + 1, "1gbit")
        self.hosts, self.client = self.network.hosts[:count], self.network.hosts[count]
        self.address = f"tcp://{self.hosts[0].address}:7000"
        options = ["--address", "tcp://0.0.0.0:7000", "--bulk", "tcp://0.0.0.0:7001", "--workers", str(2 * count)]
        self.dispatcher = self.on(self.hosts[0], [*COMMAND, "dispatcher", *options, "--log-level", "info"])
        self.dispatcher.expect("listening at")
        self.workers = [self.worker(host) for host in self.hosts for _ in range(2)]
        for worker in self.workers:
            worker.expect(" on cpu")

    def _new_key(self, name: str, role: str) -> str:
        made = self.machine.command("keys", "new", name, "--role", role)
        return made.expect("is the secret key").split()[0]

    def on(self, host: NetworkHost, command: list[str], key: str = "") -> Process:
        """A process on a host; with a key it has nothing else to show."""
        before = dict(self.machine.environment)
        if key:
            none = f"{self.machine.temp}/none"
            self.machine.environment |= {"GT_KEY": key, "XDG_RUNTIME_DIR": none, "GT_KEYS": none}
        try:
            return self.machine.start(" ".join(command[-4:]), [*host.prefix, *command])
        finally:
            self.machine.environment = before

    def worker(self, host: NetworkHost) -> Process:
        """A worker there. All hosts see the folder of its marks, as on a file server."""
        options = ["--address", self.address, "--device", "cpu", "--listen", f"tcp://{host.address}:*"]
        options += ["--marks", f"{self.machine.temp}/marks", "--log-level", "info"]
        return self.on(host, [*COMMAND, "worker", *options], self.worker_key)

    def training(self, config: str, path: Path, what: str, steps: int) -> Process:
        return self.on(self.client, program(self.address, config, path, what, steps), self.user_key)


def program(address: str, config: str, path: Path, what: str, steps: int) -> list[str]:
    code = PROGRAM + TRAINING.format(examples=str(Path("examples").resolve()), rate=LEARNING_RATE)
    return [sys.executable, "-c", code, address, config, str(path), what, str(steps)]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Processes that end with their hosts."""
    made = Machine()
    try:
        yield made
    finally:
        made.close()
        made.remove()


@pytest.fixture
def cluster(machine: Machine, request: Any) -> Iterator[Cluster]:
    made = Cluster(machine, request.param)
    try:
        yield made
    finally:
        made.network.close()


def arrays(path: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(path) as found:
        return [found[name] for name in found.files]


def alone(machine: Machine, path: Path, what: str, steps: int, config: str = "") -> list[np.ndarray[Any, Any]]:
    """What one worker makes of the same training."""
    one = machine.start("alone", program("", config, path, what, steps))
    one.expect("trained", PATIENCE)
    assert one.wait() == 0
    return arrays(path)


@pytest.mark.parametrize(
    ("cluster", "what", "configs"),
    [
        (2, "digits", ["digits", "data_parallel"]),
        (2, "transformer", ["lm_data", "lm_tensor", "lm_fully_sharded", "lm_mixed"]),
        (4, "transformer", ["lm_data", "lm_fully_sharded"]),
    ],
    indirect=["cluster"],
)
def test_several_hosts_compute_what_one_worker_does(
    cluster: Cluster, what: str, configs: list[str], tmp_path: Path
) -> None:
    """By every config, with workers that are told apart by host, over TCP with keys."""
    steps = 8
    wanted = alone(cluster.machine, tmp_path / "one.npz", what, steps)
    for config in configs:
        path = tmp_path / f"{config}.npz"
        before = [host.traffic()[1] for host in cluster.hosts]
        run = cluster.training(str(CONFIGS / f"{config}.yaml"), path, what, steps)
        run.expect("trained", PATIENCE)
        losses, *weights = arrays(path)
        np.testing.assert_allclose(losses, wanted[0], rtol=1e-4)
        for found, expected in zip(weights, wanted[1:], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=LEARNING_RATE / 10)
        sent = [host.traffic()[1] - was for host, was in zip(cluster.hosts, before, strict=True)]
        assert min(sent) > 1 << 14, "workers of all hosts have taken part"


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_the_order_of_axes_names_changes_neither_values_nor_traffic(cluster: Cluster, tmp_path: Path) -> None:
    """Workers stand so that the busiest axis is within hosts. The first training is not compared: hosts also measure links."""
    written = (CONFIGS / "digits.yaml").read_text()
    assert "mesh: {data: 2, model: 2}" in written
    found, sent = [], []
    for name, mesh in (
        ("before", "{data: 2, model: 2}"),
        ("one", "{data: 2, model: 2}"),
        ("other", "{model: 2, data: 2}"),
    ):
        config, path = tmp_path / f"{name}.yaml", tmp_path / f"{name}.npz"
        config.write_text(written.replace("mesh: {data: 2, model: 2}", f"mesh: {mesh}"))
        before = [host.traffic()[1] for host in cluster.hosts]
        run = cluster.training(str(config), path, "digits", 16)
        run.expect("trained", PATIENCE)
        found.append(arrays(path))
        sent.append(sum(host.traffic()[1] - was for host, was in zip(cluster.hosts, before, strict=True)))
    for one, other in zip(found[1], found[2], strict=True):
        np.testing.assert_array_equal(one, other)
    assert abs(sent[1] - sent[2]) < 0.1 * sent[1], "a few words to dispatcher and client differ"


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_deterministic_sessions_have_the_bits_of_one_worker(cluster: Cluster, tmp_path: Path) -> None:
    """Though their all-reduces cross hosts."""
    config = tmp_path / "deterministic.yaml"
    config.write_text("deterministic: true\nsharding_config: {batch: {strategy: data_parallel}}\n")
    run = cluster.training(str(config), tmp_path / "hosts.npz", "transformer", 6)
    wanted = alone(cluster.machine, tmp_path / "one.npz", "transformer", 6, str(config))
    run.expect("trained", PATIENCE)
    assert [each.tobytes() for each in arrays(tmp_path / "hosts.npz")] == [each.tobytes() for each in wanted]


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_a_link_that_is_cut_for_long_changes_no_value(cluster: Cluster, tmp_path: Path) -> None:
    """A host without network for 20 s, in the middle of a training: that waits and goes on, and its bits are the same."""
    config = str(CONFIGS / "digits.yaml")
    calm = cluster.training(config, tmp_path / "calm.npz", "digits", 40)
    calm.expect("trained", PATIENCE)
    assert calm.wait() == 0
    run = cluster.training(config, tmp_path / "cut.npz", "digits", 40)
    run.expect("under way", PATIENCE)
    cluster.network.cut(cluster.hosts[1])
    run.keeps_silent("trained", CUT_SECONDS)
    cluster.network.mend(cluster.hosts[1])
    run.expect("trained", PATIENCE)
    assert [each.tobytes() for each in arrays(tmp_path / "cut.npz")] == [
        each.tobytes() for each in arrays(tmp_path / "calm.npz")
    ]


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_a_killed_host_is_told_and_another_takes_its_place(cluster: Cluster, tmp_path: Path) -> None:
    """All processes of a host end at once. The session waits for workers, and goes on when another host has joined."""
    config = str(CONFIGS / "data_parallel.yaml")
    calm = cluster.training(config, tmp_path / "calm.npz", "digits", 60)
    calm.expect("trained", PATIENCE)
    run = cluster.training(config, tmp_path / "killed.npz", "digits", 60)
    run.expect("under way", PATIENCE)
    cluster.hosts[1].end()
    cluster.dispatcher.expect("was lost", PATIENCE)
    for _ in range(2):
        cluster.worker(cluster.client).expect(" on cpu", PATIENCE)
    run.expect("trained", PATIENCE)
    losses, expected = arrays(tmp_path / "killed.npz")[0], arrays(tmp_path / "calm.npz")[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
