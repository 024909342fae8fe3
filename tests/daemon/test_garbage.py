"""Old garbage is looked for when nobody waits, or when the process has grown much."""

from __future__ import annotations

import gc
import subprocess
import sys

from gt.daemon.garbage import GROWTH_BYTES, IDLE_SECONDS, OldGarbage


def test_it_is_looked_for_while_nothing_is_to_be_done_or_when_there_may_be_much() -> None:
    looks: list[float] = []
    now, nbytes = 0.0, 1 << 20
    each = OldGarbage(lambda: nbytes, lambda: looks.append(now))
    for now in (1.0, IDLE_SECONDS, IDLE_SECONDS + 1, 2 * IDLE_SECONDS):
        each.look(now, idle=True)
    assert looks == [IDLE_SECONDS, 2 * IDLE_SECONDS]
    now = 9 * IDLE_SECONDS
    each.look(now, idle=False)
    assert len(looks) == 2, "somebody waits"
    nbytes += GROWTH_BYTES + 1
    for now in (600.0, 601.0):
        each.look(now, idle=False)
    assert looks[2:] == [600.0]


def test_python_itself_looks_through_young_objects_alone() -> None:
    """In a process of its own, since that holds for all of it."""
    code = """
import gc
from gt.daemon.garbage import leave_old_garbage
leave_old_garbage()
seen = []
gc.callbacks.append(lambda phase, about: seen.append(about["generation"]))
kept = [[number] for number in range(300_000)]
assert 0 in seen and 2 not in seen, set(seen)
assert gc.get_freeze_count() > 1000
"""
    if sys.version_info < (
        3,
        14,
    ):  # whose collector has no generation to leave out, and takes what is old in small steps
        subprocess.run([sys.executable, "-c", code], check=True)
    assert gc.isenabled()


def test_nobody_looks_while_modules_are_loaded_nor_later_among_what_they_hold() -> None:
    """In a process of its own, in which nothing else is frozen."""
    code = """
import gc
from gt.daemon.garbage import garbage_later
seen = []
gc.callbacks.append(lambda phase, about: seen.append(phase))
with garbage_later():
    kept = [[number] for number in range(5_000)]
    assert not seen
assert gc.isenabled() and gc.get_freeze_count() > len(kept)
try:
    with garbage_later():
        raise ImportError
except ImportError:
    assert gc.isenabled(), "an import that fails"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
