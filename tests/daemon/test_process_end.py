"""Ends of processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from gt.daemon.host import host_facts
from gt.daemon.process_end import has_ended, is_gone, process_descriptor


def test_a_process_that_lives_is_not_gone() -> None:
    here = host_facts()
    descriptor = process_descriptor(here, here)
    assert descriptor is not None
    assert not has_ended(descriptor)
    assert not is_gone(here, here)
    os.close(descriptor)


def test_a_process_that_has_ended_is_gone() -> None:
    here = host_facts()
    child = subprocess.Popen([sys.executable, "-c", ""])
    facts = {**here, "pid": child.pid}
    descriptor = process_descriptor(facts, here)
    child.wait()
    assert descriptor is not None
    assert has_ended(descriptor)
    assert is_gone(facts, here)
    os.close(descriptor)


def test_of_other_machines_nothing_is_known() -> None:
    """Nor of nonsense: whatever it is, it may live."""
    here = host_facts()
    for facts in ({**here, "boot": "another"}, {**here, "pid": "7"}, {**here, "pid": -1}, {}, None):
        assert process_descriptor(facts, here) is None
        assert not is_gone(facts, here)
