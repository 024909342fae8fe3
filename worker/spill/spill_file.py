"""Storage for values that have no room in memory: pinned memory of the host, if the device is a GPU, and then one file of this
worker, unlinked, so that it ends with the process.

`SpilledValue` stands in a slot or in store for a value whose memory is out; values that looked at the same memory share one
`SpilledBuffer`, and when nobody refers to that any more its place is free. What is evicted, and when, is in
`worker/memory_limit/limiter.py`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from gt.wire.shared_memory.ranges import Ranges, round_to_pages
from gt.worker.device.buffers import Buffers, BufferView
from gt.worker.device.pinned_memory import PinnedBuffer, PinnedPool

from .eviction import FILE_TIER, PINNED_TIER

MAX_FILE_BYTES: Final = 1 << 46
"""The bytes of the longest file: more than any disk has."""
MAX_IO_BYTES: Final = 64 << 20
"""The most bytes that one call reads or writes."""
PART_BYTES: Final = 1 << 20
"""The bytes that are read at once for somebody else, while they are in the processor's cache."""


class SpilledBuffer:
    """A buffer of `nbytes` in a pinned buffer, or at a place in the file. `inside` is its memory again, as long as
    somebody who loaded it has it; `free` gives up where it is."""

    __slots__ = ("__weakref__", "at", "free", "inside", "nbytes", "pinned")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.at = -1
        self.pinned: PinnedBuffer | None = None
        self.inside: weakref.ref[Any] | None = None
        self.free: Callable[[], object] = lambda: None

    @property
    def tier(self) -> int:
        """The tier in which it is (`eviction.py`)."""
        return FILE_TIER if self.pinned is None else PINNED_TIER


class SpilledValue(NamedTuple):
    """Stands for a value whose memory was evicted."""

    outside: SpilledBuffer
    view: BufferView

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.view.shape)) * int(self.view.dtype.itemsize)


class FileWrite(NamedTuple):
    """A buffer that a thread writes from a pinned buffer to a place in the file. It may die meanwhile: then whatever is in the
    pinned one is written, and nobody reads it."""

    outside: weakref.ref[SpilledBuffer]
    pinned: PinnedBuffer
    nbytes: int
    at: int
    future: Future[None]


