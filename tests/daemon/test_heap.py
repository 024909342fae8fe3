"""Freed memory stays with the process, up to a bound."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gt.worker.device.heap import KEPT_HEAP_BYTES

FREE = """
import os, resource, sys
import numpy as np
from gt.worker.device.heap import keep_freed_arrays
kept = keep_freed_arrays()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20
before = resident()
arrays = [np.ones(1 << 17) for _ in range(int(sys.argv[1]))]
del arrays
print(int(kept), resident() - before)
"""


def resident_after(megabytes: int, **environment: str) -> tuple[bool, int]:
    """(whether memory is kept, how many megabytes more the process has after so many were used and freed)."""
    command = [sys.executable, "-c", FREE, str(megabytes)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    kept, more = out.stdout.split()
    return kept == "1", int(more)


def test_freed_memory_is_kept_up_to_a_bound() -> None:
    """What was used and freed need not be taken from the system again; a very large part of it goes back."""
    kept, more = resident_after(100)
    if not kept:
        pytest.skip("not glibc")
    assert more > 80
    kept, more = resident_after((KEPT_HEAP_BYTES >> 20) + 200)
    assert kept
    assert more < (KEPT_HEAP_BYTES >> 20) + 20


def test_the_environment_goes_before() -> None:
    """Who sets glibc's own variables is not overruled."""
    kept, more = resident_after(100, MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept
    assert more < 50
