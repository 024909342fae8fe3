"""Probes of what does not answer: each ends in time with a line that says why."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gt.commands.app import app
from gt.monitor.health_probe import probe


def test_nobody_listens(tmp_path: Path) -> None:
    assert probe(f"ipc://{tmp_path}/none", timeout=5).reason.endswith("/none: No such file or directory")
    assert probe("here", timeout=5).reason.startswith("'here' is no address")
    assert probe("tcp://127.0.0.1:70000", timeout=5).reason.startswith("'tcp://127.0.0.1:70000' is no address")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    began = time.monotonic()
    assert probe(address, timeout=60).reason == f"nobody can be asked at {address}: Connection refused"
    assert time.monotonic() - began < 30, "what was refused is not waited for"
    said = CliRunner().invoke(app, ["health", f"ipc://{tmp_path}/none"])
    assert (said.exit_code, said.output.split(":")[0]) == (1, "unhealthy")
    assert CliRunner().invoke(app, ["health", "ipc:///x", "--worker", "one"]).exit_code == 2


def test_who_accepts_and_says_nothing_is_unhealthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert probe(address, timeout=0.2).reason == f"no dispatcher answered at {address} in time"


def test_a_name_that_nobody_resolves_in_time_does_not_hold_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> list[object]:
        raise OSError("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert probe("tcp://nowhere:7000", timeout=5).reason == "the host of tcp://nowhere:7000 is not found: no such host"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    assert probe("tcp://nowhere:7000", timeout=5).reason.endswith("no answer in time")