class SpillStorage:
    """The file, made when it is first needed, behind the `pinned` memory. `folder`: where, by default where temporary files
    go."""

    def __init__(self, folder: str | None = None, pinned: PinnedPool | None = None) -> None:
        self.folder = folder
        self.pinned = pinned
        self.ranges = Ranges(MAX_FILE_BYTES, MAX_FILE_BYTES, 0)
        self.written = self.read = self.ahead = self.demoted = 0
        """Bytes that went out and came back since the start, those that did so before they were wanted, and those that went on
        from pinned memory to the file."""
        self._file = -1
        self._thread: ThreadPoolExecutor | None = None
        self._begun: weakref.WeakKeyDictionary[SpilledBuffer, Future[Any]] = weakref.WeakKeyDictionary()
        self._filling: dict[SpilledBuffer, tuple[Future[None], PinnedBuffer]] = {}
        """What is read to pinned memory."""
        self._writer: ThreadPoolExecutor | None = None
        self._writing: list[FileWrite] = []
        """What is written from pinned memory, and is still there. The file has room for it."""

    @property
    def where(self) -> str:
        """The folder whose disk it is on."""
        return self.folder or tempfile.gettempdir()

    @property
    def used(self) -> int:
        """Bytes that are in use outside: of pinned memory and of the file."""
        return self.ranges.used_bytes - self.going + (0 if self.pinned is None else self.pinned.used)

    @property
    def going(self) -> int:
        """Bytes that are being written from pinned memory to the file."""
        return sum(round_to_pages(write.nbytes) for write in self._writing)

    def put(self, value: Any, nbytes: int, buffers: Buffers) -> SpilledBuffer:
        """A value's whole buffer: a copy in pinned memory that nobody waits for, if there is room, or else in the file. Raises
        `OSError`, as when the disk is full."""
        buffer = None
        if self.pinned is not None:
            with contextlib.suppress(MemoryError):  # the host may have less to pin than it was thought to
                buffer = self.pinned.take(nbytes)
        if buffer is None or self.pinned is None:
            return self.write(buffers.dump(value))
        self.pinned.device.copy_out(value, buffer)
        outside = SpilledBuffer(nbytes)
        self._hold(outside, buffer)
        self.written += nbytes
        return outside

    def write(self, memory: memoryview) -> SpilledBuffer:
        """The bytes, kept in the file. Raises `OSError`, as when the disk is full."""
        outside = SpilledBuffer(memory.nbytes)
        self._write(outside, memory)
        self.written += memory.nbytes
        return outside

    def demote(self, outside: SpilledBuffer) -> None:
        """From pinned memory to the file, now: waits for the thread that writes it. Raises `OSError`."""
        self.send_on(outside)
        (write,) = [each for each in self._writing if each.outside() is outside]
        wait([write.future])
        self._gone_on(write)

    def send_on(self, outside: SpilledBuffer) -> None:
        """Begin to write a buffer from pinned memory to the file, in a thread that waits for its copy; nothing when that was
        begun already. It stays where it is until it is written and somebody asks who has `gone_on`. Raises `OSError`."""
        assert outside.pinned is not None, "it is in pinned memory"
        if self.sends_on(outside):
            return
        at = self._place(outside.nbytes)
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "gt-spill-out")
        future = self._writer.submit(self._pour, outside.pinned.data[: outside.nbytes], at)
        self._writing.append(FileWrite(weakref.ref(outside), outside.pinned, outside.nbytes, at, future))

    def sends_on(self, outside: SpilledBuffer) -> bool:
        """Whether a buffer is on its way from pinned memory to the file."""
        return any(each.outside() is outside for each in self._writing)

    def gone_on(self) -> None:
        """Give up the pinned buffers of those that are in the file now."""
        for write in [each for each in self._writing if each.future.done()]:
            with contextlib.suppress(OSError):  # it is still in pinned memory, and whoever must have that room is told
                self._gone_on(write)

    def _gone_on(self, write: FileWrite) -> None:
        """A buffer is in the file, and no longer in pinned memory. Raises `OSError` where it could not be written."""
        self._writing.remove(write)
        error = write.future.exception()
        if isinstance(error, OSError):  # anew, for one that was raised here would keep what is outside alive
            self._back(write.at)
            raise OSError(error.errno, error.strerror)
        if error is not None:
            raise error
        outside = write.outside()
        if outside is None or outside.pinned is not write.pinned:
            self._back(write.at)
            return
        free = outside.free
        outside.at, outside.pinned = write.at, None  # in this order, for whoever reads it in another thread
        self._freed_by(outside, self._back, write.at)
        free()
        self.demoted += outside.nbytes

    def _pour(self, memory: memoryview, at: int) -> None:
        assert self.pinned is not None, "there are buffers"
        self.pinned.device.settle()
        self._fill_file(memory, at)

    def _write(self, outside: SpilledBuffer, memory: memoryview) -> None:
        at = self._place(memory.nbytes)
        try:
            self._fill_file(memory, at)
        except OSError:
            self._back(at)
            raise
        outside.at = at
        self._freed_by(outside, self._back, at)

    def _place(self, nbytes: int) -> int:
        """Where so many bytes will be in the file. Raises `OSError`."""
        if self._file < 0:
            self._file = _unlinked(self.where)
        found = self.ranges.take(nbytes)
        assert found is not None, "no disk is as large as the file may get"
        return found[0]

    def _fill_file(self, memory: memoryview, at: int) -> None:
        done = 0
        while done < memory.nbytes:
            done += os.pwrite(self._file, memory[done : done + MAX_IO_BYTES], at + done)

    def _hold(self, outside: SpilledBuffer, buffer: PinnedBuffer) -> None:
        assert self.pinned is not None, "there are pinned buffers"
        outside.pinned = buffer
        self._freed_by(outside, self.pinned.back, buffer)

    def _freed_by(self, outside: SpilledBuffer, back: Callable[..., None], place: Any) -> None:
        """Give up a place when nobody refers to what is there, or when that is elsewhere."""
        free = weakref.finalize(outside, back, place)
        free.atexit = False
        outside.free = free

    def load(self, outside: SpilledBuffer, memory: memoryview) -> None:
        """Fill memory of the right size with what was kept. Raises `OSError`."""
        self._read(memory[: outside.nbytes], outside.at)
        self.read += outside.nbytes

    def _read(self, memory: memoryview, at: int) -> None:
        """Fill memory with what is at a place in the file. Raises `OSError`."""
        done = 0
        while done < len(memory):
            count = os.preadv(self._file, [memory[done : done + MAX_IO_BYTES]], at + done)
            if not count:
                raise OSError(f"the file of spilled values ends at {at + done}")
            done += count

    def parts(self, outside: SpilledBuffer) -> Iterator[memoryview]:
        """All bytes of a buffer, in parts of which each is valid until the next, wherever it is, and though it goes from one
        place to another meanwhile: then what was read may be something else, and is read again. In any thread. Raises
        `OSError`."""
        memory = np.empty(min(outside.nbytes, PART_BYTES), np.uint8)
        settled: PinnedBuffer | None = None
        done = 0
        while done < outside.nbytes:
            part = memory[: min(PART_BYTES, outside.nbytes - done)]
            place, pinned, at = outside.free, outside.pinned, outside.at
            if pinned is None:
                self._read(part.data, at + done)
            else:
                if pinned is not settled and self.pinned is not None:
                    self.pinned.device.settle()  # a copy to there may still be under way
                    settled = pinned
                part[:] = pinned[done : done + part.size]
            if outside.free is place:
                yield part.data
                done += part.size

    def begin(self, outside: SpilledBuffer, buffers: Buffers) -> None:
        """Begin to read a buffer that will be wanted from the file, in a thread of its own: to memory, or of a GPU to pinned
        memory, from where it comes in without waiting. Nothing when that was begun already, or there is no room."""
        if self.reads(outside) or outside.pinned is not None:
            return
        if outside.inside is not None and outside.inside() is not None:
            return
        buffer = None
        if self.pinned is not None:
            self._look()
            with contextlib.suppress(MemoryError):
                buffer = self.pinned.take(outside.nbytes)
            if buffer is None:
                return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "gt-spill")
        if buffer is None:
            self._begun[outside] = self._thread.submit(self._restore, outside, buffers)
        else:
            self._filling[outside] = self._thread.submit(self._fill, outside, buffer), buffer
        self.ahead += outside.nbytes

    def _fill(self, outside: SpilledBuffer, buffer: PinnedBuffer) -> None:
        assert self.pinned is not None, "there are pinned buffers"
        self.pinned.device.settle()  # a copy may still be under way of what was in the buffer before
        self.load(outside, buffer.data[: outside.nbytes])

    def _look(self) -> None:
        """Take over what was read to pinned memory meanwhile, and what was written from it."""
        self.gone_on()
        for outside in [outside for outside, (future, _) in self._filling.items() if future.done()]:
            with contextlib.suppress(OSError):  # it is still in the file, and whoever reads it there is told
                self._filled(outside)

    def _filled(self, outside: SpilledBuffer) -> None:
        """What was begun to be read to pinned memory is there, and no longer in the file. Raises `OSError`."""
        assert self.pinned is not None, "there are pinned buffers"
        future, buffer = self._filling.pop(outside)
        try:
            future.result()
        except OSError:
            self.pinned.back(buffer)
            raise
        free = outside.free
        self._hold(outside, buffer)
        free()

    def begun(self, but: Collection[object] = ()) -> int:
        """Bytes that are being read to memory, or were, for somebody who has not come for them yet."""
        return sum(outside.nbytes for outside in self._begun if outside not in but)

    def reads(self, outside: SpilledBuffer) -> bool:
        """Whether it was begun to be read, and nobody has come for it yet."""
        return outside in self._begun or outside in self._filling

    def forget(self) -> None:
        """What was begun to be read to memory is read when it is wanted; none of it takes memory any more."""
        under_way = [reading for reading in list(self._begun.values()) if not reading.cancel()]
        for reading in under_way:
            reading.exception()  # whoever asks for memory needs what this holds until it is over
        under_way.clear()
        self._begun.clear()

    def restored(self, outside: SpilledBuffer, buffers: Buffers) -> Any:
        """The buffer's memory again. Raises `OSError`, `MemoryError`."""
        begun = self._begun.pop(outside, None)
        if self.pinned is None:
            return self._restore(outside, buffers) if begun is None else begun.result()
        if outside in self._filling:
            self._filled(outside)
        if outside.pinned is None:
            return self._restore(outside, buffers)
        root = self.pinned.device.copy_in(outside.pinned, outside.nbytes)
        self.read += outside.nbytes
        return root

    def _restore(self, outside: SpilledBuffer, buffers: Buffers) -> Any:
        return buffers.restore(outside.nbytes, partial(self.load, outside))

    def close(self) -> None:
        """Give up the file; what is out is lost."""
        for thread in (self._thread, self._writer):
            if thread is not None:
                thread.shutdown(cancel_futures=True)
        self._writing.clear()
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
