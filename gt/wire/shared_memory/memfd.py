"""Memory that another process on this machine may use: whose it is, how it is found, and how it is mapped there.

It is a memfd that others open by /proc/<pid>/fd/<n>: it has no name in any folder, so nothing is left of it however its
owner ends, and what another has mapped stays usable when the owner is gone. It is sealed against shrinking, so no
access can fail. Its name cannot be guessed: who was not told it cannot point others to it. Who may use what, and when, is
in `slab.py` and `ranges.py` and in who uses them.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

DEFAULT_SHARED_BYTES: Final = 256 << 20
"""The most bytes that a worker lends to its peers, unless GT_SHARED_MEMORY says otherwise. Pages are allocated when first
used."""
BULK_KIND: Final = "bulk-"
"""The kind of memory through which clients and workers exchange tensors."""
RUNNING_KIND: Final = "running-"
"""The kind of memory in which a worker tells what it is computing."""
SHARED_PAGES_FILE: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
"""Where the kernel says, and is told, whether shared memory has large pages."""
_LARGE_PAGE_BYTES: Final = 2 << 20
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FORM: Final = re.compile(r"([^#/]{1,200})/([0-9]{1,10})/([0-9]{1,10})/((?:bulk-|running-)?[0-9a-f]{16})")


@lru_cache(maxsize=1)
def machine() -> str:
    """Identifies the processes that can open each other's descriptors: one kernel, one process namespace, one user. Empty if
    unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return re.sub(r"[^\w:.-]", "", f"{boot}:{namespace}:{os.getuid()}")


class SharedMemory:
    """`nbytes` bytes of memory of this process, initially zeros. `where` tells others how to find it; `kind` is part of its
    name.

    Raises `OSError` if there is no such memory.
    """

    def __init__(self, nbytes: int, kind: str = "") -> None:
        self.descriptor = -1
        name = kind + os.urandom(8).hex()
        self.descriptor = os.memfd_create(f"gt-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, nbytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self.map = _in_large_pages(mmap.mmap(self.descriptor, nbytes))
        except BaseException:
            self.close()
            raise
        self.where = f"{machine()}/{os.getpid()}/{self.descriptor}/{name}"

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Lend no more. Others keep what they have mapped. At the end of a program, when modules are empty, too."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    def __del__(self) -> None:
        self.close()


def _in_large_pages(mapped: mmap.mmap) -> mmap.mmap:
    """Ask for large pages, where the kernel gives them to who asks (`SHARED_PAGES_FILE`): a copy then takes a fifth less time."""
    if len(mapped) >= _LARGE_PAGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def is_near(where: str) -> bool:
    """Whether memory that was announced so can be opened from here."""
    match = _FORM.fullmatch(where)
    return match is not None and match[1] == machine()


def map_memory(where: str, kind: str = "", *, write: bool = False) -> mmap.mmap:
    """Another process' memory, read-only unless `write`. Raises `OSError` or `ValueError` if it is not as announced."""
    match = _FORM.fullmatch(where)
    if match is None or not match[4].startswith(kind):
        raise ValueError("no announcement of memory")
    path = Path(f"/proc/{match[2]}/fd/{match[3]}")
    if str(path.readlink()) != f"/memfd:gt-{match[4]} (deleted)":
        raise ValueError("another file")
    opened = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("it could shrink under its readers")
        return _in_large_pages(mmap.mmap(opened, 0, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)))
    finally:
        os.close(opened)
