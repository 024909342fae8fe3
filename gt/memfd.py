"""Memory that another process on this machine may read: whose it is, how it is found, and how it is mapped there.

It is a memfd that others open by /proc/<pid>/fd/<n>: it has no name in any folder, so nothing is left of it however its
owner ends, and what a reader has mapped stays readable when the owner is gone. It is sealed against shrinking, so no
access can fail. Who may read what, and when, is in `arena.py` and in who uses it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = 256 << 20
"""Bytes of shared memory that a process lends at most, unless GT_SHARED_MEMORY says so. Pages are taken as they are needed."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FORM: Final = re.compile(r"([^#/]{1,200})/([0-9]{1,10})/([0-9]{1,10})/((?:bulk-)?[0-9a-f]{16})")


def machine() -> str:
    """Who can open each other's descriptors: one kernel, one process namespace, one user. Empty when that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return re.sub(r"[^\w:.-]", "", f"{boot}:{namespace}:{os.getuid()}")


class Memory:
    """So many bytes of this process' own, zeros at first. `where`: by what others find it. `kind` is part of its name."""

    def __init__(self, nbytes: int, kind: str = "") -> None:
        name = kind + os.urandom(8).hex()
        self.descriptor = os.memfd_create(f"gt-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, nbytes)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.map = mmap.mmap(self.descriptor, nbytes)
        self.where = f"{machine()}/{os.getpid()}/{self.descriptor}/{name}"

    def close(self) -> None:
        """Lend no more. What others have mapped they keep."""
        os.close(self.descriptor)


def near(where: str) -> bool:
    """Whether memory that was announced like this can be opened from here."""
    match = _FORM.fullmatch(where)
    return match is not None and match[1] == machine()


def mapped(where: str) -> mmap.mmap:
    """Another process' memory, read only. Raises `OSError` or `ValueError` when it is not what it was announced to be."""
    match = _FORM.fullmatch(where)
    if match is None:
        raise ValueError("no announcement of memory")
    path = Path(f"/proc/{match[2]}/fd/{match[3]}")
    if str(path.readlink()) != f"/memfd:gt-{match[4]} (deleted)":
        raise ValueError("another file")
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("it could shrink under its readers")
        return mmap.mmap(opened, 0, prot=mmap.PROT_READ)
    finally:
        os.close(opened)
