"""A daemon that is short of file descriptors: it refuses to start, or refuses connections, and spins and aborts never."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from daemons import TIMEOUT, Machine, Process

import gt
from gt.daemon.descriptors import MIN_DESCRIPTORS, connection_limit

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def limited(machine: Machine, room: str, most: int, *arguments: str) -> Process:
    """A daemon that may have so many descriptors."""
    command = f'ulimit -SHn {most}; exec "$0" -P -m "$@"'
    return machine.start(f"a {room}", ["bash", "-c", command, sys.executable, f"gt.{room}", *arguments])


@pytest.mark.parametrize("most", [24, MIN_DESCRIPTORS - 1])
def test_daemons_do_not_start_with_too_few_descriptors(machine: Machine, most: int) -> None:
    """They say how many they have and need; libzmq would abort the process."""
    address = f"ipc://{machine.temp}/few"
    for daemon in (
        limited(machine, "dispatcher", most, "--address", address),
        limited(machine, "worker", most, "--address", address, "--device", "cpu"),
    ):
        assert daemon.wait() == 1
        (line,) = daemon.lines
        assert f"this process may open {most} files at a time, and needs {MIN_DESCRIPTORS} or more" in line
    assert machine.left() == []


def test_a_session_goes_on_while_strangers_take_all_connections(machine: Machine) -> None:
    """A hundred connections where there is room for a few: those beyond the limit are hung up, so that accepting never fails,
    which libzmq would try again and again without a pause; when the others leave there is room again."""
    dispatcher = limited(
        machine, "dispatcher", MIN_DESCRIPTORS, "--address", "tcp://127.0.0.1:*", "--log-level", "info"
    )
    address = dispatcher.expect("listening at").split()[-1]
    machine.worker(address).expect("at your service")
    gt.connect(address)
    assert gt.ones(3).sum().item() == 3
    limit, process = connection_limit(MIN_DESCRIPTORS), psutil.Process(dispatcher.pid)
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection((host, int(port)), TIMEOUT)) for _ in range(100)]
        for stranger in strangers[limit:]:
            while stranger.recv(100):
                pass  # what libzmq greets with
        dispatcher.expect("too many connections")
        until = time.monotonic() + TIMEOUT
        while process.num_fds() >= MIN_DESCRIPTORS:  # a thread hangs up what has just been accepted
            assert time.monotonic() < until, "descriptors stay in use"
        assert (gt.ones(3) * 2).sum().item() == 6
    gt.connect(address)
    assert gt.ones(3).sum().item() == 3
    assert len([line for line in dispatcher.lines if "too many connections" in line]) == 1
