"""Stamps of ranges: by them a process that registers another one's pages knows whether these are still the same.

Registered memory (`worker/device/registered_memory.py`) is pages, and a device goes on using them after their owner has given
them up and has others at the same address. So a pool (`pool.py`) writes a number at the beginning of each range whenever it has
allocated its pages, and never the same one twice. Pages that were given up take their stamp along.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any, Final, NamedTuple

import numpy as np

from .ranges import PAGE_BYTES

PAGE_OFFSET_BYTES: Final = 2048
"""The offset of an array from the beginning of its range, in bytes. The C library's allocations begin at 16, and a copy
takes three times as long when its target lies a little behind its source modulo the page size: the processor then assumes that
it reads what was just written."""
_MAGIC: Final = b"gt-page-stamp-01"
_STAMP: Final = struct.Struct(f"={len(_MAGIC)}sQ")


class StampedRange(NamedTuple):
    """The pages from the beginning of a range to the end of an array in it, in this process."""

    memory: mmap.mmap
    """What keeps them mapped."""
    address: int
    nbytes: int
    stamp: int


def write_stamp(memory: mmap.mmap, offset: int, number: int) -> None:
    """Note that the range at `offset` has new pages."""
    _STAMP.pack_into(memory, offset, _MAGIC, number)


def stamped_range(array: np.ndarray[Any, Any]) -> StampedRange | None:
    """Where an array lies that is in shared memory and begins a range of it; None of any other."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    holder = getattr(root.base, "obj", root.base)  # NumPy may have taken a view of the buffer
    memory = holder if isinstance(holder, mmap.mmap) else getattr(holder, "memory", None)
    if not isinstance(memory, mmap.mmap):
        return None
    begin = int(np.frombuffer(memory, np.uint8).ctypes.data)
    offset = int(root.ctypes.data) - PAGE_OFFSET_BYTES - begin
    if offset < 0 or offset % PAGE_BYTES:
        return None
    magic, number = _STAMP.unpack_from(memory, offset)
    if magic != _MAGIC:
        return None
    nbytes = -(-(PAGE_OFFSET_BYTES + root.nbytes) // PAGE_BYTES) * PAGE_BYTES
    return StampedRange(memory, begin + offset, nbytes, number)
