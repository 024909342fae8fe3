"""What pods and containers run, run here without Kubernetes and Docker: `make deploy-test`."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemons import free_port
from effort import EFFORT
from kubelet import TIMEOUT, USABLE, Cluster, Container, Pod, composed
from sklearn.datasets import load_digits

import gt
from gt.deploy.containers import Ports, compose_files
from gt.deploy.files import write_files
from gt.deploy.kubernetes import kubernetes_files
from gt.wire.keys import new_key, own_key
from gt.wire.principals import PrincipalRole

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(EFFORT < 1, reason="make deploy-test runs it"),
    pytest.mark.skipif(not USABLE, reason="containers run by bubblewrap: apt-get install bubblewrap"),
]
CONFIG: dict[str, Any] = {
    "mesh": {"data": 2},
    "deterministic": True,  # workers that are started again may measure another speed, and so get other shards
    "sharding_config": {"batch": {"strategy": "data_parallel"}},
}
STEPS = 40
RESTARTS = 75
"""The exit status of a dispatcher whose sessions go on with the next one."""


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of keys for the service, its workers, an operator and a program."""
    folder = tmp_path / "keys"
    monkeypatch.setenv("GT_KEYS", str(folder))
    for name, role in (("worker", "worker"), ("operator", "operator"), ("me", "user")):
        new_key(name, PrincipalRole(role))
    return folder


def ports() -> Ports:
    """Four that are free."""
    return Ports(*(free_port() for _ in range(4)))


def train(address: str, key: Path, meanwhile: Callable[[], None] | None = None) -> list[float]:
    """The losses of a training on digits, in the middle of which something else may happen."""
    gt.connect(address, key=str(key), config=CONFIG, timeout=TIMEOUT)
    gt.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    model = gt.nn.Sequential(gt.nn.Linear(64, 32), gt.nn.Tanh(), gt.nn.Dropout(0.1), gt.nn.Linear(32, 10))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        start = step * 40
        with gt.signal.context("batch"):
            x, y = (
                gt.from_numpy(images[start : start + 40].astype(np.float32)),
                gt.from_numpy(labels[start : start + 40]),
            )
            loss = gt.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == STEPS // 2 and meanwhile is not None:
            other = threading.Thread(target=meanwhile)
            other.start()
            while other.is_alive():
                (x * 2).sum().item()
    gt.disconnect()
    assert losses[-1] < losses[0] * 0.75
    return losses


def await_restart(container: Container, starts: int) -> None:
    """Wait until a container was started more often than that."""
    deadline = time.monotonic() + TIMEOUT
    while container.starts <= starts:
        assert time.monotonic() < deadline, container.lines
        container.ended.wait(0.05)


@pytest.fixture
def cluster(tmp_path: Path, keys: Path) -> Iterator[tuple[Cluster, Ports]]:
    """A cluster with the objects of `gt deploy k8s --workers 3`, and the secrets that its keys.sh makes."""
    chosen = ports()
    files = kubernetes_files(version="0", workers=3, gpus=0, namespace="gt", storage="1Gi", ports=chosen)
    folder = tmp_path / "cluster"
    folder.mkdir()
    found = Cluster(files, folder)
    found.create("gt-service-key", [keys / "service.key"])
    found.create("gt-worker-keys", [keys / "worker.key", keys / "operator.key"])
    found.create("gt-authorized", sorted((keys / "authorized").iterdir()))
    found.hosts["gt-dispatcher"] = "127.0.0.1"
    yield found, chosen
    found.close()


def up(cluster: Cluster) -> tuple[Pod, list[Pod]]:
    """The dispatcher's pod and the workers', once their probes succeed."""
    (dispatcher,) = cluster.start("gt-dispatcher")
    dispatcher.main.await_probe(dispatcher.probe("startupProbe"))
    workers = cluster.start("gt-worker")
    for worker in workers:
        worker.main.await_probe(worker.probe("startupProbe"))
    return dispatcher, workers


