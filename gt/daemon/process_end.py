"""Noticing at once that a process on this machine has ended, by a descriptor of it (pidfd)."""

from __future__ import annotations

import os
import select
from typing import Any

from .host import host_facts


def process_descriptor(facts: Any, here: dict[str, Any] | None = None) -> int | None:
    """A descriptor that can be read from when a process has ended, given what it says of itself (`host_facts`); None if it is not
    on this machine (`here`), or is none."""
    here = here or host_facts()
    known = facts if isinstance(facts, dict) else {}
    pid = known.get("pid")
    if type(pid) is not int or pid <= 0 or any(known.get(key) != here[key] for key in ("host", "namespace", "boot")):
        return None
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None  # its silence will tell


def has_ended(descriptor: int) -> bool:
    """Whether the process of a descriptor has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
