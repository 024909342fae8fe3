"""How many workers a service on Ray has, and what is said where a cluster lacks room: pure decisions, without Ray."""

from __future__ import annotations

import builtins
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gt.errors import ConnectionFailed, SessionError
from gt.ray import cluster
from gt.ray.bundles import ServiceSize, refusal, service_bundles, shortage
from gt.ray.cluster import RayMissing, import_ray
from gt.ray.load_watch import JoinedWorker, load_of
from gt.ray.node_folder import NodeFolder
from gt.ray.scaling import AddWorkers, GiveBack, Scaler, ServiceLoad, WorkerUse
from gt.ray.service import SizeAsked
from gt.ray.service_setup import service_environment

GROWING = ServiceSize(1, 4, idle_seconds=10)


def load(*used: float, starting: int = 0, waiting: int = 0) -> ServiceLoad:
    """Workers in use for these shares of their time, the first of which stays."""
    workers = tuple(WorkerUse(f"gt-worker-{at}", at > 0, share) for at, share in enumerate(used))
    return ServiceLoad(workers, starting, waiting)


def decisions(scaler: Scaler, of: ServiceLoad, seconds: int, start: int = 0) -> list[tuple[int, Any]]:
    """What is decided when the load stays like that, and when; one look a second."""
    found = [(now, scaler.decide(float(now), of)) for now in range(start, start + seconds)]
    return [(now, each) for now, each in found if each is not None]


def test_workers_that_a_program_asks_for_come_at_once_and_once() -> None:
    scaler = Scaler(GROWING)
    assert scaler.ask(3) == ""
    assert scaler.decide(0.0, load(0.5)) == AddWorkers(2, "a program asks for 3 workers")
    assert decisions(scaler, load(0.5, starting=2), 20, 1) == []
    assert decisions(scaler, load(0.5, 0.5, 0.5), 20, 21) == []


def test_more_than_the_most_is_refused_with_what_to_do() -> None:
    scaler = Scaler(GROWING)
    assert "gt up --on ray --max 5" in scaler.ask(5)
    assert decisions(scaler, load(1.0), 20) == []


def test_sessions_that_wait_for_busy_workers_get_one_more() -> None:
    (at, decision), *_ = decisions(Scaler(GROWING), load(0.95, waiting=1), 20)
    assert isinstance(decision, AddWorkers)
    assert decision.more == 1
    assert 2 <= at <= 6, "not for a moment's wait"
    assert "1 session waits, and workers are busy for 95%" in decision.reason


@pytest.mark.parametrize(
    "of",
    [load(0.3, waiting=2), load(0.95), load(0.95, starting=1, waiting=2), load(1.0, 1.0, 1.0, 1.0, waiting=5)],
    ids=["workers have time", "nobody waits", "one is coming", "there are as many as there may be"],
)
def test_none_are_added_where_that_would_help_nobody(of: ServiceLoad) -> None:
    assert decisions(Scaler(GROWING), of, 60) == []


def test_a_worker_that_idles_for_long_is_given_back_and_the_least_number_stays() -> None:
    scaler = Scaler(GROWING)
    (at, decision), *_ = decisions(scaler, load(0.0, 0.5, 0.0), 30)
    assert at == 10
    assert decision == GiveBack("gt-worker-2", "a worker is idle for 10 s")
    assert decisions(Scaler(GROWING), load(0.0), 60) == []


def test_where_one_that_stays_is_idle_the_least_used_of_the_others_goes() -> None:
    (_, decision), *_ = decisions(Scaler(GROWING), load(0.0, 0.9, 0.4), 30)
    assert isinstance(decision, GiveBack)
    assert decision.name == "gt-worker-2"


def test_a_request_begins_the_idle_time_anew_and_a_failure_makes_a_pause() -> None:
    scaler = Scaler(GROWING)
    assert decisions(scaler, load(0.5, 0.0), 9) == []
    assert scaler.ask(2) == ""
    assert decisions(scaler, load(0.5, 0.0), 9, 9) == []
    scaler.pause(18.0, 10.0)
    assert [at for at, _ in decisions(scaler, load(0.5, 0.0), 11, 18)] == [28]


def test_actors_and_workers_are_put_together_by_their_processes() -> None:
    statuses: Mapping[str, Mapping[str, Any]] = {
        "gt-worker-0": {"host": "a", "pid": 7, "ended": ""},
        "gt-worker-1": {"host": "b", "pid": 7, "ended": ""},
        "gt-worker-2": {"host": "b", "pid": 8, "ended": ""},
        "gt-worker-3": {},
        "gt-worker-4": {"host": "b", "pid": 9, "ended": "ended with status 1"},
    }
    joined = {("a", 7): JoinedWorker(5, 0.5, False), ("b", 7): JoinedWorker(6, 0.1, True)}
    found = load_of(statuses, joined, 3, 1, "gt-worker-")
    assert found == ServiceLoad((WorkerUse("gt-worker-0", False, 0.5),), 2, 3)


