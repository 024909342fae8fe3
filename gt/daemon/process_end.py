"""Noticing at once that a process on this machine has ended, by a descriptor of it (pidfd)."""

from __future__ import annotations

import os
import select
from typing import Any, Final

MACHINE_FACTS: Final = ("host", "namespace", "boot")
"""Of `host_facts`, those by which processes know that they see each other's numbers."""


def _pid_here(facts: Any, here: dict[str, Any]) -> int | None:
    """The number of a process, given what it says of itself (`host_facts`); None if it is not on this machine (`here`)."""
    known = facts if isinstance(facts, dict) else {}
    pid = known.get("pid")
    if type(pid) is not int or pid <= 0 or any(known.get(key) != here[key] for key in MACHINE_FACTS):
        return None
    return pid


def process_descriptor(facts: Any, here: dict[str, Any]) -> int | None:
    """A descriptor that can be read from when a process has ended, given what it says of itself (`host_facts`); None if it is not
    on this machine (`here`), or is none."""
    pid = _pid_here(facts, here)
    try:
        return None if pid is None else os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None  # its silence will tell


def is_gone(facts: Any, here: dict[str, Any]) -> bool:
    """Whether a process was on this machine and has ended. One that is elsewhere may live."""
    pid = _pid_here(facts, here)
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # another user's
    return False


def has_ended(descriptor: int) -> bool:
    """Whether the process of a descriptor has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
