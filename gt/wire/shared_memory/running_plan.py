"""The plan that a worker is computing, told in memory that outlives the worker: if its process ends, the dispatcher can still
read there what it was at.

It is told with stores to shared memory alone, since it changes with every plan. The words, of 64 bits each: whether the plan is
being computed, its order (0: unknown), and its client. A plan is being computed while the worker's thread looks up or compiles
its program, or runs its steps, or waits for a further thread that does; not while it waits for its turn, for pieces of peers or
for checks. A GPU computes by itself, later than the thread that asks it to. If it fails, the words are those of the plan of
which the thread learned that; its order is known only if the thread waits for the GPU after each step.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final, NamedTuple

from .memfd import RUNNING_KIND, SharedMemory, is_near, map_memory

IN_PROGRESS, ORDER, CLIENT = range(3)
WORDS: Final = struct.Struct("=3Q")
Words = memoryview | list[int]
"""Where a worker tells its plan: shared memory, or three numbers that nobody reads."""


class RunningPlan(NamedTuple):
    """What a worker was computing: a plan by its order (0 if that is unknown), and its client's number."""

    order: int
    client: int


class RunningPlanMemory:
    """A worker's end: `words` are what it tells, and `where` tells the dispatcher how to find them. Raises `OSError` if there is
    no such memory."""

    def __init__(self) -> None:
        self.memory = SharedMemory(WORDS.size, RUNNING_KIND)
        self.words: Words = memoryview(self.memory.map).cast("Q")
        self.where = self.memory.where


def map_running_plan(where: object) -> mmap.mmap | None:
    """A worker's memory, as it has announced it; None if it is not there, or on another machine or another user's."""
    if not isinstance(where, str) or not is_near(where):
        return None
    try:
        found = map_memory(where, RUNNING_KIND)
    except (OSError, ValueError):
        return None
    return found if len(found) == WORDS.size else None


def read_running_plan(memory: mmap.mmap) -> RunningPlan | None:
    """What a worker is computing now, or was when it ended; None if nothing."""
    in_progress, order, client = WORDS.unpack(memory)
    return RunningPlan(order, client) if in_progress else None
