"""Words to the service manager: as datagrams to the socket that it names, and none without one."""

from __future__ import annotations

import os
import socket

import pytest

from gt.daemon.service_manager import ServiceManager


def test_a_name_in_the_abstract_namespace_is_reached_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        name = f"gt-test-{os.getpid()}"
        heard.bind(f"\0{name}")
        heard.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        manager = ServiceManager()
        assert "NOTIFY_SOCKET" not in os.environ
        manager.ready("x")
        assert heard.recv(100) == f"READY=1\nSTATUS=x\nMAINPID={os.getpid()}".encode()
    manager.beat()  # nobody hears it, which harms nothing


def test_without_a_manager_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = ServiceManager()
    manager.ready("x")
    manager.stopping()
