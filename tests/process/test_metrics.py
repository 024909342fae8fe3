"""Metrics of real services: over HTTP, of all workers and clients, and one line for what cannot be served."""

from __future__ import annotations

import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import psutil
import pytest
from daemons import TIMEOUT, Machine, ends, free_port

pytest.importorskip("prometheus_client")

pytestmark = pytest.mark.process

LOOP = """
gt.connect(sys.argv[1])
x = gt.ones(64, 64)
for turn in range(10**6):
    x = (x @ x) * 0.01
    if turn % 10 == 9:
        say("turn", x[0, 0].item())
"""


def scraped(port: int) -> dict[str, float]:
    """What is served now, by name and labels; nothing while nothing is."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, ConnectionError):
        return {}
    return {
        name: float(number) for name, _, number in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def until(port: int, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The first answer of which that holds."""
    deadline = time.monotonic() + TIMEOUT
    found: dict[str, float] = {}
    while time.monotonic() < deadline:
        found = scraped(port)
        if holds(found):
            return found
    raise AssertionError(f"not in {TIMEOUT:g} s; the last answer was {found}")


def test_a_dispatcher_serves_what_all_its_workers_and_clients_do(machine: Machine) -> None:
    port = free_port()
    address, _, workers = machine.service(2, "--metrics-port", str(port))
    program = machine.program(LOOP, address)
    program.expect("turn")
    first = until(
        port,
        lambda found: (
            found.get('gt_worker_plans_total{worker="0"}', 0) > 0 and any("gt_client_runs" in k for k in found)
        ),
    )
    assert first["gt_stream_up"] == 1
    assert (first["gt_workers"], first["gt_clients"]) == (2, 1)
    later = until(port, lambda found: found.get("gt_fetches_total", 0) > first["gt_fetches_total"])
    counters = [name for name in first if "_total" in name or "_bucket" in name]
    assert len(counters) > 30
    assert [name for name in counters if later[name] < first[name]] == []
    assert later['gt_fetch_seconds_bucket{le="+Inf"}'] > 0
    program.signal(signal.SIGKILL)
    workers[1].signal(signal.SIGTERM)
    mentions = re.compile(r'worker="1"|client="').search
    gone = until(port, lambda found: bool(found) and not any(map(mentions, found)))
    assert gone["gt_clients"] == 0


@pytest.mark.fresh
def test_it_is_bound_to_loopback_and_ends_with_the_dispatcher_however_that_ends(machine: Machine) -> None:
    port = free_port()
    _, dispatcher, _ = machine.service(1, "--metrics-port", str(port))
    until(port, bool)
    [exporter] = psutil.Process(dispatcher.pid).children()
    bound = [each.laddr for each in exporter.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    assert bound == [("127.0.0.1", port)]
    dispatcher.signal(signal.SIGKILL)
    assert ends(exporter.pid)


def test_gt_up_serves_them_too(machine: Machine) -> None:
    port = free_port()
    address = f"ipc://{machine.temp}/up"
    up = machine.command("up", "--workers", "1", "--address", address, "--metrics-port", str(port))
    up.expect("1 worker at")
    assert until(port, lambda found: found.get("gt_workers") == 1)["gt_stream_up"] == 1
    up.signal(signal.SIGINT)
    assert up.wait() == 0, up.lines
    assert scraped(port) == {}


@pytest.mark.parametrize("name", ["dispatcher", "up"])
def test_a_port_that_is_taken_is_one_line_before_anything_starts(machine: Machine, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = machine.command(name, "--address", f"ipc://{machine.temp}/here", "--metrics-port", str(port))
        assert process.wait() == 1
    assert process.lines == [f"gt: --metrics-port {port} cannot be bound at 127.0.0.1: Address already in use"]


def test_without_the_package_it_says_what_to_install(machine: Machine) -> None:
    hidden = "import sys; sys.modules['prometheus_client'] = None; from gt.cli import main; main()"
    arguments = ["dispatcher", "--address", f"ipc://{machine.temp}/here", "--metrics-port", str(free_port())]
    process = machine.start("gt dispatcher", [sys.executable, "-c", hidden, *arguments])
    assert process.wait() == 1
    assert process.lines == ["gt: --metrics-port needs prometheus_client: pip install 'gt-tensor[metrics]'"]
