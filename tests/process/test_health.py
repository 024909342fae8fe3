"""`gt health` beside real daemons, and what a dispatcher tells the service manager that started it."""

from __future__ import annotations

import json
import signal
import socket
import time

import pytest
from daemons import Machine

from gt.monitor.health_probe import HERE, probe

pytestmark = [pytest.mark.process, pytest.mark.fresh]


def test_probes_tell_a_service_that_is_well_from_one_that_is_not(machine: Machine) -> None:
    """It has a worker, stands still, goes on, and ends; the service manager hears of its beginning, its beats and its end."""
    path = machine.temp / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(30)
        machine.environment["NOTIFY_SOCKET"] = str(path)
        address, dispatcher, _ = machine.service(1)
        assert manager.recv(4096).startswith(b"READY=1\nSTATUS=listening at tcp://127.0.0.1:")
        assert manager.recv(4096) == b"WATCHDOG=1"
        found = probe(address, timeout=10, workers=1, ready=True)
        assert found.healthy, found
        assert (found.facts["workers"], found.facts["expected"], found.facts["spares"]) == (1, 0, 0)
        assert not (few := probe(address, timeout=10, workers=2)).healthy
        assert few.reason == f"1 of 2 workers are in service at {address}"
        for which in (0, HERE):
            of_worker = probe(address, timeout=10, worker=which)
            assert of_worker.healthy
            assert of_worker.reason.startswith("worker 0 (in service) was heard ")
        assert probe(address, timeout=10, worker=7)[:2] == (False, "no worker 7 has joined")
        told = machine.command("health", address, "--json", "--ready")
        assert told.wait() == 0
        assert json.loads(told.lines[-1])["workers"] == 1
        dispatcher.signal(signal.SIGSTOP)
        began = time.monotonic()
        still = probe(address, timeout=0.3)
        assert time.monotonic() - began < 5
        assert (still.healthy, still.reason) == (False, f"no dispatcher answered at {address} in time")
        assert probe(address, timeout=0.1, worker=0).healthy, "a worker is not ended because its dispatcher is away"
        dispatcher.signal(signal.SIGCONT)
        assert probe(address, timeout=10).healthy
        dispatcher.signal(signal.SIGTERM)
        assert dispatcher.wait() == 0
        while (word := manager.recv(4096)) == b"WATCHDOG=1":
            pass
        assert word == b"STOPPING=1"
    path.unlink()
    assert not probe(address, timeout=0.2).healthy
