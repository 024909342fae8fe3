"""What a worker is computing is read in its memory, also when it has ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gt.wire.shared_memory.memfd import SharedMemory
from gt.wire.shared_memory.running_plan import (
    CLIENT,
    IN_PROGRESS,
    ORDER,
    RunningPlan,
    RunningPlanMemory,
    map_running_plan,
    read_running_plan,
)

TELLS = """
import os, signal, sys
from gt.wire.shared_memory.running_plan import RunningPlanMemory
memory = RunningPlanMemory()
print(memory.where, flush=True)
sys.stdin.readline()
memory.words[1], memory.words[2], memory.words[0] = 1 << 62, 7, 1
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_read_after_the_end_of_a_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", TELLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdin is not None
    with child.stdout, child.stdin:
        memory = map_running_plan(child.stdout.readline().strip())
        assert memory is not None
        assert read_running_plan(memory) is None
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert child.wait(30) == -9
    assert read_running_plan(memory) == RunningPlan(1 << 62, 7)


def test_a_plan_that_is_over_is_none() -> None:
    told = RunningPlanMemory()
    memory = map_running_plan(told.where)
    assert memory is not None
    told.words[ORDER], told.words[CLIENT], told.words[IN_PROGRESS] = 3, 2, 1
    assert read_running_plan(memory) == RunningPlan(3, 2)
    told.words[IN_PROGRESS] = 0
    assert read_running_plan(memory) is None


@pytest.mark.parametrize("kind", ["running-", "bulk-", ""])
def test_other_memory_is_not_believed(kind: str) -> None:
    """Of another size, or for something else."""
    memory = SharedMemory(4096, kind)
    assert map_running_plan(memory.where) is None


@pytest.mark.parametrize("where", [None, 3, "", "nonsense", "a/1/2/running-0123456789abcdef", b"x"])
def test_what_is_no_announcement_is_none(where: object) -> None:
    assert map_running_plan(where) is None


def test_memory_that_is_gone_is_none() -> None:
    told = RunningPlanMemory()
    where = told.where
    del told
    assert map_running_plan(where) is None
