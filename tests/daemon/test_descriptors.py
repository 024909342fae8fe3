"""The limit of file descriptors that daemons give themselves, and how many of them connections may have."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gt.daemon.descriptors import (
    MAX_DESCRIPTORS,
    MAX_RESERVED,
    MIN_DESCRIPTORS,
    connection_limit,
    descriptor_limit,
    raise_descriptor_limit,
)
from gt.daemon.host import is_orphaned

RAISE = "from gt.daemon.descriptors import raise_descriptor_limit; print(raise_descriptor_limit())"


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is put back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield min(hard, MAX_DESCRIPTORS) if hard != resource.RLIM_INFINITY else MAX_DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limited(most: int) -> subprocess.CompletedProcess[str]:
    """A process that raises its limit where no more than so many descriptors are permitted."""
    command = f'ulimit -SHn {most}; exec "$0" -c "$1"'
    return subprocess.run(["bash", "-c", command, sys.executable, RAISE], capture_output=True, text=True, check=False)


def test_the_soft_limit_becomes_the_hard_one_within_reason(hard: int) -> None:
    if hard <= 256:
        pytest.skip("the hard limit is too low for that")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert raise_descriptor_limit() == descriptor_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    assert raise_descriptor_limit() == hard


def test_too_few_are_refused_in_words() -> None:
    enough, few = limited(MIN_DESCRIPTORS), limited(MIN_DESCRIPTORS - 1)
    assert enough.stdout == f"{MIN_DESCRIPTORS}\n"
    assert few.returncode == 1
    assert f"may open {MIN_DESCRIPTORS - 1} files at a time, and needs {MIN_DESCRIPTORS} or more" in few.stderr


def test_connections_leave_some_to_the_daemon() -> None:
    for limit in (MIN_DESCRIPTORS, 256, 1024, MAX_DESCRIPTORS):
        assert limit - MAX_RESERVED <= connection_limit(limit) <= limit - MIN_DESCRIPTORS // 4


def test_a_pipe_with_a_high_number_is_watched(hard: int) -> None:
    """A program with thousands of open files passes its daemons a pipe that select(2) does not know."""
    if hard <= 2000:
        pytest.skip("the hard limit is too low for that")
    raise_descriptor_limit()
    read, write = os.pipe()
    os.dup2(read, 2000)
    try:
        assert not is_orphaned(2000)
        os.close(write)
        assert is_orphaned(2000)
    finally:
        os.close(read)
        os.close(2000)
