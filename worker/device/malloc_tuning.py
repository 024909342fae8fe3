"""Keeping freed memory in the process: a page that is touched for the first time costs as much as computing on it ten times.

glibc gives memory back to the system as soon as an array at the end of the heap is freed, and takes what is large from the
system anew each time. A training step frees and makes the same arrays over and over, so a worker tells it to keep some.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any, Final

KEPT_HEAP_BYTES: Final = 256 << 20
"""Bytes that are kept at the end of the heap when nobody uses them."""
MMAP_THRESHOLD_BYTES: Final = 32 << 20
"""Bytes from which an array has pages of its own, which go back when it is freed: the most that glibc takes."""
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Tells glibc to keep freed memory. Returns False for another C library, or if the environment says otherwise."""
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_HEAP_BYTES))


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


def unused() -> float | None:
    """The share of the memory that the C library has from the system and nobody uses; None where it does not say."""
    ask = _mallinfo()
    if ask is None:
        return None
    said = ask()
    return said.fordblks / (said.arena + said.hblkhd) if said.arena + said.hblkhd else 0.0