def test_what_a_cluster_lacks_is_named() -> None:
    size = ServiceSize(2, 2, "cuda", cpus=4)
    assert service_bundles(size) == [{"CPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}]
    assert shortage(service_bundles(size), {"CPU": 16.0, "GPU": 1.0}) == "1 of 2 GPU"
    said = refusal(size, {"CPU": 6.0}, 30)
    assert "2 workers of 4 CPU, 1 GPU each" in said
    assert "it lacks 3 of 9 CPU, 2 of 2 GPU (available: 6 CPU, 0 GPU)" in said
    assert "no node has enough for one worker" in refusal(size, {"CPU": 60.0, "GPU": 8.0}, 30)


@pytest.mark.parametrize(
    ("asked", "cluster", "needed", "size"),
    [
        (SizeAsked(), {"CPU": 8.0}, 1, ServiceSize(1, 1)),
        (SizeAsked(), {"CPU": 8.0}, 3, ServiceSize(3, 3)),
        (SizeAsked(), {"CPU": 8.0, "GPU": 4.0}, 1, ServiceSize(4, 4, "cuda", strategy="pack")),
        (SizeAsked(device="cpu", strategy="pack"), {"GPU": 4.0}, 1, ServiceSize(1, 1, strategy="pack")),
        (SizeAsked(least=2, most=6, cpus=2), {"CPU": 8.0}, 1, ServiceSize(2, 6, cpus=2)),
    ],
)
def test_the_size_follows_from_what_was_said_and_what_there_is(
    asked: SizeAsked, cluster: dict[str, float], needed: int, size: ServiceSize
) -> None:
    assert asked.on(cluster, needed) == size


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (SizeAsked(device="tpu"), "device 'tpu' is not one of cpu, cuda"),
        (SizeAsked(strategy="near"), "strategy 'near' is not one of pack, spread"),
        (SizeAsked(workers=4, most=2), "at most 2 workers are fewer than the 4"),
    ],
)
def test_a_size_that_is_none_is_refused(asked: SizeAsked, said: str) -> None:
    with pytest.raises(SessionError, match=said):
        asked.on({"CPU": 8.0}, 1)


def test_keys_and_places_of_the_program_stay_with_it() -> None:
    variables = {"GT_KEYS": "/a", "GT_KEY": "/b", "GT_CONFIG": "c.yaml", "HOME": "/root", "GT_MARK_SECONDS": "1"}
    assert service_environment(variables) == {"GT_MARK_SECONDS": "1"}


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "ray":
            raise ImportError("No module named 'ray'")
        return importer(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RayMissing, match=r"pip install 'gt-tensor\[ray\]'"):
        import_ray()


def test_a_folder_is_private_and_what_a_killed_service_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used, left = NodeFolder("used"), NodeFolder("left")
    os.close(left._lock)
    for each in (used, left):
        os.utime(each.path, (0, time.time() - 3600))
    now = NodeFolder("now")
    assert used.path.is_dir()
    assert not left.path.exists()
    assert now.path.stat().st_mode & 0o777 == 0o700
    assert now.write("worker/key", "secret").stat().st_mode & 0o777 == 0o600
    assert now.address("127.0.0.1") == now.address("127.0.0.1") != used.address("127.0.0.1")
    for each in (used, now):
        each.remove()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "gt-ray-open").mkdir(mode=0o755)
    with pytest.raises(SessionError, match="not a private folder"):
        NodeFolder("open")


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("said_by", ["address", "RAY_ADDRESS"])
def test_an_address_where_nobody_listens_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, scheme: str, said_by: str
) -> None:
    """Ray alone tries for minutes."""
    asked: list[str | None] = []

    def init(address: str | None, **_: object) -> None:
        asked.append(address)

    monkeypatch.setattr(cluster, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
        said = address if said_by == "address" else None
        monkeypatch.setenv("RAY_ADDRESS", "" if said else address)
        with pytest.raises(ConnectionFailed, match=r"Connection refused.*start one with `ray start --head`"):
            cluster.join_cluster(said)
        assert asked == []
        listener.listen()
        assert cluster.join_cluster(said)
    assert asked == [said]


def test_ray_finds_clusters_without_an_address_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda address, **_: asked.append(address))
    monkeypatch.setattr(cluster, "import_ray", lambda: ray)
    assert cluster.join_cluster("auto")
    assert asked == ["auto"]
