"""The memory of this process: how much it has, how to keep what is free in it, and how to give that back.

A page that is touched for the first time costs as much as computing on it ten times. glibc gives memory back to the system as
soon as an array at the end of the heap is freed, and takes what is large from the system anew each time.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any, Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_USED_PIECE_BYTES: Final = 256 << 10
"""The size of the pieces in which pages are used ahead."""


class ResidentMemory:
    """Tells the resident memory of this process; a read takes microseconds."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int:
        """In bytes."""
        return int(os.pread(self._file, 128, 0).split()[1]) * _PAGE_BYTES


def give_back_free_memory() -> bool:
    """Return what malloc keeps of freed memory to the system, which glibc does by itself at the end of each heap alone.
    Returns False where another C library has no such function."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    trim.argtypes = [ctypes.c_size_t]
    return bool(trim(0))


def keep_freed_memory(kept_bytes: int, mmap_threshold_bytes: int) -> bool:
    """Tells glibc to keep `kept_bytes` at the end of the heap when nobody uses them, and to take arrays of at least
    `mmap_threshold_bytes` (at most 32 MiB) from the system, to which they go back when they are freed. Returns False for another
    C library, or if the environment says otherwise."""
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, mmap_threshold_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, kept_bytes))


def use_ahead(size: int) -> None:
    """Use so many bytes of the heap and free them: what needs memory next finds pages that are there (`keep_freed_memory`)."""
    pieces = [bytearray(_USED_PIECE_BYTES) for _ in range(0, size, _USED_PIECE_BYTES)]
    del pieces


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


@lru_cache(maxsize=1)
def _mallinfo() -> Any:
    try:
        found = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    found.restype = _Mallinfo
    return found


def unused_share() -> float | None:
    """The share of the memory that the C library has from the system and nobody uses; None where it does not say."""
    ask = _mallinfo()
    if ask is None:
        return None
    said = ask()
    return said.fordblks / (said.arena + said.hblkhd) if said.arena + said.hblkhd else 0.0
