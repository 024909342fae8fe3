"""Daemons that are killed are started again, as often as it takes, and nothing of the dead ones is left."""

from __future__ import annotations

import grp
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from daemons import TIMEOUT, Machine, Process, left_by_kill
from effort import EFFORT

import gt

pytestmark = [pytest.mark.process, pytest.mark.fresh]
ROUNDS = 20 if EFFORT >= 1 else 10
"""How often a daemon is killed and something is computed after it; the dispatcher is the victim of every fifth kill."""


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def child(service: Process, room: str) -> psutil.Process:
    """A daemon of a service."""
    return next(each for each in psutil.Process(service.pid).children() if f"gt.{room}" in each.cmdline())


def memory(service: Process) -> int:
    """The bytes of the supervisor."""
    return int(psutil.Process(service.pid).memory_info().rss)


def left_over(machine: Machine, service: Process) -> tuple[int, list[str]]:
    """The supervisor's descriptors, and the files of the service, with no numbers of processes in their names."""
    files = [
        re.sub(r"\d+", "N", str(path.relative_to(machine.temp)))
        for path in machine.temp.rglob("*")
        if path.parent.name != "marks"
    ]  # which come and go
    runtime = Path(machine.environment["XDG_RUNTIME_DIR"])
    files += [re.sub(r"[\da-f]{2,}", "N", path.name) for path in (runtime / "gt").iterdir()]
    return psutil.Process(service.pid).num_fds(), sorted(files)


def test_no_number_of_kills_ends_a_service(machine: Machine, tmp_path: Path) -> None:
    """After each the session computes on."""
    address = f"ipc://{machine.temp}/service"
    options = ["--workers", "2", "--log-level", "info", "--instruction-log", str(tmp_path / "run.log")]
    service = machine.command("up", "--address", address, *options)
    service.expect("2 workers at")
    gt.connect(address)
    assert gt.ones(3).sum().item() == 3
    before, descriptors = left_over(machine, service), child(service, "dispatcher").num_fds()
    began = memory(service)
    for turn in range(ROUNDS):
        room = "dispatcher" if turn % 5 == 4 else "worker"
        victim = child(service, room)
        if room == "dispatcher":
            assert victim.num_fds() <= descriptors, "nothing is left of the workers that were killed"
        victim.kill()
        name = "the dispatcher" if room == "dispatcher" else "worker"
        assert name in service.expect("was killed by SIGKILL; it is started again")
        for _ in range(2 if room == "dispatcher" else 1):
            service.expect("at your service")
        assert (gt.ones(3) * turn).sum().item() == 3 * turn
        assert gt.stats()["service"]["workers"] == 2
    assert service.running()
    assert left_over(machine, service) == before
    assert memory(service) < began + (4 << 20)
    gt.disconnect()
    service.signal(signal.SIGTERM)
    assert service.wait() == 0
    assert machine.left() == []
    logs = {"run.log", *(f"run.start-{start}.log" for start in range(2, 2 + ROUNDS // 5))}
    assert {path.name for path in tmp_path.iterdir()} == logs
    assert all("fetch" in (tmp_path / log).read_text() for log in logs), "what led to a kill is still there"


def test_a_closed_terminal_ends_a_service_in_order(machine: Machine) -> None:
    """SIGHUP ends `gt up`, and a worker by hand, as Ctrl-C does, and nothing is left, a group's folder neither."""
    group = grp.getgrgid(os.getegid()).gr_name
    service = machine.command("up", "--workers", "1", "--group", group, "--log-level", "info")
    address = service.expect("1 worker at ipc://").split()[3].rstrip(";")
    joined = machine.command("worker", "--address", address, "--device", "cpu", "--log-level", "info")
    joined.expect("worker 1 on cpu at your service")
    joined.signal(signal.SIGHUP)
    assert joined.wait() == 0
    service.expect("worker 1 was lost: it was stopped")
    service.signal(signal.SIGHUP)
    assert service.wait() == 0
    assert machine.left() == []


def test_a_killed_service_leaves_nothing_of_its_group(machine: Machine) -> None:
    """Its daemons end when they find that `gt up` is gone, and the last of them tidies up."""
    service = machine.command("up", "--workers", "1", "--group", grp.getgrgid(os.getegid()).gr_name)
    service.expect("1 worker at ipc://")
    daemons = psutil.Process(service.pid).children()
    service.signal(signal.SIGKILL)
    assert not psutil.wait_procs(daemons, TIMEOUT)[1]
    assert machine.left() == []


def test_sessions_wait_for_a_worker_that_others_start_again(machine: Machine) -> None:
    """`gt worker --supervised`: systemd or a loop starts the next one, and what was computed is there again."""
    machine.environment["GT_LOG_LEVEL"] = "info"
    address = f"ipc://{machine.temp}/service"
    service = machine.command("dispatcher", "--address", address, "--marks", f"{machine.temp}/marks", "--workers", "1")
    service.expect("listening at")
    options = ["worker", "--address", address, "--device", "cpu", "--supervised", "--marks", f"{machine.temp}/marks"]
    first = machine.command(*options)
    first.expect("at your service")
    gt.connect(address)
    x = gt.ones(3) * 2
    assert x.sum().item() == 6
    first.signal(signal.SIGKILL)
    service.expect("worker 0 was lost")
    asked = x.sum()
    machine.command(*options).expect("at your service")
    assert asked.item() == 6
    gt.disconnect()
    machine.close()
    left_by_kill(machine, first)
    shutil.rmtree(f"{machine.temp}/marks")
