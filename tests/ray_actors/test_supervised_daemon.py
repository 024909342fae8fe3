"""A daemon that an actor supervises, as a real process: started again when it is killed, and ended with the actor."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest
from daemons import TIMEOUT, Machine

from gt.daemon.restart_policy import HAND_OVER_STATUS
from gt.ray.supervised_daemon import SupervisedDaemon

pytestmark = pytest.mark.process


def wait_for_listener(path: Path, pid: int) -> None:
    """Wait until a daemon listens at a socket's path."""
    deadline = time.monotonic() + TIMEOUT
    process = psutil.Process(pid)
    while not any(each.laddr == str(path) for each in process.net_connections("unix")):
        assert time.monotonic() < deadline, f"nobody listens at {path} within {TIMEOUT:g} s"
        time.sleep(0.02)


def test_a_dispatcher_is_started_again_and_hands_over_when_its_actor_is_gone(machine: Machine) -> None:
    path = machine.temp / "dispatcher"
    marks = machine.temp / "marks"
    arguments = ["gt.dispatcher", "--address", f"ipc://{path}", "--marks", str(marks), "--hand-over"]
    daemon = SupervisedDaemon("the dispatcher", arguments, machine.environment)
    try:
        wait_for_listener(path, daemon.process.pid)
        killed = daemon.process
        daemon.kill()
        killed.wait(TIMEOUT)
        daemon.look()
        assert daemon.process.pid != killed.pid
        wait_for_listener(path, daemon.process.pid)
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
