"""A daemon that an actor supervises, as a real process: started again when it is killed, and ended with the actor."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from daemons import TIMEOUT, Machine

from gt.daemon.restart_policy import HAND_OVER_STATUS
from gt.ray.supervised_daemon import SupervisedDaemon

pytestmark = pytest.mark.process


def wait_for_listener(manager: socket.socket, path: Path, pid: int) -> None:
    """Wait until a daemon tells its service manager that it listens at a socket's path."""
    while not manager.recv(4096).startswith(f"READY=1\nSTATUS=listening at ipc://{path}".encode()):
        pass
    assert any(each.laddr == str(path) for each in psutil.Process(pid).net_connections("unix"))


@pytest.fixture
def manager(machine: Machine) -> Iterator[socket.socket]:
    """Where daemons say that they listen, as they say it to systemd."""
    path = machine.temp / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))
        made.settimeout(TIMEOUT)
        machine.environment["NOTIFY_SOCKET"] = str(path)
        yield made
    path.unlink(missing_ok=True)


def test_a_dispatcher_is_started_again_and_hands_over_when_its_actor_is_gone(
    machine: Machine, manager: socket.socket
) -> None:
    path = machine.temp / "dispatcher"
    marks = machine.temp / "marks"
    arguments = ["gt.dispatcher", "--address", f"ipc://{path}", "--marks", str(marks), "--hand-over"]
    daemon = SupervisedDaemon("the dispatcher", arguments, machine.environment)
    try:
        wait_for_listener(manager, path, daemon.process.pid)
        killed = daemon.process
        daemon.kill()
        killed.wait(TIMEOUT)
        daemon.look()
        assert daemon.process.pid != killed.pid
        wait_for_listener(manager, path, daemon.process.pid)
        os.close(daemon.write)  # as the kernel does when the actor's process ends
        assert daemon.process.wait(TIMEOUT) == HAND_OVER_STATUS
        daemon.write = os.dup(daemon.read)
    finally:
        daemon.close()
    for each in (marks, machine.temp):
        for left in each.iterdir():
            if left.is_file() or left.is_socket():
                left.unlink()
    marks.rmdir()
