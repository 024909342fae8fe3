"""Processes of peers: whose has ended is told once, and only of those that are watched."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gt.dispatcher.peer_processes import PeerProcesses


@pytest.fixture
def processes() -> PeerProcesses:
    return PeerProcesses()


def sleeper() -> subprocess.Popen[bytes]:
    """A process that ends when its input does."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.process
def test_the_end_of_a_process_is_told_once(processes: PeerProcesses) -> None:
    with sleeper() as one, sleeper() as other:
        assert processes.watch(b"one", one.pid)
        assert processes.watch(b"other", other.pid)
        assert not [*processes.ended()]
        one.kill()
        assert processes.ends.poll(timeout=10)
        assert [*processes.ended()] == [b"one"]
        assert not [*processes.ended()]
        processes.keep(lambda peer: False)
        other.kill()
        other.wait()
        assert not processes.ends.poll(0)
        with pytest.raises(ProcessLookupError):
            processes.watch(b"other", other.pid)
    assert processes.peers == processes.pids == {}


def test_a_peer_without_a_process_here_is_not_watched(processes: PeerProcesses) -> None:
    assert not processes.watch(b"far away", 0)
