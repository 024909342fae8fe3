"""Where values go that find no room in memory: one file of this worker, unlinked, so that it ends with the process.

`Spilled` stands in a slot or in store for a value whose memory is out; values that looked at the same memory share one
`Outside`, and when nobody refers to that any more its place in the file is free. What goes out and when is in `keeping.py`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ranges import Ranges

from .buffers import Buffers, View

SPAN: Final = 1 << 46
"""Bytes of the longest file: more than any disk has."""
AT_ONCE: Final = 64 << 20
"""Bytes that are read or written by one call."""


class Outside:
    """A buffer of `nbytes` in the file. `inside` is its memory again, as long as somebody who loaded it has it."""

    __slots__ = ("__weakref__", "at", "inside", "nbytes")

    def __init__(self, at: int, nbytes: int) -> None:
        self.at, self.nbytes = at, nbytes
        self.inside: weakref.ref[Any] | None = None


class Spilled(NamedTuple):
    """A value whose memory is out."""

    outside: Outside
    view: View

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.view.shape)) * int(self.view.dtype.itemsize)


class Spill:
    """The file, made when it is first needed. `folder`: where, by default where temporary files go."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self.ranges = Ranges(SPAN, SPAN, 0)
        self.written = self.read = self.ahead = 0
        """Bytes that went out and came back since the start, and those that did so before they were wanted."""
        self._file = -1
        self._thread: ThreadPoolExecutor | None = None
        self._begun: weakref.WeakKeyDictionary[Outside, Future[Any]] = weakref.WeakKeyDictionary()

    @property
    def where(self) -> str:
        """The folder whose disk it is on."""
        return self.folder or tempfile.gettempdir()

    @property
    def used(self) -> int:
        """Bytes of the file in use."""
        return self.ranges.used_bytes

    def write(self, memory: memoryview) -> Outside:
        """The bytes, kept in the file. Raises `OSError`, as when the disk is full."""
        if self._file < 0:
            self._file = _unlinked(self.where)
        found = self.ranges.take(memory.nbytes)
        assert found is not None, "no disk is as large as the file may get"
        outside = Outside(found[0], memory.nbytes)
        weakref.finalize(outside, self._back, outside.at).atexit = False
        done = 0
        while done < memory.nbytes:
            done += os.pwrite(self._file, memory[done : done + AT_ONCE], outside.at + done)
        self.written += done
        return outside

    def load(self, outside: Outside, memory: memoryview) -> None:
        """Fill memory of the right size with what was kept. Raises `OSError`."""
        done = 0
        while done < outside.nbytes:
            count = os.preadv(self._file, [memory[done : done + AT_ONCE]], outside.at + done)
            if not count:
                raise OSError(f"the file of spilled values ends at {outside.at + done}")
            done += count
        self.read += done

    def begin(self, outside: Outside, buffers: Buffers) -> None:
        """Begin to read a buffer that will be wanted, in a thread of its own; nothing when that was begun already."""
        if outside in self._begun or (outside.inside is not None and outside.inside() is not None):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "gt-spill")
        self._begun[outside] = self._thread.submit(self._restore, outside, buffers)
        self.ahead += outside.nbytes

    def begun(self, but: Collection[Outside] = ()) -> int:
        """Bytes that are being read, or were, for somebody who has not come for them yet."""
        return sum(outside.nbytes for outside in self._begun if outside not in but)

    def reads(self, outside: Outside) -> bool:
        """Whether it was begun to be read, and nobody has come for it yet."""
        return outside in self._begun

    def forget(self) -> None:
        """What was begun is read when it is wanted."""
        self._begun.clear()

    def restored(self, outside: Outside, buffers: Buffers) -> Any:
        """The buffer's memory again. Raises `OSError`, `MemoryError`."""
        begun = self._begun.pop(outside, None)
        return self._restore(outside, buffers) if begun is None else begun.result()

    def _restore(self, outside: Outside, buffers: Buffers) -> Any:
        return buffers.restore(outside.nbytes, partial(self.load, outside))

    def close(self) -> None:
        """Give up the file; what is out is lost."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _back(self, at: int) -> None:
        self.ranges.back(at)
        if not self.ranges.used and self._file >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)  # nothing is out: the disk has its room again


def _unlinked(where: str) -> int:
    """A new file that has no name."""
    try:
        return os.open(where, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # a file system that has no nameless files
        number, name = tempfile.mkstemp(prefix="gt-spill-", dir=where)
        Path(name).unlink()
        return number
