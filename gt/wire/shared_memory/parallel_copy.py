"""Copying large arrays in several threads: one thread moves a part of what a host with many cores can.

On the host of an H100 (16 cores) one thread copied 11 GB/s between pages that had been used, and a GPU reads 53 GB/s from there.
"""

from __future__ import annotations

import os
from functools import lru_cache
from threading import Thread
from typing import Any, Final

import numpy as np

MIN_PARALLEL_BYTES: Final = 8 << 20
"""The smallest array that several threads copy; to start one takes as long as to copy half a MiB."""
MAX_COPY_THREADS: Final = 4
CORES_PER_COPY_THREAD: Final = 4
"""A copy takes one of so many cores, because others compute, and a few threads use all that memory gives."""
Array = np.ndarray[Any, Any]


@lru_cache(maxsize=1)
def copy_threads() -> int:
    """How many threads copy a large array on this host."""
    return max(1, min(MAX_COPY_THREADS, len(os.sched_getaffinity(0)) // CORES_PER_COPY_THREAD))


def copy_array(target: Array, source: Array, threads: int | None = None) -> None:
    """Copy an array to another one of its shape and dtype. If it is interrupted, the rest is copied all the same, by threads that
    keep both arrays alive."""
    count = copy_threads() if threads is None else threads
    if source.nbytes < MIN_PARALLEL_BYTES or count < 2:
        target[...] = source
        return
    if target.flags.c_contiguous and source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)
    step = -(-len(source) // count)
    parts = [slice(at, at + step) for at in range(0, len(source), step)]
    others = [Thread(target=np.copyto, args=(target[part], source[part]), daemon=True) for part in parts[1:]]
    for each in others:
        each.start()
    target[parts[0]] = source[parts[0]]
    for each in others:
        each.join()