def test_pods_compute_and_survive_what_pods_go_through(cluster: tuple[Cluster, Ports], keys: Path) -> None:
    """A program trains over TCP with its key while a worker is killed, a pod of a worker and the dispatcher's are deleted and the
    dispatcher is killed: the losses have the same bits. At last its key is withdrawn."""
    kube, chosen = cluster
    dispatcher, workers = up(kube)
    address, key = f"tcp://127.0.0.1:{chosen.control}", keys / "me.key"
    undisturbed = train(address, key)
    assert dispatcher.main.execute(dispatcher.probe("readinessProbe"))[0] == 0

    def kill_worker() -> None:
        starts = workers[0].main.starts
        workers[0].main.kill()
        await_restart(workers[0].main, starts)

    assert train(address, key, kill_worker) == undisturbed
    all_ready(workers, chosen)
    ends = []

    def delete_worker() -> None:
        ends.append(workers[1].delete())
        workers[1].begin()

    assert train(address, key, delete_worker) == undisturbed
    assert ends[0][0] == 0, ends
    assert "gets no new work" in ends[0][1]
    all_ready(workers, chosen)

    def delete_dispatcher() -> None:
        ends.append(dispatcher.delete())
        dispatcher.begin()
        dispatcher.main.await_probe(dispatcher.probe("startupProbe"))

    assert train(address, key, delete_dispatcher) == undisturbed
    assert ends[1][0] == RESTARTS, ends
    assert "1 session is to go on with the next one" in ends[1][1]
    all_ready(workers, chosen)

    def kill_dispatcher() -> None:
        starts = dispatcher.main.starts
        dispatcher.main.kill()
        await_restart(dispatcher.main, starts)
        dispatcher.main.await_probe(dispatcher.probe("readinessProbe"))

    assert train(address, key, kill_dispatcher) == undisturbed
    for worker in workers:
        assert worker.main.execute(worker.probe("livenessProbe"))[0] == 0
    gt.connect(address, key=str(key), timeout=TIMEOUT)
    assert gt.ones(3).sum().item() == 3
    kube.update("gt-authorized", [path for path in (keys / "authorized").iterdir() if path.name != "me.pub"])
    with pytest.raises(gt.SessionError, match="its key was withdrawn"):
        compute_until_refused()


def compute_until_refused() -> None:
    """Compute until the service ends the session, for as long as that may take."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        gt.ones(3).sum().item()


def all_ready(workers: list[Pod], chosen: Ports) -> None:
    """Wait until all workers are in service."""
    address = f"tcp://gt-dispatcher:{chosen.control}"
    workers[0].main.await_probe(["gt", "health", address, "--workers", str(len(workers))])


def test_a_pod_writes_nowhere_else_and_is_not_root(cluster: tuple[Cluster, Ports]) -> None:
    kube, _ = cluster
    (dispatcher,) = kube.start("gt-dispatcher")
    dispatcher.main.await_probe(dispatcher.probe("startupProbe"))
    status, said = dispatcher.main.execute(["id", "--user"])
    assert (status, said.strip()) == (0, "10001")
    for path in ("/", "/usr", "/etc/gt", "/keys/authorized"):
        status, said = dispatcher.main.execute(["touch", f"{path}/file"])
        assert status == 1
        assert "Read-only file system" in said


def test_composed_containers_compute(tmp_path: Path, keys: Path) -> None:
    """The containers of `gt deploy compose --workers 1`: a program computes, and a worker that is killed comes back."""
    chosen = ports()
    out = tmp_path / "compose"
    owner = (os.getuid() or 10001, os.getgid() or 10001)
    files = compose_files(
        version="0", workers=1, gpus=0, source=tmp_path, out=out, owner=owner, memory="1Gi", ports=chosen
    )
    write_files(out, files, force=False)
    own_key()
    shutil.copytree(keys, out / "keys", dirs_exist_ok=True)
    services = composed(out, {"dispatcher": "127.0.0.1", "worker-0": "127.0.0.1"})
    dispatcher, worker = services["dispatcher"], services["worker-0"]
    try:
        dispatcher.keep_running()
        dispatcher.await_probe(health(files, "dispatcher"))
        worker.keep_running()
        worker.await_probe(health(files, "worker-0"))
        gt.connect(f"tcp://127.0.0.1:{chosen.control}", key=str(keys / "me.key"), timeout=TIMEOUT)
        x = gt.arange(5) * 2
        assert x.sum().item() == 20
        worker.kill()
        assert (x + 1).sum().item() == 25
        gt.disconnect()
    finally:
        for each in (worker, dispatcher):
            if each.starts:
                each.stop()


def health(files: dict[str, str], service: str) -> list[str]:
    """The command of a service's health check."""
    import yaml

    said = yaml.safe_load(files["compose.yaml"])["services"][service]["healthcheck"]["test"]
    assert said[0] == "CMD"
    return list(said[1:])
