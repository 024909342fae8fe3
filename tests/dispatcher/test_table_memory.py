"""Tables grow into memory that has been used before."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROW = """
import gc, resource, sys
import gt.dispatcher.process
from gt.dispatcher.table_memory import use_table_memory_ahead

kept = sys.argv[1] == "ahead" and use_table_memory_ahead()
gc.disable()
numbers = list(range(1 << 50, (1 << 50) + 131072))
table, most = {}, 0
for number in numbers:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    table[number] = None
    most = max(most, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(kept), most)
"""


def faults_of_one_entry(how: str) -> tuple[bool, int]:
    """(whether memory is kept, how many pages the system had to give at most while one entry was added)."""
    out = subprocess.run([sys.executable, "-c", GROW, how], check=True, capture_output=True, text=True)
    kept, most = out.stdout.split()
    return kept == "1", int(most)


def test_a_table_that_grows_needs_no_new_pages() -> None:
    """A dictionary of 131,072 tensors moves into pages that the dispatcher has used when it started."""
    kept, most = faults_of_one_entry("ahead")
    if not kept:
        pytest.skip("not glibc")
    assert most < 50
    assert faults_of_one_entry("late")[1] > 500
